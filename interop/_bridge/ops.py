"""The ops of jaxclamp under torch's own signatures and type promotion, made from their records.

A call arranges its arguments by slot (`signatures.py`), follows the plan for its kind (`plans.py`), which the first
call of that kind makes, and returns the result in the form that the arguments ask for: new, in place, in ``out``.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

import jaxclamp
from interop._bridge.bounded import Bounded
from interop._bridge.plans import Plan, classify, make_plan, normalized
from interop._bridge.promotion import refusal_type
from interop._bridge.signatures import MISSING, Signature
from interop._torch.forms import in_place, overwrite, write_to
from interop._torch.opaque import opaque
from jaxclamp import OPS, Op


class TorchOp:
    """An op with the arguments of torch.

    Args:
      op: the record.
      compute: what is computed with the arguments of the op; its function, as a rule.
    """

    def __init__(self, op: Op, compute: Callable[..., Any]) -> None:
        self.signature = Signature(op)
        self.op = op
        self._compute = compute
        self._plans: dict[Any, Plan] = Bounded(1024)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        signature = self.signature
        values: Sequence[Any] = args  # positional arguments stand in their slots
        if kwargs or len(args) > signature.count_before_forms:
            values = signature.arranged(args, kwargs)
        if signature.cast is not None:
            values = signature.cast(*values)
        kind, tensors, numbers = classify(signature, values)
        if has_torch_function(tensors):
            return handle_torch_function(self.public, tensors, *args, **kwargs)
        plan = self._plans.get(kind)
        try:
            # Devices are in no kind. Where they differ, a number in a tensor on CPU may have to be moved first.
            if plan is None or any(tensor.device != tensors[0].device for tensor in tensors[1:]):
                # Anew, as positional arguments are not checked so far, and some may be cast, which `normalized` does.
                values = signature.arranged(args, kwargs)
                return self._in_any_form(values)
            return plan.run(tensors, numbers)
        except (TypeError, ValueError, OverflowError) as error:
            refusal = refusal_type(signature, values)
            if refusal is None or isinstance(error, refusal):
                raise
            raise refusal(str(error)) from None  # code that expects the kind of exception of torch gets it

    def _in_any_form(self, values: list[Any]) -> Any:
        """Return the result for the arguments by slot, in the form that they ask for."""
        signature, name = self.signature, self.op.name
        forms = {
            form: values[slot]
            for form, slot in signature.forms.items()
            if slot < len(values) and values[slot] is not MISSING
        }
        without_forms = signature.without_forms(values)
        if "dtype" in forms:
            without_forms[0] = without_forms[0].to(forms["dtype"])
        if "inplace" in forms:
            return overwrite(f"{name}_", self.of_slots, *without_forms)
        if "out" in forms:
            return write_to(forms["out"], name, self.of_slots, *without_forms)
        result = self.of_slots(*without_forms)
        if "return_indices" in forms:
            # Which of equal elements an index names is a rule of torch's own.
            x, *window = normalized(signature, without_forms)
            arguments = signature.by_jax_name([x.detach(), *window])
            return result, signature.in_torch({**arguments, "return_indices": True})[1]
        return result

    def of_slots(self, *values: Any) -> Any:
        """Return the result for the arguments by slot, none of which asks for another form."""
        values = tuple(normalized(self.signature, values))
        kind, tensors, numbers = classify(self.signature, values)
        plan = self._plans.get(kind) or make_plan(self.op, self._compute, self.signature, values, tensors)
        if kind is not None:
            self._plans[kind] = plan
        return plan.run(tensors, numbers)

    @functools.cached_property
    def public(self) -> Callable[..., Any]:
        """The function by which it is called, which `torch.overrides` gets to see."""
        name, signature = self.op.name, self.signature
        operands = [(x, signature.torch_name(slot)) for slot, x in signature.jax_names.items() if x in ("x", "y")]
        symbols = " and ".join(f"{x} is ``{in_torch}``" for x, in_torch in operands)
        about, _, _ = inspect.cleandoc(self.op.function.__doc__ or "").partition("Args:")
        return _described(
            opaque(self, name),
            name,
            signature.inspected,
            f"JAX's program of `jaxclamp.{name}` on torch's tape: take it for large tensors, or JAX's exact numbers."
            f"\n\n``interop.native.{name}`` has the same gradient by torch's own kernels, which start faster on small "
            f"tensors and can be exported. Here {symbols}; the arguments and errors are described in `jaxclamp.{name}`."
            f"\n\n{about.rstrip()}\n",
        )

    def overwriting(self, name: str) -> Callable[..., Any]:
        """Make the function of that name that overwrites its first argument."""

        def overwriting(*args: Any, **kwargs: Any) -> torch.Tensor:
            values = self.signature.arranged(args, kwargs)
            tensors = [value for value in values if isinstance(value, torch.Tensor)]
            if has_torch_function(tensors):
                return handle_torch_function(public, tensors, *args, **kwargs)
            return overwrite(name, self.of_slots, *values)

        signature = self.signature.inspected
        parameters = [p for p in signature.parameters.values() if p.name not in self.signature.forms]
        public = _described(
            opaque(overwriting, name),
            name,
            signature.replace(parameters=parameters, return_annotation=torch.Tensor),
            f"`interop.{self.op.name}`, which overwrites its first argument and returns it.",
        )
        return public


def _described(function: Callable[..., Any], name: str, signature: inspect.Signature, about: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "interop"
    function.__doc__ = about
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    function.__annotations__["return"] = signature.return_annotation
    return function


_OPS = {
    name: torch_op
    for torch_op in [TorchOp(op, op.function) for op in OPS.values()]
    for name, function in vars(jaxclamp).items()
    if function is torch_op.op.function
}
"""Maps each name of an op of jaxclamp, as clip and clamp of one, to the op."""

TORCH_OPS: dict[str, Callable[..., Any]] = {name: torch_op.public for name, torch_op in _OPS.items()}
"""Maps each name of an op of jaxclamp to that op for torch."""

IN_PLACE_OPS: dict[str, Callable[..., Any]] = {
    f"{name}_": torch_op.overwriting(f"{name}_") for name, torch_op in _OPS.items() if in_place(name) is not None
}
"""Maps a name such as ``clamp_`` to the form that overwrites its first argument, for ops that torch has so."""
