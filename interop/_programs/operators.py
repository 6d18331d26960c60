"""The functions that choose, under the names by which torch's own code calls them.

These are operators, `torch.ops.aten.relu` and each of its overloads; the bindings that functions of torch.nn call; and
functions of many tensors, of which optimizers are made. An operator has the arguments of its schema: a number for
``reduction``, and pairs where the documented function has one result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import resolve_name

from interop._torch.forms import overwrite
from interop._torch.private_api import bindings_named, foreach_named, operators_named, schema_of

Rule = Callable[..., Any]

_REDUCTIONS = ("none", "mean", "sum")
"""By the number that operators have for it."""


def operators_of(choices: Mapping[Any, Rule]) -> Iterator[tuple[Rule, Rule]]:
    """The operators behind the documented functions in ``choices``, each with the rule of its function."""
    documented = dict(_documented(choices))
    for name, own in documented.items():
        forms = {name: choices[own]}
        if name == "to":
            forms["_to_copy"] = forms[name]
        if f"{name}_" not in documented:
            forms[f"{name}_"] = overwriting(f"{name}_", choices[own])
        for form, rule in forms.items():
            for operator in (*bindings_named(form), *operators_named(form)):
                if operator not in choices:
                    pair = documented.get(f"{form}_with_indices")
                    yield operator, functools.partial(_of_operator, operator, own, rule, pair and choices[pair])
            for each in foreach_named(form):
                yield each, functools.partial(_of_each, rule)
        for kernel in (f"{name}_backward", f"_{name}_kernel"):
            for operator in (*bindings_named(kernel), *operators_named(kernel)):
                yield operator, functools.partial(_refuse_kernel, operator, own)


def _documented(choices: Mapping[Any, Rule]) -> Iterator[tuple[str, Rule]]:
    for home in (torch.special, torch.linalg, functional, torch.Tensor, torch):
        for own in (getattr(home, name) for name in dir(home)):
            if inspect.isroutine(own) and own in choices and not own.__name__.startswith("_"):
                yield own.__name__, own


def _of_operator(operator: Any, own: Rule, rule: Rule, pair: Rule | None, *args: Any, **kwargs: Any) -> Any:
    """``rule``, the one of the documented function ``own``, with the arguments of an operator.

    ``pair`` is the rule of the function that has indices besides, if there is one.
    """
    schema = schema_of(operator, args, kwargs)
    values = dict(zip((argument.name for argument in schema.arguments), args, strict=False))
    values |= {"self" if name == "input" else name: value for name, value in kwargs.items()}
    needed, optional = [], {}
    for argument in schema.arguments:
        if not argument.has_default_value() and not argument.kwarg_only:
            needed.append(values[argument.name])
        elif argument.name in values and not _is_default(values[argument.name], argument):
            value = values[argument.name]
            optional[argument.name] = _REDUCTIONS[value] if argument.name == "reduction" else value
        elif argument.name == "reduction" and argument.name not in values and inspect.isbuiltin(operator):
            optional["reduction"] = "none"  # bindings of torch do not know the default of their schema
    rule = pair if pair is not None and len(schema.returns) == 2 else rule
    try:
        inspect.signature(rule).bind(*needed, **optional)
    except TypeError as error:
        raise NotImplementedError(
            f"{operator.__name__}: choices are decided for the arguments of {resolve_name(own)}; call that. ({error})"
        ) from error
    return rule(*needed, **optional)


def _is_default(value: Any, argument: torch.Argument) -> bool:
    return argument.has_default_value() and not isinstance(value, torch.Tensor) and value == argument.default_value


def _refuse_kernel(operator: Any, own: Rule, *args: Any, **kwargs: Any) -> Any:
    """Refuse a part of ``own`` or of its derivative, which has torch's slopes; not that of a pool, told the indices."""
    if any(argument.name == "indices" for argument in schema_of(operator, args, kwargs).arguments):
        return operator(*args, **kwargs)
    raise NotImplementedError(
        f"{operator.__name__} takes torch's slopes at ties; call {resolve_name(own)}, whose choices are decided, and "
        "differentiate that by torch.func.grad or torch.autograd.grad."
    )


def overwriting(name: str, rule: Rule) -> Rule:
    """The form of ``rule``, called ``name``, that overwrites its first argument."""

    @functools.wraps(rule)
    def overwritten(input: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
        return overwrite(name, functools.partial(rule, **kwargs), input, *rest)

    return overwritten


def _of_each(rule: Rule, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> list[Any]:
    """``rule`` of each of the tensors, with what the other arguments have for it: one for all, or one for each."""
    operands = [*args, *(kwargs.pop(name) for name in ("scalar", "scalars", "other") if name in kwargs)]
    return [
        rule(tensor, *(x[i] if isinstance(x, Sequence) else x for x in operands), **kwargs)
        for i, tensor in enumerate(tensors)
    ]
