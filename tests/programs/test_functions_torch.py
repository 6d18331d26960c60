"""Every function of torch at ties: its derivative is that of its values, or it is listed as undecided."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, get_overridable_functions

import interop
from interop._programs.decided import CHOICES_BY_FUNCTION
from tests.programs.nearby import IMAGE, ROW, X, Y, check, drawn, nearby_gradient, tensor
from tests.programs.torch_functions import FUNCTIONS
from tests.support.calls import of_aminmax

Function = Callable[..., torch.Tensor]

F = functional

T = tensor(0.0)

POSITIVE = tensor([[2.0, 1.0], [1.0, 2.0]])
UNDECIDED: dict[str, tuple[Function, torch.Tensor]] = {
    "frexp": (lambda x: torch.frexp(x).mantissa, X),
    "nextafter": (lambda x: torch.nextafter(x, torch.zeros_like(x)), X),
    "isin": (lambda x: torch.isin(x, ROW), X),
    "histc": (lambda x: torch.histc(x, 2, -1, 1), X),
    "where(x)": (lambda x: x[torch.where(x)], X),
    "written to integers": (lambda x: x * torch.zeros_like(x, dtype=torch.long).copy_(x), X),
    "matrix_rank": (torch.linalg.matrix_rank, 0 * POSITIVE),
    "the probability of a quantile": (lambda x: ROW.quantile(1 / 3 + x), T),
    "modes": (lambda x: x.mode(1).values, X),
    "rrelu": (lambda x: F.rrelu(x, training=True), X),
    "linalg.cond": (lambda x: torch.linalg.cond(x, 1), POSITIVE),
    "max_norm": (lambda x: F.embedding(torch.tensor([0]), x * 1, max_norm=2.0), tensor([[2.0, 0.0]])),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, 1 + 0 * x, eps=2.0), tensor([[2.0, 0.0]])),
    "gaussian_nll_loss": (lambda x: F.gaussian_nll_loss(T + 3, T, x, eps=1.0), tensor(1.0)),
    "item()": (lambda x: x * (1.0 if x.item() > 0 else -1.0), T),
    "detach()": (lambda x: torch.where(x.detach() > 0, x, -x), T),
    "singular": (torch.linalg.svdvals, 0 * X),
    "eigenvalues": (torch.linalg.eigvalsh, 0 * POSITIVE),
}
"""What the documentation says is not decided, each at a tie."""


def differences(fun: Function, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
    """The one-sided derivative, from values; none where the shapes differ."""
    with torch.random.fork_rng():
        values = []
        for step in (0.0, 1e-5, 5e-6):
            torch.manual_seed(0)
            value = fun((x + step * v).clone())
            values.append(value[0].double() if isinstance(value, tuple) else value.double())
    if len({value.shape for value in values}) > 1:
        return None
    whole, half = ((value - values[0]) / step for value, step in zip(values[1:], (1e-5, 5e-6), strict=True))
    return 2 * half - whole


def is_right(fun: Function, x: torch.Tensor) -> bool:
    """Whether the derivative is that of the values, as far as both are finite, along a direction and its opposite."""
    (v,) = drawn((x,), 0)
    for direction in (v, -v):
        wanted = differences(fun, x, direction)
        torch.manual_seed(0)
        found = interop.directional_derivative(fun, x, direction)[1]
        found = found[0] if isinstance(found, tuple) else found
        if wanted is None:
            return False
        finite = found.isfinite() & wanted.isfinite()
        if not torch.allclose(found[finite].double(), wanted[finite], atol=1e-4, rtol=1e-3):
            return False
    return True


@pytest.mark.filterwarnings("ignore::jaxclamp.UndecidedWarning")
@pytest.mark.parametrize("name", UNDECIDED)
def test_the_undecided_are_listed(name: str) -> None:
    assert interop.directional_derivative.__doc__ is not None
    assert name in interop.directional_derivative.__doc__
    try:
        is_decided = is_right(*UNDECIDED[name])
    except NotImplementedError:
        pytest.skip("the installed torch has no forward mode of it")
    assert not is_decided


HALF, KNOT = torch.tensor(3.0, dtype=torch.float16), torch.tensor([0.0, 1.0, 1.0])
AS_IN_TORCH: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "fmod of float16": (lambda x: x.fmod(2.0), HALF),
    "div of float16": (lambda x: x.div(2.0, rounding_mode="trunc"), HALF),
    "signs of integers": (lambda x: torch.copysign(x, torch.tensor([0, -1, 1])), KNOT),
    "truth values with signs": (lambda x: torch.copysign(torch.tensor(True), x), KNOT),
    "one place": (lambda x: torch.bucketize(0.5, x), KNOT),
    "one place among equal numbers": (lambda x: torch.bucketize(x[0] + 1, 1 * x, right=True), 0 * KNOT + 1),
    "the place of NaN": (lambda x: torch.bucketize(x[1:] * torch.tensor([torch.nan, 1.0]), 1 * x, right=True), KNOT),
    "isclose of infinity": (lambda x: torch.isclose(x, torch.full_like(x, torch.inf)), KNOT),
    "quantile": (lambda x: x.quantile(0.3), tensor(3.0, 1.0, 7.0, 4.0, 9.3)),
    "quantile of infinity": (lambda x: x.quantile(1.0, interpolation="lower"), KNOT.log().neg()),
}
"""What is not at a jump, or moves beyond none."""


@pytest.mark.parametrize("name", AS_IN_TORCH)
def test_values_and_dtypes_are_those_of_torch(name: str) -> None:
    fun, x = AS_IN_TORCH[name]
    seen: list[torch.Tensor] = []
    interop.directional_derivative(lambda x: seen.append(y := fun(x)) or y, x, torch.ones_like(x))
    decided, wanted = seen
    assert decided.dtype == wanted.dtype
    assert torch.equal(decided, wanted)


WITHOUT_FORWARD_MODE: dict[str, tuple[Function, torch.Tensor]] = {
    "unique": (torch.unique, X),
    "floor_divide": (lambda x: torch.floor_divide(x, 1), X),
    "//": (lambda x: x // 1, X),
    "histogram": (lambda x: torch.histogram(x, 2).hist, X),
    "segment_reduce": (lambda x: torch.segment_reduce(x, "max", lengths=torch.tensor([1, 3])), ROW),
    "embedding_bag": (lambda x: F.embedding_bag(torch.tensor([[0, 1]]), x, mode="max"), X),
    "grid_sample": (lambda x: F.grid_sample(IMAGE, x, align_corners=True), tensor([[[[0.0, 0.0]]]])),
    "multilabel_margin_loss": (lambda x: F.multilabel_margin_loss(x, torch.tensor([1, 0, -1, 0])), ROW),
    "fake_quantize_per_tensor_affine": (lambda x: torch.fake_quantize_per_tensor_affine(x.float(), 1.0, 0, 0, 3), X),
}


@pytest.mark.filterwarnings("ignore::jaxclamp.UndecidedWarning")  # of the jumps of floor_divide, before torch's error
def test_what_has_no_forward_mode_is_listed() -> None:
    for name, (fun, x) in WITHOUT_FORWARD_MODE.items():
        assert name in (interop.directional_derivative.__doc__ or "")
        try:
            interop.directional_derivative(fun, x, x)
        except NotImplementedError:
            continue
        assert (name, torch.__version__ >= "2.15") == ("grid_sample", True)


def listed_as(name: str) -> str:
    """What the documentation calls a function of torch."""
    name = name.removeprefix("special_")
    words = {
        "modes": ("mode",),
        "norms": ("norm", "vector_norm", "linalg_vector_norm", "linalg_norm"),
        "``unique``": ("unique_consecutive",),
    }
    return next((word for word, names in words.items() if name in names), f"``{name}``")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_all_the_undecided_are_listed() -> None:
    """Of the functions of torch that take a tensor, or a number or a tensor more, those that are right but at ties."""
    document = interop.directional_derivative.__doc__ or ""
    homes = {torch, torch.Tensor, functional, torch.special, torch.linalg}
    others = {torch.where, torch.hinge_embedding_loss}  # where(x) is nonzero; the loss is what functional's calls
    missing, asked = [], 0
    for home, functions in get_overridable_functions().items():
        for own in functions if home in homes else ():
            name = getattr(own, "__name__", "_")
            if (
                own in CHOICES_BY_FUNCTION
                or own in others
                or name.startswith("_")
                or name.endswith("_")
                or listed_as(name) in document
            ):
                continue
            calls: list[Function] = [own, lambda x, own=own: own(x, 1.0), lambda x, own=own: own(x, Y.flatten())]
            for fun in calls:
                with contextlib.suppress(Exception):  # other arguments or results, or no forward mode
                    if is_right(fun, X.flatten() + 0.3):
                        asked += 1
                        if not is_right(fun, X.flatten() / 2):
                            missing.append(name)
    assert asked > 200
    assert set(missing) == set()


def parts(rule: Any) -> set[Any]:
    """The functions that a rule is made of, such as those of the three forms of torch.max."""
    return set().union(*map(parts, rule.args)) if isinstance(rule, functools.partial) and rule.args else {rule}


class Called(TorchFunctionMode):
    """What takes the place of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.rules |= parts(CHOICES_BY_FUNCTION.get(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_every_choice_is_among_the_functions() -> None:
    with Called() as called:
        for fun, *inputs in FUNCTIONS.values():
            fun(*(x.clone() for x in inputs))
    assert not [own for own, rule in CHOICES_BY_FUNCTION.items() if not parts(rule) <= called.rules]


MARKS = {
    "torch.aminmax": [of_aminmax],
    "norms by hand, moved about": [pytest.mark.thorough],
    "norms by hand, of what is selected": [pytest.mark.thorough],
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in FUNCTIONS])
def test_functions_at_ties(name: str) -> None:
    fun, *inputs = FUNCTIONS[name]
    check(fun, *inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wave", [lambda x: (x - torch.floor(x) - 0.5).abs(), lambda x: (x - x.round()).abs()])
def test_jumps_in_each_dtype(wave: Function, dtype: torch.dtype) -> None:
    """Up to where the numbers beside an integer are further ones."""
    x = torch.tensor([0.0, -1.5, 3.0, 97.0, 127.5, -100.5], dtype=dtype)
    for v in (torch.ones_like(x), -torch.ones_like(x)):
        (expected,) = nearby_gradient(lambda x: wave(x).sum(), (x.double(),), (v.double(),))
        assert interop.grad(lambda x: wave(x).sum(), direction=v)(x).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [torch.bool, torch.BoolTensor, "torch.BoolTensor"], ids=str)
def test_truth_values_by_any_name_of_their_type(kind: Any) -> None:
    """A number that moves away from 0 is true."""
    _, slope = interop.directional_derivative(lambda x: torch.where(x.type(kind), 2 * x, -x), T, T + 1)
    assert slope == 2


@pytest.mark.parametrize("compare", [torch.ge, torch.le, lambda x, y: x == x, lambda x, _: ~x.isnan()])
def test_a_tangent_of_nan_leaves_a_comparison_to_the_values(compare: Any) -> None:
    """The root of 1 - cos(x) has the tangent 0 / 0 at 0, where it is 0 for all that."""
    slope = interop.grad(lambda x: torch.where(compare(torch.sqrt(1 - x.cos()), 0.0), x, 5 * x))(tensor(0.0))
    assert slope == 1


@pytest.mark.parametrize("fold", [torch.relu, torch.abs])
@pytest.mark.parametrize("speed", [1.0, -1.0])
def test_nan_beside_a_tie_has_the_slope_of_the_operand_in_each_direction(fold: Any, speed: float) -> None:
    x = tensor([0.0, torch.nan])
    assert interop.grad(lambda x: fold(x).sum(), direction=torch.full_like(x, speed))(x)[1] == 1


@pytest.mark.parametrize("compare", [torch.ne, lambda x, y: ~torch.eq(x, y), lambda x, _: x.bool()])
def test_an_equality_of_a_number_with_a_tangent_of_nan_holds_at_the_point_alone(compare: Any) -> None:
    slope = interop.grad(lambda x: torch.where(compare(torch.sqrt(x * x), 0.0), x, 5 * x))(tensor(0.0))
    assert slope == 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "largest",
    [
        torch.max,
        lambda x: -torch.amin(-x, 0),
        lambda x: torch.maximum(x[0], x[1]),
        lambda x: -torch.fmin(-x[0], -x[1]),
        lambda x: x[1].clamp(min=x[0]),
        lambda x: torch.nn.functional.max_pool1d(x[None], 2)[0, 0],
        lambda x: torch.cummax(x, 0).values[1],
        lambda x: torch.topk(x, 1).values[0],
    ],
    ids=["max", "amin", "maximum", "fmin", "clamp", "pool", "cummax", "topk"],
)
def test_of_equal_numbers_one_with_a_tangent_of_nan_is_the_largest(largest: Any, reverse: bool) -> None:
    """The larger of -x and a root squared, which rises, rises itself: -1, the slope of -x, would be wrong."""

    def either(x: torch.Tensor) -> Any:
        return largest(torch.stack([-x, torch.sqrt(x) ** 2][:: -1 if reverse else 1]))

    assert interop.grad(either, direction=tensor(1.0))(tensor(0.0)).isnan()


