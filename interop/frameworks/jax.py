"""JAX as one of the frameworks that are compared."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

import jaxclamp
from interop.frameworks.base import (
    NOTHING_TO_DIFFERENTIATE,
    Array,
    Convertible,
    Function,
    Question,
    differentiated_in_words,
    is_float,
    needs_64_bits,
    total,
)
from interop.frameworks.reseed import redrawn_in_jax
from jaxclamp import TieReport


class Jax(Convertible):
    """JAX, reverse mode."""

    name = "jax"
    version = f"jax {jax.__version__}"

    def answer(
        self,
        function: Function,
        arguments: Mapping[str, Any],
        active: Collection[str],
        summed: Callable[[Any], Any] = total,
    ) -> tuple[Any, dict[str, Array]]:
        with jax.enable_x64(needs_64_bits(arguments.values())):
            # Copies, since a result may be an argument as it came, and the caller may write to that.
            given = {name: jnp.array(v, copy=True) if isinstance(v, np.ndarray) else v for name, v in arguments.items()}
            answer = _differentiated(function, given, active, summed)
            result, gradient = jax.tree.map(np.asarray, answer)
        return result, {name: gradient[name] for name in active}

    def answers(self, questions: Sequence[Question]) -> list[tuple[Any, dict[str, Array]] | TypeError]:
        """As of any framework, in one program: compiling takes longer than all else.

        Questions that differ in the numbers in their arrays alone are a batch.
        """
        batches: dict[Any, list[int]] = {}
        for i, question in enumerate(questions):
            # By repr, since -0.0 equals 0.0.
            forms = {n: (v.shape, v.dtype) if isinstance(v, np.ndarray) else v for n, v in question.arguments.items()}
            batches.setdefault((question.function, question.active, repr(forms)), []).append(i)
        stacks = [_stacked([questions[i].arguments for i in batch]) for batch in batches.values()]
        refusals: dict[int, TypeError] = {}

        def program(stacks: Sequence[Mapping[str, jax.Array]]) -> list[Any]:
            answers: list[Any] = []
            for k, ((first, *_), stack) in enumerate(zip(batches.values(), stacks, strict=True)):
                answer = functools.partial(_answer_one, questions[first])
                try:
                    answers.append(_of_each(answer, stack))
                except TypeError as refusal:
                    refusals[k] = refusal
                    answers.append(None)
            return answers

        with jax.enable_x64(needs_64_bits(itertools.chain.from_iterable(stack.values() for stack in stacks))):
            answers = jax.tree.map(np.asarray, jax.jit(program)(stacks))
        found: dict[int, tuple[Any, dict[str, Array]] | TypeError] = {}
        for k, batch in enumerate(batches.values()):
            for place, i in enumerate(batch):
                found[i] = refusals[k] if k in refusals else jax.tree.map(operator.itemgetter(place), answers[k])
        return [found[i] for i in range(len(questions))]

    def directional_derivative(
        self, function: Function, arguments: Mapping[str, Any], tangents: Mapping[str, Array]
    ) -> float:
        given = {name: jnp.array(v) if isinstance(v, np.ndarray) else v for name, v in arguments.items()}
        chosen = {name: given[name] for name in tangents}
        moved = {name: jnp.array(tangent) for name, tangent in tangents.items()}
        _, derivative = jax.jvp(lambda active: total(function({**given, **active})), (chosen,), (moved,))
        return float(derivative)

    def attempt(self, function: Function, arguments: Mapping[str, Array]) -> None:
        with jax.enable_x64(needs_64_bits(arguments.values())):
            jax.eval_shape(function, arguments)

    def min_norm(self, function: Function) -> Function:
        wrapped: Function = jaxclamp.min_norm(function)
        return wrapped

    def redrawn(self, function: Function) -> Function:
        return redrawn_in_jax(function)

    def bounds(self, function: Function, arguments: Mapping[str, Array]) -> set[float]:
        """The numbers in its program."""
        with jax.enable_x64(needs_64_bits(arguments.values())):
            program: Any = jax.make_jaxpr(function)(arguments)
        return {float(number) for number in _numbers(program, program.consts)}

    def ties(self, function: Function, arguments: Mapping[str, Array], influence: bool) -> TieReport:
        def of_floats(given: Mapping[str, jax.Array]) -> Any:
            return total(jax.tree.map(jnp.asarray, function(given)))

        with jax.enable_x64(needs_64_bits(arguments.values())):
            given = {name: jnp.asarray(array) for name, array in arguments.items()}
            if influence and not any(map(is_float, given.values())):
                raise ValueError(NOTHING_TO_DIFFERENTIATE)
            _, report = jaxclamp.ties(of_floats, influence=influence)(given)
            if not influence:
                return report
            held = [constant for constant in jax.make_jaxpr(of_floats)(given).consts if is_float(constant)]
        missing = f"what the function holds ({len(held)} arrays; pass them as inputs)" if held else ""
        return replace(report, differentiated=differentiated_in_words(arguments, "", missing))


def _numbers(jaxpr: Jaxpr, constants: Iterable[Any]) -> Iterator[Any]:
    """The finite numbers among the constants of a program, and those of the functions that it calls."""
    atoms = (atom for eqn in jaxpr.eqns for atom in eqn.invars)
    for constant in (*constants, *(atom.val for atom in atoms if isinstance(atom, Literal))):
        if np.ndim(constant) == 0 and jnp.issubdtype(jnp.result_type(constant), jnp.floating) and np.isfinite(constant):
            yield constant
    for eqn in jaxpr.eqns:
        for inner in jaxprs_in_params(eqn.params):
            yield from _numbers(inner, ())


def _differentiated(
    function: Function, given: Mapping[str, Any], active: Collection[str], summed: Callable[[Any], Any]
) -> tuple[Any, dict[str, jax.Array]]:
    """The result of a function of JAX, and the gradient."""

    def with_result(chosen: Mapping[str, jax.Array]) -> tuple[Any, Any]:
        result = jax.tree.map(jnp.asarray, function({**given, **chosen}))
        return summed(result), result

    chosen = {name: given[name] for name in active}
    answer: tuple[dict[str, jax.Array], Any] = jax.grad(with_result, has_aux=True)(chosen)
    gradient, result = answer
    return result, gradient


def _answer_one(question: Question, arrays: Mapping[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
    """The answer to ``question`` with these ``arrays`` in place of its own."""
    return _differentiated(question.function, {**question.arguments, **arrays}, question.active, total)


def _of_each(answer: Callable[[Mapping[str, jax.Array]], Any], stack: Mapping[str, jax.Array]) -> Any:
    """What ``answer`` returns for each place in the stack."""
    if {len(arrays) for arrays in stack.values()} != {1}:
        return jax.vmap(answer)(stack)
    # For one alone vmap would take longer.
    return jax.tree.map(lambda leaf: leaf[None], answer({name: arrays[0] for name, arrays in stack.items()}))


def _stacked(arguments: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The arrays among the arguments of several calls, with one axis more."""
    names = [name for name, value in arguments[0].items() if isinstance(value, np.ndarray)]
    return {name: np.stack([given[name] for given in arguments]) for name in names}
