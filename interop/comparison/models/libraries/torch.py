"""Modules of torch.nn."""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from interop._bridge.arrays import tensor_over, to_host
from interop._torch.private_api import (
    DispatchMode,
    flattened,
    hooks_of,
    overwrites,
    unflattened,
    version_of,
    without_checkpoints,
)
from interop._transforms.min_norm import min_norm as under_min_norm
from interop._transforms.ties import ties
from interop.comparison.models.layers import (
    Answer,
    CallRecorder,
    Key,
    Layer,
    Moment,
    Point,
    Span,
    distinct,
    filled,
    is_result_of_numbers,
    leaves_of,
)
from interop.comparison.models.model import Call, Model, Run, cast, is_float_array
from interop.comparison.models.parameters import Layout, Parameter
from interop.frameworks.base import Array
from interop.frameworks.reseed import reseeded_in_torch
from interop.frameworks.torch import Torch as InTorch
from jaxclamp import TieReport
from jaxclamp._shared.tables import listed

_FUSED = ("in_proj_weight", "in_proj_bias")
_PARTS = ("query", "key", "value")
"""The projections of attention, which torch has in one array, and all others in three."""


class Torch(Model):
    """A module of torch, called in eager mode even if it was compiled, without checkpoints; hooks mark its layers."""

    channels_last = False
    draws = True  # a module does not say what it draws
    version = InTorch.version

    def __init__(self, model: torch.nn.Module, call: Call | None, inputs: Sequence[Any]) -> None:
        super().__init__(model, call, inputs)
        self._names = {module: name for name, module in model.named_modules()}
        of_script = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]  # those of torch.jit.trace take hooks
        scripted = [name for module, name in self._names.items() if isinstance(module, of_script)]
        if scripted:
            where = f" at {scripted[0]}" if scripted[0] else ""
            raise TypeError(
                f"compare_models: {self} is made by torch.jit.script{where}, and takes no hooks, which mark the "
                "boundaries of layers; pass the module that it was made of."
            )
        tensors = (*model.named_parameters(), *model.named_buffers())
        if without_numbers := [name for name, tensor in tensors if is_lazy(tensor) or tensor.is_meta]:
            raise ValueError(
                f"compare_models: {self} has no numbers yet in {listed(without_numbers)}; call a lazy module once, and "
                "load the parameters of one on the device meta."
            )

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        frozen = {name: not parameter.requires_grad for name, parameter in self.model.named_parameters()}
        arrays = {name: to_host(tensor) for name, tensor in self._tensors.items()}
        return [
            Parameter(
                name, Layout.same(part.shape), part.dtype, fused in frozen, np.array(part), frozen.get(fused, False)
            )
            for fused, array in arrays.items()
            for name, part in _parts(fused, array)
        ]

    @property
    def integers(self) -> Mapping[str, Array]:
        kept = {name: buffer for name, buffer in self.model.named_buffers() if buffer.ndim}
        return {name: to_host(x) for name, x in kept.items() if not (x.is_floating_point() or x.is_complex())}

    @functools.cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the parameters, and the buffers that a state_dict has, but for integers, such as counts."""
        saved = self.model.state_dict().keys()
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in saved}
        tensors = {**dict(self.model.named_parameters()), **buffers}
        return {name: x.detach() for name, x in tensors.items() if x.is_floating_point() or x.is_complex()}

    @functools.cached_property
    @torch.inference_mode(False)
    def layers(self) -> Sequence[Layer]:
        recorder = _TorchRecorder({}, None)
        try:
            self._call_recorded(recorder, self._as_tensors({p.name: p.value for p in self.parameters}), self.inputs)
        except RuntimeError as error:
            dtypes = {p.dtype for p in self.parameters}
            if any(is_float_array(leaf) and leaf.dtype not in dtypes for leaf in self.inputs):
                error.add_note(
                    f"compare_models: the parameters of {self} are of {listed(dtypes)}, and an input is not. Pass "
                    "calls that convert the inputs, as (None, lambda model, x: model(x.bfloat16()))."
                )
            raise
        return recorder.filled()

    def _as_tensors(self, values: Mapping[str, Array | None]) -> dict[str, torch.Tensor]:
        """Return copies of the values of parameters, of which those that are trained require grad."""
        tensors = {name: tensor_over(np.array(value)) for name, value in values.items()}
        for parameter in self.parameters:
            tensors[parameter.name].requires_grad_(parameter.trained)
        return tensors

    def _call_recorded(
        self, recorder: CallRecorder, values: Mapping[str, torch.Tensor], inputs: Sequence[Any], reseeded: bool = False
    ) -> tuple[Any, Any]:
        """Call the model, its modules recorded; return the result, and the parameters and buffers after it."""
        tensors = self._replacements(values)
        called = _Called(self.model, self.call)
        enter, leave = functools.partial(self._enter, recorder), functools.partial(self._leave, recorder)
        tensor_inputs = [tensor_over(np.array(leaf)) if isinstance(leaf, np.ndarray) else leaf for leaf in inputs]
        passed = recorder.enter("", self.model, self.name, tensor_inputs)
        with contextlib.ExitStack() as hooks:
            for module in self._names:
                hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                # Also called where a module raises, as the one around it may catch that and go on.
                hooks.enter_context(module.register_forward_hook(leave, always_call=True))
            # Each run draws the same numbers. They are drawn on the CPU, where all arrays are.
            with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"), without_checkpoints():
                call = reseeded_in_torch(torch.func.functional_call) if reseeded else torch.func.functional_call
                result = call(called, tensors, tuple(passed))
        return recorder.leave(result), {name.removeprefix("model."): tensor for name, tensor in tensors.items()}

    def _replacements(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what replaces the parameters and buffers in a call, so that those of the model stay as they are."""
        hooks = {name: hooks_of(parameter) for name, parameter in self.model.named_parameters()}
        compared = {name: _with_hooks(_joined(name, values), hooks.get(name, ())) for name in self._tensors}
        counts = {name: buffer.clone() for name, buffer in self.model.named_buffers() if name not in compared}
        return {f"model.{name}": tensor for name, tensor in (compared | counts).items()}

    def _enter(self, recorder: CallRecorder, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        path = self._names[module]
        if path == "":  # the model itself, which `_call_recorded` records with the inputs
            return None
        settings = repr(module) if not list(module.children()) else type(module).__name__
        return recorder.enter(path, module, settings, (args, kwargs))

    def _leave(self, recorder: CallRecorder, module: torch.nn.Module, args: Any, result: Any) -> Any:
        return recorder.leave(result) if self._names[module] else None

    @torch.inference_mode(False)  # which enables gradients, too
    def _run(self, run: Run) -> Answer:
        dtype = None if run.dtype is None else getattr(torch, run.dtype.__name__)
        recorder = _TorchRecorder(run.nudges or {}, dtype)
        trained = [p.name for p in self.parameters if p.trained]
        tensors = self._as_tensors({name: cast(value, run.dtype) for name, value in self.values.items()})
        call = under_min_norm()(self._call_recorded) if run.min_norm else self._call_recorded
        with _all_in(dtype, recorder.note):
            result, state = call(recorder, tensors, self._inputs_in(run.dtype), run.reseeded)
            results = [
                leaf
                for leaf in distinct(leaves_of(result))
                if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
            ]
            # A result that depends on nothing trained has no graph: then the gradients are zeros, as in JAX.
            total = torch.zeros((), requires_grad=True) + self._total(results)
            # By the roots too, whose gradients nobody reads: torch calls the hooks on the way to what it is asked for.
            differentiated = [*(tensors[name] for name in trained), *recorder.roots]
            gradients = torch.autograd.grad(total, differentiated, allow_unused=True, materialize_grads=True)
        untrained = [p.name for p in self.parameters if not p.trained]
        # JAX has the conjugate of what torch calls the gradient, which is sparse for some embeddings.
        of_trained = [to_host(gradient.to_dense().conj()).copy() for gradient in gradients[: len(trained)]]
        return Answer(
            recorder.filled(),
            dict(zip(trained, of_trained, strict=True)),
            {name: to_host(state[name]) for name in untrained},
            recorder.eps,
        )

    @torch.inference_mode(False)
    def ties(self, span: Span) -> TieReport:
        begin, end = span
        counted = ties()

        def at_moment(moment: Moment) -> None:
            if moment == begin:
                counting.enter_context(counted)
            if moment == end:
                counting.close()

        with contextlib.ExitStack() as counting:
            recorder = CallRecorder(lambda key, leaf: None, at_moment)
            self._call_recorded(recorder, self._as_tensors(self.values), self.inputs)
        # `_Called` has the model by that name.
        lines = [
            line._replace(module=line.module.removeprefix("model").removeprefix(".")) for line in counted.report.lines
        ]
        return TieReport(tuple(lines))


class _AllIn(DispatchMode):
    """Lets all floats, and those in complex numbers, be of one dtype, whichever the model converts them to or makes."""

    def __init__(self, dtype: torch.dtype, note: Callable[[torch.dtype], None]) -> None:
        super().__init__()
        self._dtype, self._note = dtype, note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves, structure = flattened((args, kwargs or {}))
        # Bits are read as the dtype that the model says.
        if func is not torch.ops.aten.view.dtype:
            leaves = [self._wanted(x) if isinstance(x, torch.dtype) else x for x in leaves]
        dtypes = _inexact_dtypes(leaves)
        # A constant stays the tensor that it is where nothing else is computed: a model may overwrite a view of it.
        if self._has_wanted(dtypes) and not overwrites(func):
            leaves = [x.to(self._wanted(x.dtype)) if isinstance(x, torch.Tensor) else x for x in leaves]
        args, kwargs = unflattened(structure, leaves)
        result = func(*args, **kwargs)
        if self._has_wanted(_inexact_dtypes(flattened(result)[0])):
            for dtype in dtypes:
                self._note(dtype)
        return result

    def _wanted(self, dtype: torch.dtype) -> torch.dtype:
        """Return what takes the place of a dtype: complex numbers are pairs of the floats."""
        if dtype.is_complex:
            return self._dtype.to_complex()
        return self._dtype if dtype.is_floating_point else dtype

    def _has_wanted(self, dtypes: Iterable[torch.dtype]) -> bool:
        return any(dtype == self._wanted(dtype) for dtype in dtypes)


def _inexact_dtypes(leaves: Sequence[Any]) -> set[torch.dtype]:
    """Return the dtypes of the tensors of floats and complex numbers."""
    return {x.dtype for x in leaves if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())}