def test_a_largest_element_that_falls_without_bound_is_the_largest() -> None:
    _, slope = interop.directional_derivative(lambda x: torch.stack([x - 1, -x.sqrt()]).max(), T, T + 1)
    assert slope == -torch.inf


@pytest.mark.parametrize("number", [0, 0.0, -0.0])
def test_a_difference_with_zero_keeps_the_sign_of_zero(number: float) -> None:
    for zero in (0.0, -0.0):
        steep = lambda x: torch.where(1 / (x - number) > 0, x, 5 * x)  # noqa: E731
        x = tensor(zero)
        assert interop.grad(steep)(x) == torch.func.grad(steep)(x)


@pytest.mark.parametrize("order", [0, 1])
def test_a_hypotenuse_has_the_dtype_of_torch_beside_an_operand_without_axes(order: int) -> None:
    def dtype_of(x: torch.Tensor) -> torch.Tensor:
        result = torch.hypot(*(x, tensor(4.0))[:: (-1) ** order])
        assert result.dtype == torch.float32
        return result.sum()

    assert interop.grad(dtype_of)(torch.tensor([0.0, 3.0])).tolist() == pytest.approx([0.0, 0.6])


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_loss_has_the_dtype_of_torch_beside_a_target_without_axes(dtype: torch.dtype) -> None:
    def dtype_of(x: torch.Tensor) -> torch.Tensor:
        dtypes.append((result := F.l1_loss(x, torch.tensor(1.0, dtype=dtype))).dtype)
        return result

    x, dtypes = torch.zeros(3, dtype=torch.float16), list[torch.dtype]()
    dtype_of(x)
    interop.grad(dtype_of)(x)
    assert dtypes[0] == dtypes[1]


