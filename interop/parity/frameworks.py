"""How to ask JAX and torch for a gradient in the same words."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import jaxclamp
from interop._bridge.arrays import X64, lend, tensor_over
from interop._convention.min_norm import min_norm
from interop._convention.ties import influence as influence_of
from interop._convention.ties import ties
from interop._private_torch import version_of
from interop.parity.redrawn import redrawn_in_jax, redrawn_in_torch
from jaxclamp import OPS, TieReport
from jaxclamp._counterparts import Counterpart

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Function: TypeAlias = Callable[[Mapping[str, Any]], Any]


def total(result: Any) -> Any:
    """The sum of the floats in a pytree of arrays of either framework."""
    return sum((leaf.sum() for leaf in jax.tree.leaves(result) if _is_float(leaf)), start=0.0)


def weighted_total(result: Any) -> Any:
    """The sum of the floats with a weight for each, as the plain one may be constant (softmax, normalizations).

    The weights depend on the position of the leaf and the index alone; 1 in a leaf of one number. They are multiples
    of 1/128 from 0.5 up to 1.5, which every dtype of 16 bits or more holds exactly. A complex number counts as two
    floats.
    """
    leaves = enumerate(map(_as_floats, jax.tree.leaves(result)))
    return sum(((leaf * _weights(i, leaf)).sum() for i, leaf in leaves if _is_float(leaf)), start=0.0)


def _weights(position: int, leaf: Any) -> Any:
    if math.prod(leaf.shape) == 1:
        return 1
    # The numbers of RandomState, unlike those of default_rng, are the same in every version of NumPy.
    weights = 0.5 + np.random.RandomState(position).randint(128, size=leaf.shape, dtype=np.int64) / 128
    return torch.from_numpy(weights).to(leaf) if isinstance(leaf, torch.Tensor) else weights.astype(leaf.dtype)


def _as_floats(leaf: Any) -> Any:
    """Complex numbers as pairs, an axis more; all else as it is."""
    if isinstance(leaf, torch.Tensor):
        return torch.stack([leaf.real, leaf.imag], dim=-1) if leaf.is_complex() else leaf
    return jnp.stack([leaf.real, leaf.imag], axis=-1) if jnp.iscomplexobj(leaf) else leaf


def _is_float(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.is_floating_point()
    return jnp.issubdtype(leaf.dtype, jnp.floating)


NOTHING_TO_DIFFERENTIATE = "there is no array of floats among the inputs to differentiate by, and no parameter."


@dataclass(frozen=True)
class Question:
    """A call ``function(arguments)``, to be differentiated with respect to the ``active`` arguments."""

    function: Function
    arguments: Mapping[str, Any]
    active: tuple[str, ...]


class Framework(ABC):
    """A library that differentiates."""

    name: str
    """As its functions are imported: the first part of their dotted names."""
    version: str

    @abstractmethod
    def answer(
        self, function: Function, arguments: Mapping[str, Any], active: Collection[str]
    ) -> tuple[Any, dict[str, Array]]:
        """``function(arguments)``, and the gradient of the sum of its floats with respect to the ``active`` arguments.

        NumPy arrays among the arguments become arrays of the framework, all else stays as it is; the results are
        NumPy arrays again. A dtype or a form of the arguments that the framework does not take is a TypeError.
        """

    def value_and_gradient(
        self, function: Function, arguments: Mapping[str, Any], active: Collection[str], dtype: str
    ) -> tuple[float, dict[str, Array]]:
        """The one answer of `values_and_gradients`; a TypeError is raised."""
        (answer,) = self.values_and_gradients([Question(function, arguments, tuple(active))], dtype)
        if isinstance(answer, TypeError):
            raise answer
        return answer

    def answers(self, questions: Sequence[Question]) -> list[tuple[Any, dict[str, Array]] | TypeError]:
        """What `answer` returns for each of the questions, or the TypeError that it raises."""
        found: list[tuple[Any, dict[str, Array]] | TypeError] = []
        for question in questions:
            try:
                found.append(self.answer(question.function, question.arguments, question.active))
            except TypeError as refusal:
                found.append(refusal)
        return found

    def forward_gradient(
        self, function: Function, arguments: Mapping[str, Any], active: Collection[str]
    ) -> dict[str, Array]:
        """The gradient that `answer` gives, by forward mode: a directional derivative for each element.

        NotImplementedError where the framework has no forward mode, or the function has none there.
        """
        found: dict[str, Array] = {}
        for name in active:
            elements = []
            for i in range(arguments[name].size):
                tangents = {other: np.zeros_like(arguments[other]) for other in active}
                tangents[name].flat[i] = 1
                elements.append(self.directional_derivative(function, arguments, tangents))
            found[name] = np.reshape(np.array(elements, arguments[name].dtype), arguments[name].shape)
        return found

    def directional_derivative(
        self, function: Function, arguments: Mapping[str, Any], tangents: Mapping[str, Array]
    ) -> float:
        """That of the sum of the floats of ``function(arguments)``, by forward mode, along the ``tangents``."""
        raise NotImplementedError(f"{self.name} has no forward mode.")

    def values_and_gradients(
        self, questions: Sequence[Question], dtype: str
    ) -> list[tuple[float, dict[str, Array]] | TypeError]:
        """For each of the questions, with arrays rounded to ``dtype``, the sum of the floats of ``function``, and its
        gradient as float64; or the TypeError of a framework that does not take it, or answers in a narrower dtype.
        """
        rounded = [
            replace(
                question,
                arguments={
                    name: value.astype(jnp.dtype(dtype)) if isinstance(value, np.ndarray) else value
                    for name, value in question.arguments.items()
                },
            )
            for question in questions
        ]
        return [self._in_float64(answer, dtype) for answer in self.answers(rounded)]

    def _in_float64(
        self, answer: tuple[Any, dict[str, Array]] | TypeError, dtype: str
    ) -> tuple[float, dict[str, Array]] | TypeError:
        if isinstance(answer, TypeError):
            return answer
        result, gradient = answer
        for found in gradient.values():
            if jnp.finfo(found.dtype).bits < jnp.finfo(dtype).bits:
                return TypeError(f"{self.name} answers in {found.dtype}, which is narrower than {dtype}.")
        return float(total(result)), {name: g.astype(np.float64) for name, g in gradient.items()}


class Convertible(Framework):
    """One whose functions can be put under the convention, and examined for ties."""

    @abstractmethod
    def answer(
        self,
        function: Function,
        arguments: Mapping[str, Any],
        active: Collection[str],
        summed: Callable[[Any], Any] = total,
    ) -> tuple[Any, dict[str, Array]]:
        """As for any framework; ``summed`` makes the number to differentiate of the result, in place of `total`."""

    @abstractmethod
    def attempt(self, function: Function, arguments: Mapping[str, Array]) -> None:
        """Raise what ``function`` raises when it is traced or run."""

    @abstractmethod
    def min_norm(self, function: Function) -> Function:
        """``function`` under the convention."""

    @abstractmethod
    def redrawn(self, function: Function) -> Function:
        """``function`` with other random numbers than it draws by itself, if it draws any."""

    @abstractmethod
    def bounds(self, function: Function, arguments: Mapping[str, Array]) -> set[float]:
        """Numbers that ``function(arguments)`` may compare with: where there are ties, or values of another piece."""

    @abstractmethod
    def ties(self, function: Function, arguments: Mapping[str, Array], influence: bool) -> TieReport:
        """Where ties happen in ``function(arguments)``, and how far they move the gradient of the sum of its floats."""


class Adapter(Framework):
    """One that is only compared, and need not be installed: making the object imports it, or raises ImportError.

    The functions that it is asked about return one array.
    """

    requirement: ClassVar[str]
    """What pip installs."""
    counterparts: ClassVar[Mapping[str, str | tuple[str, ...]]]
    """By the name of an op, its spelling there, or several, written as in the record of the op."""

    @classmethod
    def counterparts_of(cls, op: str) -> tuple[Counterpart, ...]:
        """The spellings of the op of that name."""
        written = cls.counterparts.get(op, ())
        return tuple(map(Counterpart, (written,) if isinstance(written, str) else written))


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
        with jax.enable_x64(_needs_64_bits(arguments.values())):
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

        with jax.enable_x64(_needs_64_bits(itertools.chain.from_iterable(stack.values() for stack in stacks))):
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
        with jax.enable_x64(_needs_64_bits(arguments.values())):
            jax.eval_shape(function, arguments)

    def min_norm(self, function: Function) -> Function:
        wrapped: Function = jaxclamp.min_norm(function)
        return wrapped

    def redrawn(self, function: Function) -> Function:
        return redrawn_in_jax(function)

    def bounds(self, function: Function, arguments: Mapping[str, Array]) -> set[float]:
        """The numbers in its program."""
        with jax.enable_x64(_needs_64_bits(arguments.values())):
            program: Any = jax.make_jaxpr(function)(arguments)
        return {float(number) for number in _numbers(program, program.consts)}

    def ties(self, function: Function, arguments: Mapping[str, Array], influence: bool) -> TieReport:
        def of_floats(given: Mapping[str, jax.Array]) -> Any:
            return total(jax.tree.map(jnp.asarray, function(given)))

        with jax.enable_x64(_needs_64_bits(arguments.values())):
            given = {name: jnp.asarray(array) for name, array in arguments.items()}
            if influence and not any(map(_is_float, given.values())):
                raise ValueError(NOTHING_TO_DIFFERENTIATE)
            _, report = jaxclamp.ties(of_floats, influence=influence)(given)
            if not influence:
                return report
            held = [constant for constant in jax.make_jaxpr(of_floats)(given).consts if _is_float(constant)]
        missing = f"what the function holds ({len(held)} arrays; pass them as inputs)" if held else ""
        return replace(report, differentiated=_differentiated_in_words(arguments, "", missing))


def _differentiated_in_words(arguments: Mapping[str, Array], held: str, missing: str = "") -> str:
    """The inputs that are floats, and what the function holds; behind "not" the others, and what is missing."""
    floats = [label for label, array in arguments.items() if _is_float(array)]
    others = [f"{label} ({array.dtype})" for label, array in arguments.items() if not _is_float(array)]
    with_respect_to = " and ".join(filter(None, (f"the inputs {', '.join(floats)}" if floats else "", held)))
    without = " and ".join(filter(None, (", ".join(others), missing)))
    return f"{with_respect_to}, but not {without}," if without else with_respect_to


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


_TAKES_A_STEP = (
    "ties: the function differentiates by itself, or overwrites its parameters; pass one that computes the loss alone."
)


class Torch(Convertible):
    """PyTorch, reverse mode; its random numbers on CPU are the same at each call, as the state is put back."""

    name = "torch"
    version = f"torch {torch.__version__.partition('+')[0]}"

    def answer(
        self,
        function: Function,
        arguments: Mapping[str, Any],
        active: Collection[str],
        summed: Callable[[Any], Any] = total,
    ) -> tuple[Any, dict[str, Array]]:
        tensors = {
            name: tensor_over(value.copy()).requires_grad_(name in active)
            for name, value in arguments.items()
            if isinstance(value, np.ndarray)
        }
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            # Clones, since torch refuses to overwrite a leaf that requires grad.
            result = function({**arguments, **{name: tensor.clone() for name, tensor in tensors.items()}})
            result = jax.tree.map(_to_tensor, _with_plain_tuples(result))
            differentiable = _differentiable(summed(result))
        chosen = [tensors[name] for name in active]
        gradients = (
            torch.autograd.grad(differentiable, chosen, allow_unused=True, materialize_grads=True) if chosen else ()
        )
        gradient = dict(zip(active, gradients, strict=True))
        answer: tuple[Any, dict[str, Array]] = jax.tree.map(lambda tensor: np.array(lend(tensor)), (result, gradient))
        return answer

    def directional_derivative(
        self, function: Function, arguments: Mapping[str, Any], tangents: Mapping[str, Array]
    ) -> float:
        given = {name: tensor_over(v.copy()) if isinstance(v, np.ndarray) else v for name, v in arguments.items()}
        with forward_ad.dual_level():
            duals = {n: forward_ad.make_dual(given[n], tensor_over(tangent)) for n, tangent in tangents.items()}
            result = _with_plain_tuples(function({**given, **duals}))
            derivative = forward_ad.unpack_dual(total(result)).tangent
            return 0.0 if derivative is None else float(derivative)

    def attempt(self, function: Function, arguments: Mapping[str, Array]) -> None:
        self.answer(function, arguments, ())

    def min_norm(self, function: Function) -> Function:
        wrapped: Function = min_norm()(function)
        return wrapped

    def redrawn(self, function: Function) -> Function:
        return redrawn_in_torch(function)

    def bounds(self, function: Function, arguments: Mapping[str, Array]) -> set[float]:
        """The numbers in its calls of ops and comparisons, and the kinks that the ops have without them."""
        seen = _Compared()
        with seen:
            self.attempt(function, arguments)
        return seen.bounds

    def ties(self, function: Function, arguments: Mapping[str, Array], influence: bool) -> TieReport:
        tensors = {name: tensor_over(array.copy()) for name, array in arguments.items()}

        def of_floats() -> Any:  # of clones, since functions may overwrite their arguments
            return total(function({name: tensor.clone() for name, tensor in tensors.items()}))

        if influence:
            active = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
            for tensor in active.values():
                tensor.requires_grad_()
        with ties() as counted:
            value = of_floats()
        if not influence:
            return counted.report
        inputs = {id(tensor) for tensor in active.values()}
        leaves = leaves_behind(value) if isinstance(value, torch.Tensor) else []
        parameters = [leaf for leaf in leaves if id(leaf) not in inputs]
        if not active and not parameters:
            raise ValueError(NOTHING_TO_DIFFERENTIATE)
        versions = [version_of(leaf) for leaf in parameters]
        try:
            found = influence_of(lambda: _differentiable(of_floats()), [*active.values(), *parameters])
        except RuntimeError as error:
            if "second time" not in str(error) and versions == [version_of(leaf) for leaf in parameters]:
                raise
            raise ValueError(_TAKES_A_STEP) from error
        if versions != [version_of(leaf) for leaf in parameters]:
            raise ValueError(_TAKES_A_STEP)
        size = sum(leaf.numel() for leaf in parameters)
        held = f"{len(parameters)} parameters ({size} numbers)" if parameters else ""
        return replace(counted.report, influence=found, differentiated=_differentiated_in_words(arguments, held))


def leaves_behind(total: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that ``total`` is computed from and that require grad."""
    seen, nodes, leaves = set(), [total.grad_fn], []
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        nodes += [parent for parent, _ in node.next_functions]
    return leaves


