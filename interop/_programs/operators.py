"""The functions that choose, under the names by which torch's own code calls them.

These are operators, `torch.ops.aten.relu` and each of its overloads; the bindings that functions of torch.nn call; and
functions of many tensors, of which optimizers are made. An operator has the arguments of its schema: a number for
``reduction``, and pairs where the documented function has one result.

Say a program calls ``aten.l1_loss(x, y, 2)``. The documented function behind it is `torch.nn.functional.l1_loss`, and
the schema says that the third argument is ``reduction``. So the choice of that function is called, as
``choice(x, y, reduction="sum")``.

Torch decomposes `selu` to an ``elu`` with a scale: for this one the choice of `selu` is called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import resolve_name

from interop._programs.choices.kinks import overwrite_by
from interop._torch.forms import HOMES, of_each
from interop._torch.private_api import bindings_named, foreach_named, operators_named, schema_of
from jaxclamp.kinked import SELU_ALPHA, SELU_SCALE

Function = Callable[..., Any]

_REDUCTIONS = ("none", "mean", "sum")
"""The names of what operators have as the numbers 0, 1 and 2."""
_OF_SELU = {"alpha": SELU_ALPHA, "scale": SELU_SCALE}
"""The arguments by which the operator `elu` is `selu`."""


def operators_of(choices: Mapping[Any, Function]) -> Iterator[tuple[Function, Function]]:
    """Yield the operators and bindings behind the documented functions in ``choices``, and what replaces each."""
    documented = dict(_documented(choices))
    for in_torch, form, choice in _forms_of(choices):
        for operator in (*bindings_named(form), *operators_named(form)):
            if operator not in choices:
                pooled = documented.get(f"{form}_with_indices")
                with_indices = pooled and choices[pooled]
                selu = choices[documented[f"s{form}"]] if form in ("elu", "elu_") else None
                yield operator, functools.partial(_of_operator, operator, in_torch, choice, with_indices, selu)


def parts_of(choices: Mapping[Any, Function]) -> Iterator[tuple[Function, Function]]:
    """Yield what torch's optimizers and derivatives are made of, and what replaces each.

    These are the forms for many tensors, and the kernels of derivatives, which are refused.
    """
    for in_torch, form, choice in _forms_of(choices):
        for each in foreach_named(form):
            yield each, functools.partial(of_each, choice)
        for kernel in (f"{form}_backward", f"_{form}_kernel"):
            for operator in (*bindings_named(kernel), *operators_named(kernel)):
                yield operator, functools.partial(_refuse_kernel, operator, in_torch)


def _forms_of(choices: Mapping[Any, Function]) -> Iterator[tuple[Function, str, Function]]:
    """Yield a documented function, the name of one of its forms, and the choice of that form."""
    for name, in_torch in dict(_documented(choices)).items():
        yield in_torch, name, choices[in_torch]
        # The operator may have a form in place though the function has none.
        yield in_torch, f"{name}_", overwriting(f"{name}_", choices[in_torch])


def _documented(choices: Mapping[Any, Function]) -> Iterator[tuple[str, Function]]:
    """Yield the functions in ``choices`` by name; of equal names the last one counts, that of `torch` itself."""
    for home in reversed(HOMES.values()):
        for function in (getattr(home, name) for name in dir(home)):
            if inspect.isroutine(function) and function in choices:
                yield function.__name__, function


def _of_operator(
    operator: Any,
    in_torch: Function,
    choice: Function,
    with_indices: Function | None,
    selu: Function | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call ``choice``, that of the documented function ``in_torch``, with the arguments of an operator.

    An operator of two results has the choice ``with_indices``, if there is one, and `elu` with those of `selu` that.
    """
    schema = schema_of(operator, args, kwargs)
    values = dict(zip((argument.name for argument in schema.arguments), args, strict=False))  # others have defaults
    # Schemas call the first argument ``self``, and Python's bindings ``input``.
    values |= {"self" if name == "input" else name: value for name, value in kwargs.items()}
    needed: list[Any] = []
    optional: dict[str, Any] = {}
    for argument in schema.arguments:
        value = values.get(argument.name, argument.default_value)
        if argument.name == "reduction":
            # A binding that is called without it reduces nothing, whatever its schema says: torch._C._nn.l1_loss(x, y)
            # has the shape of x, and torch.ops.aten.l1_loss(x, y) is the mean.
            is_default_of_binding = inspect.isbuiltin(operator) and argument.name not in values
            optional["reduction"] = "none" if is_default_of_binding else _REDUCTIONS[value]
        elif not argument.has_default_value() and not argument.kwarg_only:
            needed.append(value)
        elif value != argument.default_value:  # else left out: the documented function may have no such parameter
            optional[argument.name] = value
    if with_indices is not None and len(schema.returns) == 2:
        choice = with_indices
    if selu is not None and optional == _OF_SELU:
        choice, optional = selu, {}
    try:
        inspect.signature(choice).bind(*needed, **optional)
    except TypeError as error:
        raise NotImplementedError(
            f"{operator.__name__}: choices are decided for the arguments of {resolve_name(in_torch)}; call that. "
            f"({error})"
        ) from error
    return choice(*needed, **optional)


def _refuse_kernel(operator: Any, in_torch: Function, *args: Any, **kwargs: Any) -> Any:
    """Refuse a part of ``in_torch`` or of its derivative, which has torch's slopes.

    The derivative of a pool is none of these: it gets the indices, which were chosen before. Nor is a kernel that gets
    a mask of int8, as `selections.abs` passes one: a block within this one has chosen.
    """
    names = [argument.name for argument in schema_of(operator, args, kwargs).arguments]
    operand = {**dict(zip(names, args, strict=False)), **kwargs}.get("self")  # others have defaults
    if "indices" in names or getattr(operand, "dtype", None) is torch.int8:
        return operator(*args, **kwargs)
    raise NotImplementedError(
        f"{operator.__name__} takes torch's slopes at ties; call {resolve_name(in_torch)}, whose choices are decided, "
        "and differentiate that by torch.func.grad or torch.autograd.grad."
    )


def overwriting(name: str, choice: Function) -> Function:
    """Return the form of ``choice``, called ``name``, that overwrites its first argument."""

    @functools.wraps(choice)
    def overwritten(input: torch.Tensor, *operands: Any, **kwargs: Any) -> torch.Tensor:
        return overwrite_by(name, functools.partial(choice, **kwargs), input, *operands)

    return overwritten