class _Called(torch.nn.Module):
    """A module that calls the model as the caller says, as `functional_call` takes only modules."""

    def __init__(self, model: torch.nn.Module, call: Call) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, *inputs: Any) -> Any:
        return self._call(self.model, *inputs)


class _TorchRecorder(CallRecorder):
    """Records also the arrays that cross boundaries, and their gradients as they come back.

    What crosses is replaced by a clone, whose gradient is that of what crosses there alone. A module that overwrites
    the clone of its input has to overwrite the input too, as its caller expects:

        x ── clone ── ReLU(inplace=True) overwrites the clone ── `leave` copies it to x, and the caller gets x
    """

    def __init__(self, nudges: Mapping[Key, Array], dtype: torch.dtype | None) -> None:
        super().__init__(self._mark, self._note_eps)
        self._nudges, self._dtype = nudges, dtype
        self._values: dict[Key, Any] = {}
        self._gradients: dict[Key, torch.Tensor] = {}
        self.roots: list[torch.Tensor] = []
        """Leaves in the place of floats that cross and depend on nothing trained, as inputs: they have gradients."""
        self._replaced: dict[int, list[tuple[torch.Tensor, torch.Tensor, int]]] = defaultdict(list)
        """Maps a running layer to its inputs, the clone that it got for each, and the version of that."""
        self._overwritten = WeakIdKeyDictionary()
        """Maps a clone that a layer has overwritten to the input."""
        self.eps: dict[Moment, float] = {}
        self._largest_eps = 0.0

    def note(self, dtype: torch.dtype) -> None:
        """Note that there were floats of this dtype."""
        self._largest_eps = max(self._largest_eps, torch.finfo(dtype).eps)

    def _note_eps(self, moment: Moment) -> None:
        self.eps[moment] = self._largest_eps

    def leave(self, result: Any) -> Any:
        """Record that a module returns; what it has overwritten is overwritten for those around it too."""
        for tensor, clone, version in self._replaced.pop(self.running, []):
            if version_of(clone) != version:
                tensor.copy_(clone)
                self._overwritten[clone] = tensor
        return super().leave(result)

    def _mark(self, key: Key, leaf: Any) -> Any:
        if is_result_of_numbers(key, leaf):
            leaf = torch.tensor(leaf)
        if not isinstance(leaf, torch.Tensor) or (leaf.dtype == torch.bool and key.direction == "inputs"):
            return None
        if key in self._nudges:
            leaf = leaf + torch.from_numpy(self._nudges[key]).to(leaf.dtype)
        value = self._values[key] = leaf.detach().clone()  # the tensor itself may be overwritten later
        if value.is_floating_point():
            self.note(value.dtype)
        if key.direction == "outputs" and leaf in self._overwritten:
            passed: torch.Tensor = self._overwritten[leaf]  # the caller has the same tensor by two names
        else:
            passed = self._requiring_grad(leaf).clone()
        if key.direction == "inputs":
            self._replaced[key.layer].append((leaf, passed, version_of(passed)))
        if passed.requires_grad and passed.is_floating_point():
            passed.register_hook(lambda gradient: self._gradients.__setitem__(key, gradient))
        return passed

    def _requiring_grad(self, leaf: torch.Tensor) -> torch.Tensor:
        if leaf.requires_grad or not leaf.is_floating_point() or not torch.is_grad_enabled():
            return leaf
        # Of the dtype of the run, as its gradient is: torch would refuse another one for a constant of the model.
        self.roots.append(leaf.detach().to(self._dtype or leaf.dtype).requires_grad_())
        return self.roots[-1]

    def filled(self) -> Sequence[Layer]:
        """Return the layers with what crossed their boundaries."""
        return filled(self.layers, {key: self._point(key, value) for key, value in self._values.items()})

    def _point(self, key: Key, value: torch.Tensor) -> Point:
        gradient = self._gradients.get(key)
        if gradient is None and value.is_floating_point():
            gradient = torch.zeros_like(value)  # none came back, so that the total does not depend on it
        return Point(to_host(value), None if gradient is None else to_host(gradient))