class _Compared(TorchFunctionMode):
    """Collects the numbers that torch code compares with."""

    _COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "where", "threshold"})

    def __init__(self) -> None:
        super().__init__()
        self.bounds: set[float] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        if name in OPS or name in self._COMPARISONS:
            kinks = [point[0] for point in OPS[name].tie_points] if name in OPS else []
            given = (*args, *kwargs.values(), *kinks)
            numbers = (v.item() if isinstance(v, torch.Tensor) and v.numel() == 1 else v for v in given)
            self.bounds.update(float(n) for n in numbers if isinstance(n, int | float) and math.isfinite(n))
        return func(*args, **kwargs)


CONVERTIBLES: Mapping[str, Callable[[], Convertible]] = {"jax": Jax, "torch": Torch}
"""By their names, those whose functions can be compared."""


def frameworks_of(name: str, function: Function, arguments: Mapping[str, Array]) -> list[Convertible]:
    """Those that the function runs in, JAX first.

    Most run in one: torch refuses traced arrays, operators between the two included, and JAX refuses tensors.

    Raises:
      Exception: what the function raises, if that is the same in both, given arrays.
      TypeError: the function, which the message calls ``name``, runs in neither; the cause is what it raised in each.
    """
    found: list[Convertible] = []
    refusals: list[Exception] = []
    for framework in (made() for made in CONVERTIBLES.values()):
        try:
            framework.attempt(function, arguments)
            found.append(framework)
        except Exception as error:
            refusals.append(error)
    if found:
        return found
    in_jax, in_torch = refusals
    if arguments and repr(in_jax) == repr(in_torch):
        in_torch.add_note(f"{name} raised this with JAX arrays and with torch tensors.")
        raise in_torch
    reasons = [type(reason).__name__ + ": " + str(reason).partition("\n")[0] for reason in refusals]
    cure = "a function of one of them that returns arrays" if arguments else "arrays, such as numpy.float32(6.0)"
    hint = "".join(sorted({f" {hint}" for hint in map(hint_at_numpy, refusals) if hint}))
    raise TypeError(
        f"{name} takes neither JAX arrays ({reasons[0]}) nor torch tensors ({reasons[1]}); pass {cure}.{hint}"
    ) from ExceptionGroup(f"what {name} raised with JAX arrays, and with torch tensors", refusals)


