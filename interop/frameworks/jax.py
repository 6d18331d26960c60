"""JAX as a framework that is compared, and whose functions `interop.compare` takes."""

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

import jaxclamp
from interop.frameworks.base import (
    NOTHING_TO_DIFFERENTIATE,
    Arguments,
    Array,
    Arrays,
    Convertible,
    Function,
    Gradient,
    Question,
    Refusal,
    converted,
    differentiated_in_words,
    is_float,
    needs_64_bits,
    total,
)
from interop.frameworks.reseed import reseeded_in_jax
from jaxclamp import TieReport
from jaxclamp._transforms.jaxprs import equations


class Jax(Convertible):
    """JAX, reverse mode."""

    name = "jax"
    version = f"jax {jax.__version__}"

    def differentiate(
        self, function: Function, arguments: Arguments, active: Collection[str], summed: Callable[[Any], Any] = total
    ) -> Gradient:
        with jax.enable_x64(needs_64_bits(arguments.values())):
            # Copies, since a result may be an argument as it came, and the caller may write to that.
            copies = converted(arguments, functools.partial(jnp.array, copy=True))
            result, gradient = jax.tree.map(np.asarray, _result_and_gradient(function, copies, active, summed))
        return Gradient(result, {name: gradient[name] for name in active})

    def differentiate_all(self, questions: Sequence[Question]) -> list[Gradient | Refusal]:
        """Differentiate all questions in one program, as compiling takes longer than all else.

        Questions that differ in the numbers in their arrays alone are one batch. So clamp at x=0 and at x=6 with
        min=0, max=6 is one call of vmap, and with max=None a second one, beside it in the same program.
        """
        batches: dict[Any, list[int]] = {}
        for i, question in enumerate(questions):
            # By repr, since -0.0 equals 0.0.
            forms = {n: (v.shape, v.dtype) if isinstance(v, np.ndarray) else v for n, v in question.arguments.items()}
            batches.setdefault((question.function, question.active, repr(forms)), []).append(i)
        stacks = [_stacked([questions[i].arguments for i in batch]) for batch in batches.values()]
        refusals: dict[int, Refusal] = {}

        def program(stacks: Sequence[Mapping[str, jax.Array]]) -> list[Any]:
            results: list[Any] = []
            for k, ((first, *_), stack) in enumerate(zip(batches.values(), stacks, strict=True)):
                try:
                    results.append(jax.vmap(functools.partial(_differentiate_at, questions[first]))(stack))
                except TypeError as error:  # while it is traced: the rest of the program goes on without it
                    refusals[k] = Refusal(str(error))
                    results.append(None)
            return results

        with jax.enable_x64(needs_64_bits(itertools.chain.from_iterable(stack.values() for stack in stacks))):
            results = jax.tree.map(np.asarray, jax.jit(program)(stacks))
        answers: dict[int, Gradient | Refusal] = {}
        for k, batch in enumerate(batches.values()):
            for place, i in enumerate(batch):
                answers[i] = refusals.get(k) or Gradient(*jax.tree.map(operator.itemgetter(place), results[k]))
        return [answers[i] for i in range(len(questions))]

    def attempt(self, function: Function, arguments: Arrays) -> None:
        with jax.enable_x64(needs_64_bits(arguments.values())):
            jax.eval_shape(function, arguments)

    def min_norm(self, function: Function) -> Function:
        return jaxclamp.min_norm(function)

    reseeded = staticmethod(reseeded_in_jax)

    def bounds(self, function: Function, arguments: Arrays) -> set[float]:
        """Collect the finite numbers in its program, and in those of the functions that it calls."""
        with jax.enable_x64(needs_64_bits(arguments.values())):
            program: Any = jax.make_jaxpr(function)(arguments)
        # Arrays are data more often than bounds, and a probe draws from these numbers alike.
        atoms = (atom for outer in program.eqns for eqn in equations(outer) for atom in eqn.invars)
        numbers = (*program.consts, *(atom.val for atom in atoms if isinstance(atom, Literal)))
        are_floats = (np.ndim(n) == 0 and jnp.issubdtype(jnp.result_type(n), jnp.floating) for n in numbers)
        return {float(n) for n in itertools.compress(numbers, are_floats) if np.isfinite(n)}

    def ties(self, function: Function, arguments: Arrays, influence: bool) -> TieReport:
        def of_floats(operands: Mapping[str, jax.Array]) -> Any:
            return total(jax.tree.map(jnp.asarray, function(operands)))

        with jax.enable_x64(needs_64_bits(arguments.values())):
            operands = {name: jnp.asarray(array) for name, array in arguments.items()}
            if influence and not any(map(is_float, operands.values())):
                raise ValueError(NOTHING_TO_DIFFERENTIATE)
            _, report = jaxclamp.ties(of_floats, influence=influence)(operands)
            if not influence:
                return report
            held = [constant for constant in jax.make_jaxpr(of_floats)(operands).consts if is_float(constant)]
        missing = f"what the function holds ({len(held)} arrays; pass them as inputs)" if held else ""
        return replace(report, differentiated=differentiated_in_words(arguments, "", missing))


def _result_and_gradient(
    function: Function, operands: Mapping[str, Any], active: Collection[str], summed: Callable[[Any], Any]
) -> tuple[Any, dict[str, jax.Array]]:
    """Call a function of JAX, and differentiate the number that ``summed`` makes of its result."""

    def sum_and_result(chosen: Mapping[str, jax.Array]) -> tuple[Any, Any]:
        result = jax.tree.map(jnp.asarray, function({**operands, **chosen}))  # may be a number
        return summed(result), result

    gradient, result = jax.grad(sum_and_result, has_aux=True)({name: operands[name] for name in active})
    return result, gradient


def _differentiate_at(question: Question, arrays: Mapping[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
    """Differentiate the function of ``question`` with these ``arrays`` in place of those in its arguments."""
    return _result_and_gradient(question.function, {**question.arguments, **arrays}, question.active, total)


def _stacked(calls: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Stack the arrays among the arguments of several calls, name by name."""
    names = [name for name, value in calls[0].items() if isinstance(value, np.ndarray)]
    return {name: np.stack([arguments[name] for arguments in calls]) for name in names}