@contextlib.contextmanager
def _all_in(dtype: torch.dtype | None, note: Callable[[torch.dtype], None]) -> Iterator[None]:
    """Let all floats be of this dtype in the block, and note which they are else; None leaves each what it is."""
    if dtype is None:
        yield
        return
    before = torch.get_default_dtype()
    # Of this dtype is also what the model makes of no array, such as a range.
    torch.set_default_dtype(dtype)
    try:
        with _AllIn(dtype, note):
            yield
    finally:
        torch.set_default_dtype(before)


def _projections(name: str) -> list[str]:
    """Return the names of the projections of attention that a parameter of torch joins; none for other parameters."""
    owner, _, last = name.rpartition(".")
    role = last.removeprefix("in_proj_")
    return [f"{owner}.{part}.{role}".lstrip(".") for part in _PARTS] if last in _FUSED else []


def _parts(name: str, array: Array) -> list[tuple[str, Array]]:
    """Split a parameter of torch into its projections."""
    names = _projections(name)
    return list(zip(names, np.split(array, 3), strict=True)) if names else [(name, array)]


def _joined(name: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Join what `_parts` split."""
    names = _projections(name)
    return torch.cat([values[part] for part in names]) if names else values[name]


def _with_hooks(tensor: torch.Tensor, hooks: Sequence[Callable[..., Any]]) -> torch.Tensor:
    """Return a copy of the tensor, whose gradient passes through the hooks on its way; if there are none, itself."""
    if not (hooks and tensor.requires_grad):
        return tensor
    passed = tensor.clone()  # a view loses its hooks when it is overwritten, as by the norms of an embedding
    for hook in hooks:
        passed.register_hook(hook)
    return passed
