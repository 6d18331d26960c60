"""Wraps the private names of torch that the package cannot do without: one function for each, with the reason."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.utils._python_dispatch
import torch.utils._pytree
import torch.utils.checkpoint
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode, get_overridable_functions, has_torch_function

from interop._torch.sharding import is_distributed

F = TypeVar("F", bound=Callable[..., Any])


# Asked at each call of an op: a function around them would take as long as they do.
is_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Returns whether a transformation of torch.func is at work, which wants another kind of autograd.Function."""
is_in_function_mode: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
"""Returns whether there are function modes, which want to see every call."""
is_traced: Callable[[], bool] = torch._C._is_tracing
"""Returns whether `torch.jit.trace` records this call."""


def is_forward_mode() -> bool:
    """Return whether forward-mode derivatives may be asked for: a dual tensor does not say that it is one."""
    return forward_ad._current_level >= 0  # -1 outside of all levels


def unpacked(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the value and the tangent, as `torch.autograd.forward_ad.unpack_dual` in a quarter of its time.

    It asks whether torch.export records the call, which is a function mode.
    """
    if torch.is_inference_mode_enabled():  # nothing moves there, and torch fails to make the value a view of x
        return x, None
    if not is_forward_mode() or is_in_function_mode():
        return forward_ad.unpack_dual(x)
    return torch._C._VariableFunctions._unpack_dual(x, forward_ad._current_level)


def is_in_compiled_graph() -> bool:
    """Say whether torch.compile traces this call, and not torch.export, whose graphs are read without jaxclamp.

    `torch.compiler.is_exporting` would say the second, but Dynamo of torch 2.11 takes it for true in each graph.
    """
    return torch.compiler.is_compiling() and not torch.compiler._is_exporting_flag


def compiled_within_others_only(function: F) -> F:
    """Decorate a function that Dynamo traces in what it compiles, and is not to compile by itself.

    Where a graph breaks, torch runs in Python, and Dynamo would compile the function at each call there. Of the handler
    of a function mode it then took the answer of one getter of a tensor for that of another, and of `version_of` it
    fails within torch.func. `torch.compiler.disable` would break graphs instead.
    """
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function


def without_forward_mode() -> contextlib.AbstractContextManager[Any]:
    """Return a block in which tangents are not propagated.

    A backward pass would take those of the tensors that it has kept along, and fails for some functions.
    """
    return forward_ad._set_fwd_grad_enabled(False)


def with_forward_mode() -> contextlib.AbstractContextManager[Any]:
    """Return a block in which tangents are propagated, also where torch calls a ``jvp``."""
    return forward_ad._set_fwd_grad_enabled(True)


def propagates_tangents() -> bool:
    """Return whether functions propagate tangents, which they do not in the ``forward`` of an autograd.Function."""
    return torch._C._is_fwd_grad_enabled()


def primal_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without its tangent of the innermost forward mode; within a vmap torch does not do that."""
    levels = torch._C._functorch.get_interpreter_stack() or []
    while levels and levels[-1].key() == torch._C._functorch.TransformType.Vmap:
        levels.pop()
    # Level 0 is named, the only one that torch has: while a graph is traced, torch keeps no count of levels in Python,
    # and would take the tensor for one without a tangent.
    (primal,) = outside_of_transformations(len(levels), lambda x: [forward_ad.unpack_dual(x, level=0).primal], tensor)
    return primal  # type: ignore[return-value]


def without_transformations() -> contextlib.AbstractContextManager[Any]:
    """Return a block outside of the transformations of torch.func, in which one random number serves a whole batch.

    `torch.func.vmap` refuses to draw random numbers unless it is told how.
    """
    # Only where it is needed, as Dynamo cannot trace torch's block.
    return torch._C._DisableFuncTorch() if is_transformed() else contextlib.nullcontext()


def depth_of_transformations() -> int:
    """Count the transformations of torch.func that are at work, one within the other."""
    return torch._C._functorch.get_dynamic_layer_stack_depth()


def outside_of_transformations(
    depth: int, function: Callable[[torch.Tensor], Sequence[torch.Tensor | None]], tensor: torch.Tensor
) -> Sequence[torch.Tensor | None]:
    """Call ``function(tensor)`` at functorch nesting level ``depth``; re-wrap results as batches of the inner levels.

    In the inner levels, `torch.func.vmap` refuses to look at a tangent, and `torch.func.grad` hides it. The results are
    tensors of the shape of ``tensor``, and constants to the inner levels.
    """
    functorch = torch._C._functorch
    level = functorch.get_dynamic_layer_stack_depth()
    if level <= depth:
        return function(tensor)
    # A tensor that the innermost level does not know has no wrapper of that level; one of `grad` has no batch axis.
    axis = None
    if functorch.maybe_get_level(tensor) == level:
        axis = functorch.maybe_get_bdim(tensor) if functorch.is_batchedtensor(tensor) else None
        tensor = functorch.get_unwrapped(tensor)
    with temporarily_pop_interpreter_stack():
        results = outside_of_transformations(depth, function, tensor)
    return results if axis is None else [x if x is None else functorch._add_batch_dim(x, axis, level) for x in results]


def is_compiled() -> bool:
    """Say whether the call is in a compiled function; Dynamo may have left it to Python, and compile what it calls."""
    return torch.compiler.is_compiling() or bool(torch._C._dynamo.eval_frame.get_eval_frame_callback())


def path_as_written(path: str) -> str:
    """Return the path of a module without the wrappers of `torch.compile`, each of which adds a name to it.

    >>> path_as_written("encoder._orig_mod.0"), path_as_written("_orig_mod")
    ('encoder.0', '')
    """
    return ".".join(name for name in path.split(".") if name != "_orig_mod")


def running_modules() -> list[torch.nn.Module]:
    """Return the modules whose calls are running, the innermost first.

    Hooks of all modules would tell, and take several times as long as this at each call of a module.
    """
    modules = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALLS_MODULE:
            modules.append(frame.f_locals["self"])
        frame = frame.f_back
    return modules


_CALLS_MODULE = torch.nn.Module._call_impl.__code__
"""The code that calls a module, whose frames have the module as ``self``."""


COMPILED = "{} cannot run in a compiled function; call it outside of torch.compile."


def refuse_compiled(name: str) -> None:
    """Raise an error where `is_compiled`: the function of that name runs others as they are written."""
    if is_compiled():
        raise RuntimeError(COMPILED.format(name))


def with_old_versions(tensors: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Return a block in which to overwrite the tensors counts as no change, as it leaves their values as they are.

    A backward pass that needs their values, of a loss computed before, would refuse them.
    """
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(tensors))


def hooks_of(tensor: torch.Tensor) -> list[Callable[[torch.Tensor], torch.Tensor | None]]:
    """Return the hooks of the program that a reverse pass to the tensor calls, in their order."""
    return [*(tensor._backward_hooks or {}).values()]


def number_of(node: torch.autograd.graph.Node) -> int:
    """Return the number of a node of autograd; those that this thread makes later have larger ones."""
    return node._sequence_nr()


def next_number() -> int:
    """Return the number that the next node has."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


def has_jvp(node: torch.autograd.function.BackwardCFunction) -> bool:
    """Say whether the autograd.Function that made the node has forward mode."""
    return node._forward_cls.jvp is not torch.autograd.Function.jvp  # type: ignore[attr-defined]


def is_view(tensor: torch.Tensor) -> bool:
    """Say whether the tensor has its memory from another one, by a recorded call: it cannot be detached then."""
    return tensor._is_view()


def number_apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor; a number as a copy that is no view, as a loss is detached from its graph."""
    return tensor if tensor.dim() else tensor.clone()


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor whose memory the tensor shows, whole or in part, if it is a view; else the tensor."""
    return tensor if tensor._base is None else tensor._base


def is_without_numbers(tensor: torch.Tensor) -> bool:
    """Say whether the tensor has a shape and a dtype alone, as on the meta device."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def written_out(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with all its numbers in memory: torch has lazy signs, and zeros without memory as tangents."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.resolve_conj().resolve_neg()


def forbid_resizing(tensor: torch.Tensor) -> None:
    """Forbid to resize the memory of a tensor on the CPU, for good, as `Tensor.numpy` does for dtypes that it has."""
    torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


@compiled_within_others_only
def version_of(tensor: torch.Tensor) -> int:
    """Count the writes to the memory of the tensor; -1 if torch does not count them, as in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


DispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""A mode that sees what torch dispatches to its kernels."""


def overwrites(operator: Any) -> bool:
    """Say whether an operator that such a mode sees writes to one of its operands."""
    return bool(operator._schema.is_mutable)


def is_dispatch_mode_active() -> bool:
    """Say whether a mode watches what torch dispatches to its kernels: it fakes tensors, records a graph, or counts."""
    return torch._C._len_torch_dispatch_stack() > 0


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """Return a block in which no such mode watches: what is asked of tensors without data belongs in no graph."""
    return torch.utils._python_dispatch._disable_current_modes()


def nonstrict_trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep Dynamo from looking into ``function``; `torch.compiler.allow_in_graph` would refuse dicts and functions.

    It loads Dynamo, which takes a second.
    """
    import torch._dynamo

    return torch._dynamo.nonstrict_trace(function)


def is_overridden(arguments: Sequence[Any]) -> bool:
    """Return whether subclasses of tensors or function modes want to see a call: `torch.overrides.has_torch_function`.

    In a compiled function that one overlooks the modes.
    """
    return has_torch_function(arguments) or is_in_function_mode()


def make_overridable(functions: Iterable[Callable[..., Any]]) -> None:
    """Let Dynamo ask function modes about these functions, as eager calls do.

    It asks about those that `torch.overrides.get_overridable_functions` lists, and that misses forms that overwrite.
    The list is made once in a process, and Dynamo's copy of it with the first compiled function.
    """
    listed = get_overridable_functions()
    known = {function for of_namespace in listed.values() for function in of_namespace}
    missing = [function for function in functions if function not in known]
    listed[torch].extend(missing)
    if dynamo := sys.modules.get("torch._dynamo.variables.torch"):  # to import it here would load Dynamo for all
        dynamo.get_overridable_functions().update(missing)


def constant_in_graphs(function: F) -> F:
    """Have Dynamo call ``function`` while it traces, and not look into it: its result is a constant in the graph.

    `torch.compiler.assume_constant_result` does the same, and loads Dynamo, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_traced_under_transforms() -> bool:
    """Say whether Dynamo traces this call within transformations of torch.func, for another graph than an export's.

    It misses there which tensors require grad, knows no batch of an `autograd.Function`, and lets derivatives of
    derivatives end at one.
    """
    return torch.compiler.is_dynamo_compiling() and is_in_compiled_graph() and _is_transformed_in_trace()


@constant_in_graphs
def _is_transformed_in_trace() -> bool:
    return is_transformed()  # as a constant: else it would be a call in each graph


def flattened(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a tree as torch.func sees it, and its structure; `jax.tree` would sort the keys of dicts."""
    return torch.utils._pytree.tree_flatten(tree)


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """Map where each leaf is in a tree, as ``[1]['mean']``, to the leaf; `flattened` does not tell where."""
    paths = torch.utils._pytree.tree_leaves_with_path(tree)
    return {torch.utils._pytree.keystr(path): leaf for path, leaf in paths}


def unflattened(structure: Any, leaves: Iterable[Any]) -> Any:
    """Return the tree of that structure with these leaves."""
    return torch.utils._pytree.tree_unflatten(leaves, structure)


def is_constant(number: float) -> bool:
    """Return whether the graph that is being made has ``number`` as it is, not a symbol that stands for it."""
    if not torch.compiler.is_compiling():
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value  # it takes a second to load

    return has_static_value(number)


def constant_of(number: float) -> float:
    """Return ``number``, made a constant of the graph that is being traced if it was a symbol.

    Raises torch's error about data-dependent expressions if nothing but running the graph can tell the number.
    """
    if not torch.compiler.is_compiling():
        return number
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(number)


def is_in_old_vmap(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is a batch of the vmap, older than torch.func's, behind ``is_grads_batched=True``."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def out_of_old_vmap(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole batch of ``tensor``, along its first axis."""
    # Level 1 by number, not that of this thread: the engine differentiates what is on a GPU in a thread without levels.
    whole = torch._remove_batch_dim(tensor, 1, 1, 0)  # the second 1 is a size for tensors that are no batch
    if is_in_old_vmap(whole):
        raise NotImplementedError("interop: batched gradients within batched gradients; use torch.func.vmap.")
    return whole


def into_old_vmap(tensor: torch.Tensor) -> torch.Tensor:
    """Return a batch of the vmap, of all that lies along the first axis of ``tensor``."""
    return torch._add_batch_dim(tensor, 0, 1)  # at level 1: `out_of_old_vmap` refuses more


def named_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Return "none", "mean" or "sum", as the arguments of a loss say, with torch's warnings and error for old ones."""
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    return ("none", "mean", "sum")[torch.nn._reduction.get_enum(reduction)]


def function_modes() -> list[TorchFunctionMode]:
    """Return the function modes that are entered, the innermost last; not the one that is being asked about a call."""
    return torch.overrides._get_current_function_mode_stack()


def without_function_modes() -> contextlib.AbstractContextManager[Any]:
    """Return a block in which calls go to torch alone: what a mode computes for itself is no call of the program."""
    return torch._C.DisableTorchFunction()


def calls_functions(func: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Say whether ``func`` is an operator that calls functions in ``args``: `torch.cond`, a checkpoint in a graph.

    Dynamo traces them where no function mode is entered, and refuses to enter one there. It hands them over by
    position. `flex_attention`, which is one too, is left out: its functions seldom have ties.

    >>> cond, flex_attention = torch.ops.higher_order.cond, torch.ops.higher_order.flex_attention
    >>> calls = (cond, (len,)), (cond, ()), (flex_attention, (len,)), (torch.relu, (len,))
    >>> [calls_functions(*call) for call in calls]
    [True, False, False, False]
    """
    return (
        isinstance(func, torch._ops.HigherOrderOperator)
        and func is not torch.ops.higher_order.flex_attention
        and any(callable(argument) for argument in args)
    )


def top_hooks() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the hooks that pack and unpack what the tape saves; `torch.autograd.graph` can only put some there."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)  # False hides them while AOTAutograd traces


def takes_hooks() -> bool:
    """Say whether a call may put hooks on the tape: torch applies one pair at a time, and a block may forbid them."""
    return top_hooks() is None and torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]


def checkpoint_that_switches(func: Callable[..., Any]) -> Any:
    """Return the context of the reentrant checkpoint that turns the tape off by this call; it has the ``run_function``.

    Torch offers no way to say in what else it is to run. Other libraries have checkpoints of the same form.

    Raises:
      RuntimeError: that of torch has no ``run_function``, as in no version that is known here.
    """
    if func is not torch._C._set_grad_enabled:
        return None
    # CheckpointFunction.forward(ctx, run_function, ...) calls `torch.no_grad`, whose ``__enter__`` calls ``func``. The
    # frames from here outwards are those of the mode, then those of the module of `no_grad`, then that of ``forward``.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_of(torch.no_grad.__module__, frame):
        frame = frame.f_back
    while frame is not None and _is_of(torch.no_grad.__module__, frame):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_argcount:
        return None
    context = frame.f_locals.get(frame.f_code.co_varnames[0])
    if not isinstance(context, torch.autograd.function.FunctionCtx):
        return None
    if hasattr(context, "run_function"):
        return context
    if _is_of("torch.utils.checkpoint", frame):
        raise RuntimeError(
            f"torch.utils.checkpoint of torch {torch.__version__} keeps the function that it runs again where interop "
            "does not find it, so that the gradients would be torch's own; call checkpoint with use_reentrant=False."
        )
    return None


@contextlib.contextmanager
def without_checkpoints() -> Iterator[None]:
    """Let checkpoints in the block, but for reentrant ones, keep what the tape saves, and compute nothing again.

    `torch.func.functional_call` replaces parameters in the call alone. What is computed again behind it would be made
    of those of the module, and would change its buffers.
    """
    before_2_15 = "_checkpoint_without_reentrant_generator"
    since_2_15 = f"{before_2_15}_impl"
    name = since_2_15 if hasattr(torch.utils.checkpoint, since_2_15) else before_2_15
    generator = getattr(torch.utils.checkpoint, name)

    def around_call(*_: Any, **__: Any) -> Iterator[None]:
        yield  # here the checkpoint calls its function

    setattr(torch.utils.checkpoint, name, around_call)
    try:
        yield
    finally:
        setattr(torch.utils.checkpoint, name, generator)


def keywords_of(func: Callable[..., Any], kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the keyword arguments of the call that a function mode is handling.

    `torch.nn.functional.l1_loss` hands modes all of its arguments but ``weight``, so that each mode of torch drops it,
    as ``torch.device`` does. Its frame, which waits for the mode to return, still has the weight. Dynamo traces no
    frames.
    """
    kwargs = kwargs or {}
    if func is not torch.nn.functional.l1_loss or "weight" in kwargs or torch.compiler.is_compiling():
        return kwargs
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.nn.functional.l1_loss.__code__:
        frame = frame.f_back
    weight = None if frame is None else frame.f_locals.get("weight")
    return kwargs if weight is None else {**kwargs, "weight": weight}


def _is_of(module: str, frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == module


def operators_named(name: str) -> list[Callable[..., Any]]:
    """Return the operators of ATen of that name: `torch.ops.aten.max`, and its overloads, `torch.ops.aten.max.dim`."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return []
    return [packet, *(getattr(packet, overload) for overload in packet.overloads())]


def bindings_named(name: str) -> list[Callable[..., Any]]:
    """Return what calls an operator of that name from Python; torch documents only some of these."""
    homes = (torch._C._nn, torch._C._VariableFunctions)
    return [getattr(home, name) for home in homes if hasattr(home, name)]


def foreach_named(name: str) -> list[Callable[..., Any]]:
    """Return the forms of the function of that name for many tensors, of which torch's optimizers are made."""
    binding = getattr(torch, f"_foreach_{name}", None)
    return [] if binding is None else [binding, *operators_named(f"_foreach_{name}")]


def schema_of(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the schema of the overload that a call of an operator, or of a binding of one, is for."""
    if not isinstance(operator, torch._ops.OpOverload):
        # Schemas have ATen's names, by which a method's first argument is ``self``; bindings of torch call it input.
        by_schema_name = {"self" if name == "input" else name: value for name, value in kwargs.items()}
        overload = torch._C._jit_resolve_packet(f"aten::{operator.__name__}", *args, **by_schema_name)
        operator = getattr(getattr(torch.ops.aten, operator.__name__), overload)
    return operator._schema


def of_a_batch(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a whole batch, without the wrappers of torch.func."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def is_of_a_batch(tensor: torch.Tensor) -> bool:
    """Say whether the tensor is one of a batch of `torch.func.vmap`, maybe within a gradient of torch.func."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def sharding_of(tensor: torch.Tensor) -> str | None:
    """Return what has cut the tensor into parts that lie in several processes, if it is such a part.

    `FullyShardedDataParallel` marks the parameters that it leaves in their places, and has no public name for the mark.
    """
    if is_distributed(tensor):
        return "fully_shard or tensor parallelism (it is a DTensor)"
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and (isinstance(tensor, fsdp.FlatParameter) or getattr(tensor, "_fsdp_flattened", False)):
        return "FullyShardedDataParallel"
    return None
