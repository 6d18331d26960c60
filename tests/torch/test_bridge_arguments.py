"""Arguments and results of wrapped functions: trees, static ones, subclasses of tensors, which inputs are active."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import interop
from interop import torch_to_jax, wrap_for_torch
from interop._bridge import graph, ops
from interop._bridge.bounded import Bounded
from tests.support.calls import refusal
from tests.support.compilations import compilations
from tests.torch.bridged import points

pytestmark = pytest.mark.usefixtures("float32")


# Subclasses.


class Marked(torch.Tensor):
    pass


def test_subclass_keeps_its_type() -> None:
    x = points(5).as_subclass(Marked)
    assert type(interop.clamp(x, 0.0)) is Marked
    assert type(interop.maximum(points(5), x)) is Marked
    assert type(interop.clamp(x.int(), 0.5)) is Marked
    assert [type(y) for y in wrap_for_torch(lambda d: (d["a"], -d["a"]))({"a": x})] == [Marked, Marked]

    x.requires_grad_()
    y = interop.clamp(x, 0.0, 6.0)
    assert type(y) is Marked
    y.sum().backward()
    assert x.grad.tolist() == ((points(5) > 0) & (points(5) < 6)).float().tolist()


def test_subclass_that_overrides_functions_sees_the_call() -> None:
    seen = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs)

    interop.relu(points(5).as_subclass(Watching))
    assert "relu" in seen


def test_conversion_of_a_subclass() -> None:
    assert np.array_equal(torch_to_jax(points(5).as_subclass(Marked)), points(5))


def test_conversion_of_a_leaf_where_nothing_is_recorded() -> None:
    with torch.no_grad():
        assert np.array_equal(torch_to_jax(points(5).requires_grad_()), points(5))


def test_parameter() -> None:
    weight = torch.nn.Parameter(points(5))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    y = interop.clamp(weight, 0.0, 6.0)
    assert type(y) is torch.Tensor
    y.sum().backward()
    expected = points(5) - ((points(5) > 0) & (points(5) < 6)).float()
    optimizer.step()
    assert torch.equal(interop.clamp(weight, -9.0, 9.0), expected)


# Arguments and results.


class Pair(NamedTuple):
    left: Any
    right: Any


def test_trees_in_and_out() -> None:
    def function(parameters: Any, pair: Any, *more: Any, scale: Any = 1.0, **named: Any) -> Any:
        total = parameters["w"] @ parameters["b"][0] + scale * pair.left
        return {"total": total, "pair": Pair(more[0] * named["last"], None), "list": [(pair.right + 1.0,)]}

    names = ("w", "b", "left", "right", "more", "last")
    shapes = ((3, 4), (4,), (3,), (2,), (5,), ())
    ours = {n: (points(*s) + i).requires_grad_() for i, (n, s) in enumerate(zip(names, shapes, strict=True))}
    native = {n: x.detach().clone().requires_grad_() for n, x in ours.items()}

    def call(f: Callable[..., Any], t: dict[str, torch.Tensor]) -> Any:
        return f({"w": t["w"], "b": [t["b"]]}, Pair(t["left"], t["right"]), t["more"], scale=2.5, last=t["last"])

    result, expected = call(wrap_for_torch(function), ours), call(function, native)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    assert isinstance(result["pair"], Pair)
    for mine, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        torch.testing.assert_close(mine, theirs)
    for tree in (result, expected):
        sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)).backward()
    for name in names:
        torch.testing.assert_close(ours[name].grad, native[name].grad)


def test_defaults_and_keywords() -> None:
    wrapped = wrap_for_torch(lambda x, *, power=2, shift=1.0: x**power + shift)
    x = points(5)
    torch.testing.assert_close(wrapped(x), x**2 + 1)
    torch.testing.assert_close(wrapped(x, power=3), x**3 + 1)
    torch.testing.assert_close(wrapped(shift=0.25, x=x), x**2 + 0.25)
    torch.testing.assert_close(interop.clamp(max=2.0, input=x), x.clamp(max=2.0))


def test_arrays_in_the_other_byte_order() -> None:
    """As FITS files have them; JAX refuses them."""
    x = torch.ones(3, requires_grad=True)
    for order in "<>":
        y = wrap_for_torch(lambda x, factor: x * factor)(x, np.arange(3, dtype=f"{order}f4"))
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0, 1, 2]


def test_results_without_arrays() -> None:
    x = torch.ones(3, requires_grad=True)
    assert wrap_for_torch(lambda x: {})(x) == {}
    assert wrap_for_torch(lambda x: None)(x) is None


@pytest.mark.parametrize(
    "values",
    [(0.5, 1.5, -0.0), tuple(np.float32([0.5, 1.5, 2.5])), tuple(np.ones((2, 3), np.float32)), (*jnp.ones((2, 3)),)],
    ids=["float", "NumPy number", "NumPy array", "JAX array"],
)
def test_new_value_of_a_traced_argument_compiles_nothing(values: tuple[Any, ...]) -> None:
    traces = []

    def scale(x: jax.Array, factor: Any) -> jax.Array:
        traces.append(factor)
        return x * factor

    wrapped = wrap_for_torch(scale)
    counts = []
    for value in values:
        x = torch.ones(3, requires_grad=True)
        y = wrapped(x, value)
        y.sum().backward()
        assert y.tolist() == x.grad.tolist() == np.broadcast_to(value, 3).tolist()
        counts.append(len(traces))
    assert counts == [2] * len(values)  # the forward and the backward pass, once each


@pytest.mark.parametrize("x", [torch.ones(3).as_subclass(Marked), torch.tensor(1.0)], ids=["subclass", "no axes"])
def test_the_same_call_again_compiles_nothing(x: torch.Tensor) -> None:
    """Each took the time of a compilation."""
    interop.amax(x)
    count = compilations()
    assert interop.amax(x) == 1
    assert compilations() == count


def test_zeros_of_both_signs_are_told_apart() -> None:
    x = torch.tensor([-1.0])
    assert [interop.threshold(x, 0.0, zero).signbit().item() for zero in (0.0, -0.0, 0.0)] == [False, True, False]


def test_static_arguments_are_told_apart() -> None:
    seen = []

    def function(x: jax.Array, option: Any) -> jax.Array:
        seen.append(option)
        return x + {int: 1, bool: 2, str: 3}.get(type(option), 4)

    wrapped = wrap_for_torch(function)
    x = torch.zeros(1)
    for _ in range(2):
        for option, expected in ((0, 1), (False, 2), (1, 1), (True, 2), ("a", 3), (1.0, 4), (None, 4)):
            assert wrapped(x, option).item() == expected
    assert [(type(s), s) for s in seen if not isinstance(s, jax.Array)] == [
        (int, 0),
        (bool, False),
        (int, 1),
        (bool, True),
        (str, "a"),
        (type(None), None),
    ]
    assert len(seen) == 7


def test_int_may_be_a_shape() -> None:
    assert wrap_for_torch(lambda x, rows: x.reshape(rows, -1))(points(6), 2).shape == (2, 3)


@pytest.mark.parametrize("number", [3, 2.5, True])
def test_results_that_are_numbers_of_python(number: float) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    squared, constant = wrap_for_torch(lambda x: (x**2, number))(x)
    assert constant.item() == number
    assert torch.autograd.grad(squared.sum() + constant.float(), x)[0].tolist() == [2, 4]


def test_integer_outputs_have_no_gradient() -> None:
    x = points(5).requires_grad_()
    y, index, mask, count = wrap_for_torch(lambda x: (x * x, jnp.argmax(x), x > 0, jnp.int32(7)))(x)
    assert [out.requires_grad for out in (y, index, mask, count)] == [True, False, False, False]
    assert index.item() == 4
    assert mask.tolist() == (points(5) > 0).tolist()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * points(5))


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)])
def test_unused_outputs(used: tuple[int, ...]) -> None:
    def function(numpy: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return numpy.sin(x) * y, x * x, numpy.exp(y)

    ours, native = ([points(5).requires_grad_(), (points(5) / 4).requires_grad_()] for _ in range(2))
    for (x, y), outputs in (
        (ours, wrap_for_torch(lambda x, y: function(jnp, x, y))(*ours)),
        (native, function(torch, *native)),
    ):
        sum(outputs[i].sum() for i in used).backward()
        assert x.grad is not None or used == (2,)
        assert y.grad is not None or used == (1,)
    for mine, theirs in zip(ours, native, strict=True):
        expected = torch.zeros(5) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(mine.grad, expected)


def test_tape_only_where_a_gradient_is_wanted() -> None:
    x = points(5)
    assert not interop.relu(x).requires_grad
    with torch.no_grad():
        assert not interop.relu(x.clone().requires_grad_()).requires_grad
    with torch.inference_mode():
        assert torch.equal(interop.relu(torch.ones(3)), torch.ones(3))
    assert interop.relu(x.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_integer_bounds_of_integers_compile_nothing(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 100], dtype=dtype)
    interop.clamp(x, 0, 50)
    count = compilations()
    for bound in range(60, 64):
        assert interop.clamp(x, 0, bound).tolist() == [1, bound]
    assert compilations() == count
    interop.clamp(x[:1], 0, 60)  # another shape
    assert compilations() > count
    byte = torch.tensor([1], dtype=torch.int8)
    with pytest.raises(refusal(lambda: torch.clamp(byte, 0, 300)), match="clamp: max=300 does not fit into"):
        interop.clamp(byte, 0, 300)


# Which inputs are active decides at a tie.


@pytest.mark.parametrize(
    ("point", "active", "expected"),
    [
        ((2.0, 2.0), (True, False), (0.0, None)),
        ((2.0, 2.0), (False, True), (None, 0.0)),
        ((2.0, 2.0), (True, True), (0.5, 0.5)),
        ((2.0, 2.0, 2.0), (True, False, False), (0.0, None, None)),
        ((2.0, 2.0, 2.0), (True, True, False), (0.0, 0.0, None)),
        ((2.0, 2.0, 2.0), (True, True, True), (1 / 3, 1 / 3, 1 / 3)),
        ((2.0, 2.0, 5.0), (True, True, False), (0.5, 0.5, None)),
        ((2.0, -1.0, 2.0), (False, True, True), (None, 0.0, 0.0)),
        ((1.0, 2.0, 2.0), (False, True, True), (None, 0.5, 0.5)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_active_inputs(
    point: tuple[float, ...], active: tuple[bool, ...], expected: tuple[float | None, ...], dtype: torch.dtype
) -> None:
    inputs = [
        torch.full((2,), value, dtype=dtype, requires_grad=moves) for value, moves in zip(point, active, strict=True)
    ]
    interop.clamp(*inputs).sum().backward()
    for tensor, value in zip(inputs, expected, strict=True):
        if value is None:
            assert tensor.grad is None
        else:
            torch.testing.assert_close(tensor.grad, torch.full((2,), value, dtype=dtype))


def test_active_inputs_may_change_from_call_to_call() -> None:
    """One compiled forward pass, but one backward pass for each active set."""
    x, lo = torch.tensor(2.0), torch.tensor(2.0)
    for active, expected in (((0,), [0.0]), ((0, 1), [0.5, 0.5]), ((1,), [0.0]), ((0, 1), [0.5, 0.5])):
        inputs = [t.clone().requires_grad_(i in active) for i, t in enumerate((x, lo))]
        gradients = torch.autograd.grad(interop.clamp(*inputs), [inputs[i] for i in active])
        assert [g.item() for g in gradients] == expected


X = torch.tensor([[-1.0, 0.5, 3.0, 2.0]])

DERIVATIVES: dict[str, Callable[..., torch.Tensor]] = {
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](x)[0],
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "grad": lambda f, x: torch.func.vmap(torch.func.grad(f))(x),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_number_in_the_first_call_under_a_transformation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor for the number, made to ask torch for the dtype, was one that the transformation watched."""
    monkeypatch.setattr(ops._OPS["clamp_min"], "_plans", Bounded(1))
    found, expected = (DERIVATIVES[name](lambda x, h=h: h.clamp_min(x, 0.7), X[0]) for h in (interop, torch))
    assert torch.equal(found, expected)


def test_calls_leave_nothing_behind() -> None:
    """Meta tensors and numbers had a name each, for graphs that nobody made."""
    before = len(graph._CALLS), len(graph._CALL_NAMES)
    for k in range(50):
        interop.clamp(torch.ones(k + 1, device="meta"), 0.0, k / 3)
        interop.clamp(torch.ones(2), 0.0, k / 3)
    assert (len(graph._CALLS), len(graph._CALL_NAMES)) == before


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one for each kind of call."""
    op = ops._OPS["amax"]
    assert isinstance(op._plans, Bounded)
    monkeypatch.setattr(op, "_plans", Bounded(3))
    x = torch.arange(24.0).reshape(2, 3, 4)
    for _, dims in itertools.product(range(2), itertools.permutations(range(3), 2)):
        assert torch.equal(interop.amax(x, dims), torch.amax(x, dims))
        assert len(op._plans) <= 3
