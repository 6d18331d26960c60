"""Makes an op's signature in torch from its record.

Parameters have torch's names, or NumPy's by keyword. The parameters of further forms, such as ``out``, come last.
"""

import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from interop._torch.autocast import CASTS
from interop._torch.forms import NUMPY_NAMES
from jaxclamp import Op, WithIndices
from jaxclamp._shared.counterparts import Counterpart

_TORCH_NAMES = {"x": "input", "y": "other"}
MISSING: Any = inspect.Parameter.empty
"""The value of a parameter for which the call has no argument."""

_Pair = tuple[torch.Tensor, torch.Tensor]
_FORMS = (
    inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation=bool),
    inspect.Parameter("return_indices", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation=bool),
    inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=torch.dtype | None),
    inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None),
)
"""The parameters by which torch gives an op another form."""


def torch_counterpart(op: Op) -> Counterpart:
    """Return the function of torch whose signature the op has there.

    Raises:
      ValueError: the record names none.
    """
    counterparts = op.counterparts_in("torch")
    if not counterparts:
        raise ValueError(
            f"{op.name} has no counterpart in torch, which would give it a signature there; name one in counterparts= "
            'of its @op, such as "torch:clamp(x, min, max)".'
        )
    return counterparts[0]


class Signature:
    """The parameters of an op in torch, each with its slot, a number.

    >>> import jaxclamp
    >>> clamp = Signature(jaxclamp.OPS["clamp"])
    >>> str(clamp)
    'input, min, max, ties, out'
    >>> clamp.arranged((1,), {"max": 3}) == [1, MISSING, 3]
    True
    """

    def __init__(self, op: Op) -> None:
        self.name = op.name
        self.in_torch = torch_counterpart(op)
        """The function of torch, which takes a dict of arguments by jaxclamp's names."""
        self.cast = CASTS.get(op.name)
        """What torch.autocast does to the arguments, if anything."""
        self.reduces = op.family == "reduction"
        self.has_windows = "kernel_size" in op.signature.parameters
        # Of amax, whose record has "torch:amax(x, dim=axis, keepdim=keepdims, out=out)": input, dim, keepdim and ties.
        parameters = _parameters_in_torch(op, self.in_torch.parameters)
        returned: Any = _Pair if op.types["return"] is WithIndices else torch.Tensor
        # Of amax: out.
        forms = [form for form in _FORMS if form.name in self.in_torch.parameters]
        forms = [form.replace(annotation=returned | None) if form.name == "out" else form for form in forms]
        self.inspected = inspect.Signature(
            # Sorted by kind, as ``ties`` and ``out`` are keywords alone; the order within a kind stays.
            sorted([*parameters.values(), *forms], key=lambda parameter: parameter.kind),
            return_annotation=returned | _Pair if "return_indices" in self.in_torch.parameters else returned,
        )
        names = list(self.inspected.parameters)
        aliases = {alias: name for alias, name in NUMPY_NAMES.items() if name in names}
        self._slots = {name: names.index(aliases.get(name, name)) for name in (*names, *aliases)}
        self.jax_names = {self._slots[parameter.name]: name for name, parameter in parameters.items()}
        """Maps a slot to the name of the parameter in jaxclamp."""
        self.arrays = frozenset(self._slots[parameters[name].name] for name in op.arrays if name in parameters)
        """The slots that take tensors and numbers."""
        self.forms = {form.name: self._slots[form.name] for form in forms}
        inspected = self.inspected.parameters.values()
        self._positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in inspected)
        self.count_before_forms = self._positional - sum(form.kind is form.POSITIONAL_OR_KEYWORD for form in forms)
        """How many positional arguments there can be without one that asks for another form."""
        self._required = sum(p.default is MISSING for p in inspected)
        self._defaults = [p.default for p in inspected]

    def __str__(self) -> str:
        return ", ".join(self.inspected.parameters)

    def torch_name(self, slot: int) -> str:
        """Return what torch calls the parameter in that slot."""
        return list(self.inspected.parameters)[slot]

    def slot(self, name: str) -> int | None:
        """Return the slot of a parameter, if the op has it."""
        return self._slots.get(name)

    def arranged(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call by slot, up to the last one; defaults count as missing.

        Raises:
          TypeError: they do not fit the signature.
        """
        if len(args) > self._positional:
            self._refuse(args, kwargs)
        values = [*args, *[MISSING] * (len(self._defaults) - len(args))]
        for name, value in kwargs.items():
            slot = self._slots.get(name)
            if slot is None or values[slot] is not MISSING:
                self._refuse(args, kwargs)
            values[slot] = value
        if any(value is MISSING for value in values[: self._required]):
            self._refuse(args, kwargs)
        # So clamp(x, 0.0, None) is of one kind with clamp(x, 0.0), and shares its plan.
        values = [MISSING if value is default else value for value, default in zip(values, self._defaults, strict=True)]
        while values and values[-1] is MISSING:
            values.pop()
        return values

    def without_forms(self, values: Sequence[Any]) -> list[Any]:
        """Return the arguments by slot without those that ask for another form."""
        return [MISSING if slot in self.forms.values() else value for slot, value in enumerate(values)]

    def by_jax_name(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments by slot and all defaults, under the names of jaxclamp."""
        values = [*values, *[MISSING] * (len(self._defaults) - len(values))]
        return {
            name: self._defaults[slot] if values[slot] is MISSING else values[slot]
            for slot, name in self.jax_names.items()
        }

    def _refuse(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoReturn:
        repeated = [name for name in kwargs if self._slots.get(name, len(args)) < len(args)]
        try:
            self.inspected.bind(*args, **kwargs)
            raise TypeError(f"got two values for one argument, {' and '.join(map(repr, repeated or kwargs))}")
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}; its arguments are ({self}).") from None


def _parameters_in_torch(op: Op, names_in_torch: Mapping[str, str]) -> dict[str, inspect.Parameter]:
    """Map the names of parameters in jaxclamp to the parameters in torch, in the order that these have there."""
    parameters: dict[str, inspect.Parameter] = {}
    for name in (*names_in_torch, "ties"):
        if name in op.signature.parameters:
            parameters[name] = op.signature.parameters[name].replace(
                name={**names_in_torch, **_TORCH_NAMES}.get(name, name),
                annotation=_tensor_type(name, op.types[name]) if name in op.arrays else op.types[name],
            )
    return parameters


def _tensor_type(name: str, annotation: Any) -> Any:
    """Return the type in torch of a parameter that takes arrays in jaxclamp; all but the first take numbers too."""
    taken = torch.Tensor if name == "x" else torch.Tensor | float
    return taken | None if type(None) in typing.get_args(annotation) else taken