def test_a_direction_may_be_one_tensor_as_the_parameter_may() -> None:
    x = torch.zeros(2, requires_grad=True)
    with interop.along(x, direction=torch.tensor([1.0, -1.0])):
        x.abs().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize(
    "function", [torch.amax, torch.max, torch.argmax, torch.median, lambda x: x.topk(2), lambda x: x.kthvalue(2)]
)
def test_of_too_few_elements_values_and_errors_are_those_of_torch(function: Any, length: int) -> None:
    def answer(call: Callable[[], Any]) -> Any:
        try:
            return repr(call())
        except (IndexError, RuntimeError) as error:
            return error.args

    few = torch.zeros(length)
    decided = answer(lambda: interop.directional_derivative(function, few, few)[0])
    assert decided == answer(lambda: function(few))


ORDERED: dict[str, Any] = {
    "topk": lambda x: x.topk(2).values,
    "topk, smallest": lambda x: x.topk(3, largest=False).values,
    "topk, all": lambda x: x.topk(4).values,
    "kthvalue": lambda x: x.kthvalue(2).values,
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "cummax": lambda x: x.cummax(0).values,
    "cummin": lambda x: x.cummin(0).values,
    "sort": lambda x: x.sort(descending=True).values,
}


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float64, marks=pytest.mark.thorough), torch.float32, torch.bfloat16]
)
@pytest.mark.parametrize("name", ORDERED)
def test_ties_anywhere_among_four_elements(name: str, dtype: torch.dtype) -> None:
    """As of 3, 1, 1, 0, of which the two largest tie with no other, but the second is equal to the next."""
    function = ORDERED[name]
    generator = torch.Generator().manual_seed(0)
    for numbers in itertools.product(range(-1, 2), repeat=4):
        x = torch.tensor(numbers, dtype=dtype)
        v = torch.randn(4, generator=generator, dtype=torch.float64).to(dtype)
        step = 2.0**-20
        difference = (function(x.double() + step * v) - function(x.double())) / step
        _, derivative = interop.directional_derivative(function, x, v)
        torch.testing.assert_close(derivative.double(), difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ORDERED)