def hint_at_numpy(error: Exception) -> str:
    """What to do about an error that comes of a function of NumPy inside one of a framework; empty for other errors."""
    of_torch = ("Can't call numpy() on Tensor that requires grad", "__array_wrap__")
    of_numpy = any(words in str(error) for words in of_torch)
    if not (of_numpy or isinstance(error, jax.errors.TracerArrayConversionError)):
        return ""
    return (
        "A function of NumPy, such as np.maximum, has no gradient in either framework: call the framework's own, such "
        "as torch.maximum or jnp.maximum."
    )


def _with_plain_tuples(result: Any) -> Any:
    """A result of torch with tuples in the place of its named ones, which are leaves for JAX."""
    return jax.tree.map(lambda leaf: tuple(leaf) if isinstance(leaf, tuple) else leaf, result)


def _to_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, jax.Array):
        raise TypeError("the result of torch's function is an array of JAX.")
    return torch.as_tensor(leaf)


def _differentiable(number: Any) -> torch.Tensor:
    """``number`` as a tensor of which torch takes gradients, if only zeros."""
    differentiable: torch.Tensor = torch.zeros((), requires_grad=True) + number
    return differentiable


def _needs_64_bits(arguments: Iterable[Any]) -> bool:
    """Whether JAX's 64-bit mode is on, or has to be lest it round the arguments; small integers do not need it."""
    wide = [value for value in arguments if isinstance(value, np.ndarray) and value.dtype in X64]
    return jax.config.jax_enable_x64 or any(  # type: ignore[attr-defined]
        array.dtype.kind in "fc" or (array != array.astype(f"{array.dtype.kind}4")).any() for array in wide
    )