def test_the_order_is_that_of_float64_at_infinities_zeros_and_nan(name: str) -> None:
    """Floats of 32 bits are ordered by integers, in one sort with their tangents."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.tensor([-torch.inf, -1.0, -0.0, 0.0, torch.inf, torch.nan, -torch.nan])
    for _ in range(60):
        x, v = (numbers[torch.randint(0, 7, (4,), generator=generator)] for _ in range(2))
        single, double = (
            interop.directional_derivative(ORDERED[name], x.to(dtype), v.to(dtype))[1].double()
            for dtype in (torch.float32, torch.float64)
        )
        torch.testing.assert_close(single, double, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("form", ["scatter_reduce", "index_reduce"])
def test_ties_of_what_goes_to_one_result(form: str, reduce: str, include_self: bool) -> None:
    """Of random small integers, some of which go nowhere, against differences."""
    generator = torch.Generator().manual_seed(0)

    def scattered(own: torch.Tensor, further: torch.Tensor) -> torch.Tensor:
        return getattr(own, form)(1, index, further, reduce, include_self=include_self)

    for _ in range(40):
        own, further = (torch.randint(0, 3, shape, generator=generator).double() for shape in ((3, 4), (3, 5)))
        v, w = (torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (own, further))
        index = torch.randint(0, 4, (2, 4) if form == "scatter_reduce" else (5,), generator=generator)
        step = 2.0**-20
        difference = (scattered(own + step * v, further + step * w) - scattered(own, further)) / step
        _, derivative = interop.directional_derivative(scattered, (own, further), (v, w))
        torch.testing.assert_close(derivative, difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_names_that_torch_takes_and_does_not_list(reduce: str) -> None:
    def scattered(form: str, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(2).scatter_reduce(0, torch.tensor([0, 0, 1]), x, form, include_self=False).sum()

    x, v = torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    gradients = [interop.grad(functools.partial(scattered, form), direction=v)(x) for form in (reduce, f"a{reduce}")]
    assert torch.equal(*gradients)


SHAPES_THAT_GO = {
    "an index without axes": (torch.tensor(1), torch.tensor([2.0, 5.0])),
    "a source without axes": (torch.tensor([1]), torch.tensor(2.0)),
    "an index without elements": (torch.zeros(0, 3, dtype=torch.long), torch.tensor([2.0])),
    "an index that is shorter": (torch.tensor([1]), torch.tensor([2.0, 5.0])),
}
"""An index and a source with which `torch.scatter_reduce` reads 2, if any element."""


@pytest.mark.parametrize("name", SHAPES_THAT_GO)
def test_an_index_and_a_source_of_different_shapes(name: str) -> None:
    index, source = SHAPES_THAT_GO[name]
    gradient = interop.grad(lambda x: x.scatter_reduce(0, index, source, "amax").sum())
    expected = torch.tensor([1.0, 0.0 if index.numel() else 1.0, 1.0])
    torch.testing.assert_close(gradient(torch.tensor([1.0, 1.0, 3.0])), expected, rtol=0, atol=0)


def test_an_index_that_torch_refuses() -> None:
    """By its message, with the shape of the source as the caller passed it."""
    x, index, source = torch.ones(2, 2), torch.zeros(1, 2, dtype=torch.long), torch.ones(3, 1)
    with pytest.raises(RuntimeError) as expected:
        x.scatter_reduce(0, index, source, "amax")
    with pytest.raises(RuntimeError) as refused:
        interop.grad(lambda x: x.scatter_reduce(0, index, source, "amax").sum())(x)
    assert str(refused.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:There is a performance drop")
@pytest.mark.parametrize("form", ["scatter_reduce", "index_reduce"])
def test_a_batch_of_indices_alone(form: str) -> None:
    """As `torch.func.vmap` has them, where neither what is reduced nor its direction is of the batch."""
    x, v, source = (torch.tensor(numbers) for numbers in ([0.0, 1, 1], [1.0, 2, 3], [1.0, 1, 2]))

    def gradient(index: torch.Tensor) -> torch.Tensor:
        return interop.grad(lambda x: getattr(x, form)(0, index, source, "amax").cos().sum(), direction=v)(x)

    indices = torch.tensor([[0, 1, 1], [2, 2, 0]])
    expected = torch.stack([gradient(index) for index in indices])
    torch.testing.assert_close(torch.func.vmap(gradient)(indices), expected, rtol=0, atol=0)
