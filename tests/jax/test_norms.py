"""`norm` and `hypot` beside their ties: near overflow, at infinities and NaN, in all shapes, and to second order."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxclamp
from jaxclamp import min_norm, ties

INF, NAN = float("inf"), float("nan")
HALF = 2**-0.5
UNITS: list[tuple[tuple[float, float], tuple[float, float]]] = [
    ((0.0, 0.0), (0.0, 0.0)),
    ((-0.0, 0.0), (0.0, 0.0)),
    ((3.0, -4.0), (0.6, -0.8)),
    ((0.0, 2.0), (0.0, 1.0)),
    ((1e30, 1e30), (HALF, HALF)),
    ((1e-30, -1e-30), (HALF, -HALF)),
    ((1e30, 1e-30), (1.0, 0.0)),
    ((INF, 1e38), (1.0, 0.0)),
    ((1.0, -INF), (0.0, -1.0)),
    ((INF, -INF), (HALF, -HALF)),
    ((NAN, 1.0), (NAN, NAN)),
    ((NAN, INF), (NAN, NAN)),
]
"""Points, and the gradient of the 2-norm there."""


def of_vector(x: jax.Array, y: jax.Array) -> jax.Array:
    return jaxclamp.norm(jnp.stack([x, y]))


FUNCTIONS = [
    *(jaxclamp.hypot, of_vector, min_norm(jnp.hypot)),
    min_norm(lambda x, y: jnp.linalg.norm(jnp.stack([x, y]))),
]
QUICK = (
    *("norm", "jnp.linalg.norm", "jnp.hypot", "a masked root", "of a sum that is bounded by 0"),
    *("vector_norm", "in vmap over the last axis", "a root of powers", "a root of products"),
    *("of a matrix, 1", "of a matrix, nuc", "of complex numbers", "order None", "order 1.5", "by hand"),
    *("std", "nanstd", "a root of a variance", "along an axis"),
    *("the farthest", "the larger", "clipped", "bounded", "sorted", "one of them", "by a call", "joined", "selected"),
)
"""Of the tables below: one of each kind, as a loop or another shape of the same sum is traced into the same program."""


def cases(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in table]


@pytest.mark.parametrize("function", FUNCTIONS, ids=["hypot", "norm", "jnp.hypot", "jnp.linalg.norm"])
def test_gradients_in_both_modes(function: Callable[..., jax.Array]) -> None:
    points, expected = (np.array(column, np.float32) for column in zip(*UNITS, strict=True))

    @jax.jit
    @jax.vmap
    def gradients(point: jax.Array) -> list[jax.Array]:
        modes: list[Any] = [jax.grad, jax.jacfwd]
        return [jnp.stack(mode(function, argnums=(0, 1))(*point)) for mode in modes]

    for found in gradients(points):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_norms_of_small_integers_do_not_wrap_around() -> None:
    assert float(jaxclamp.norm(jnp.uint8([200, 150]))) == 250


def test_hypot_does_not_overflow() -> None:
    np.testing.assert_allclose(jaxclamp.hypot(1e30, 1e30), 2**0.5 * 1e30, rtol=1e-6)
    np.testing.assert_allclose(jaxclamp.hypot(1e-30, 1e-30), 2**0.5 * 1e-30, rtol=1e-6)


@pytest.mark.parametrize("function", [jaxclamp.hypot, of_vector])
def test_second_derivatives(function: Callable[..., jax.Array]) -> None:
    """Those of x^2 + y^2 under a root; at 0, where there are none, 0; finite wherever the gradient is."""
    hessian = jax.jit(jax.hessian(function, argnums=(0, 1)))
    (xx, xy), (yx, yy) = hessian(3.0, 4.0)
    np.testing.assert_allclose([xx, xy, yx, yy], np.array([16, -12, -12, 9]) / 125, rtol=1e-5)
    assert jax.tree.leaves(hessian(0.0, -0.0)) == [0, 0, 0, 0]
    for (x, y), gradient in UNITS:
        assert np.isfinite(jax.tree.leaves(hessian(x, y))).all() == np.isfinite(gradient).all()


@pytest.mark.parametrize("order", [1, 2, INF])
def test_axes_and_shapes(order: float) -> None:
    """Values as in NumPy, and gradients, at elements of which some rows are 0."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (2, 3, 4)).astype(np.float32)
    x[0, 1] = x[:, :, 2] = 0
    forms = [*itertools.product([None, 0, -1, (0, 2), (0, 1, 2)], [False, True])]

    @jax.jit
    def derivatives(x: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        pairs = [jax.vjp(lambda x, form=form: jaxclamp.norm(x, order, *form), x) for form in forms]
        return [(value, *pull(jnp.ones_like(value))) for value, pull in pairs]

    for (axis, keepdims), (found, gradient) in zip(forms, derivatives(x), strict=True):
        axes = tuple(range(3)) if axis is None else axis
        sizes = abs(x)
        if order == INF:
            value = sizes.max(axes, keepdims=True)
            tied = sizes == value
            expected = np.sign(x) * tied / tied.sum(axes, keepdims=True)
        elif order == 1:
            value, expected = sizes.sum(axes, keepdims=True), np.sign(x)
        else:
            value = np.sqrt((x**2).sum(axes, keepdims=True))
            expected = x / np.where(value == 0, 1, value)
        np.testing.assert_allclose(found, value if keepdims else value.squeeze(axes), rtol=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("order", [1, 2, INF, "fro", None])
def test_nothing_and_a_number(order: Any) -> None:
    assert jaxclamp.norm(jnp.zeros((2, 0)), order, 1).tolist() == [0, 0]
    assert jax.grad(lambda x: jaxclamp.norm(x, order))(jnp.zeros(0)).shape == (0,)
    assert [float(jax.grad(lambda x: jaxclamp.norm(x, order))(x)) for x in (-2.0, 0.0, 3.0)] == [-1, 0, 1]


@pytest.mark.parametrize("order", [1, INF])
def test_nan_in_the_other_norms(order: float) -> None:
    gradient = jax.grad(lambda x: jaxclamp.norm(x, order))(jnp.array([NAN, 1.0, NAN]))
    assert gradient.tolist() == ([1, 1, 1] if order == 1 else [0.5, 0, 0.5])


@pytest.mark.parametrize(
    "dtype",
    ["float8_e4m3fn", "bfloat16", "float32"]
    + [pytest.param(dtype, marks=pytest.mark.thorough) for dtype in ("float8_e5m2", "float16", "float64")],
)
@pytest.mark.parametrize("order", [1, 2, INF])
def test_dtypes(order: float, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        x = jnp.array([0, 3, -4], dtype)
        value, gradient = jax.value_and_grad(lambda x: jaxclamp.norm(x, order))(x)
        assert value.dtype == gradient.dtype == x.dtype
        expected = {1: [0, 1, -1], 2: [0, 0.6, -0.8], INF: [0, 0, -1]}[order]
        np.testing.assert_allclose(np.asarray(gradient, float), expected, rtol=float(jnp.finfo(dtype).eps))
        assert not jnp.any(jax.grad(lambda x: jaxclamp.norm(x, order))(0 * x) != 0)


def test_a_cotangent_that_is_not_finite_does_not_reach_zero() -> None:
    for order in (1, 2, INF):
        _, pull = jax.vjp(lambda x: jaxclamp.norm(x, order), jnp.zeros(2))  # noqa: B023  # called here
        assert pull(INF)[0].tolist() == [0, 0]
    _, pull = jax.vjp(jaxclamp.hypot, 0.0, 0.0)
    assert [float(part) for part in pull(NAN)] == [0, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: jaxclamp.norm(x, 3), "norm: ord=3 is none of 1, 2 and inf; for others take"),
        (lambda x: jaxclamp.norm(x, "nuc"), "norm: ord='nuc' is none of"),
        (lambda x: jaxclamp.norm(x, axis=2), "norm: axis=2 is out of range for x of shape"),
        (lambda x: jaxclamp.norm(x, axis=()), r"norm: axis=\(\) does not name one or more distinct axes"),
    ],
)
def test_refused(call: Callable[[jax.Array], jax.Array], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(jnp.ones((2, 3)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_of_jax_under_min_norm(dtype: str) -> None:
    """Values to the bit; within `vmap` too."""
    calls: list[Callable[[jax.Array], jax.Array]] = [
        jnp.linalg.norm,
        lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True),
        lambda x: jnp.linalg.norm(x, "fro", (1, 0)),
        jax.vmap(jnp.linalg.norm),
        lambda x: jax.vmap(lambda x: jnp.linalg.norm(x, axis=0, keepdims=True))(x),
    ]
    x = jnp.array([[0, 0], [1, 3]], dtype)
    for call in calls:
        assert min_norm(call)(x).tobytes() == call(x).tobytes()
        gradient = jax.grad(lambda x: min_norm(call)(x).sum())(0 * x)  # noqa: B023  # called here
        assert gradient.tolist() == [[0, 0], [0, 0]]


def abs_sq(x: jax.Array) -> jax.Array:
    """As optax squares the leaves of `optax.global_norm`."""
    return x.real**2 + x.imag**2


BY_SUMS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "a root of a sum": lambda x: jnp.sqrt(sum((x[0] ** 2 / 2, 0.5 * x[0] ** 2, x[1] * x[1]))),
    "a root of scaled squares": lambda x: jnp.sqrt(
        (x[0] * 0.5) * (2 * x[0]) * 0.5 + 2 * x[0] * x[0] / 4 + 4 * x[1] * x[1] / 4
    ),
    "a root of an inner product": lambda x: jnp.sqrt(x @ x),
    "a root beside a square of 0": lambda x: jnp.sqrt(sum(abs_sq(each) for each in x)),
    "a masked root": lambda x: jnp.sqrt(jnp.sum(jnp.where(~(x > 9), x * x, 0.0))),
}
BY_SQUARES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "vector_norm": jnp.linalg.vector_norm,
    "vector_norm along an axis": lambda x: jnp.linalg.vector_norm(x[None], axis=-1, keepdims=True).sum(),
    "vector_norm in vmap": lambda x: jax.vmap(jnp.linalg.vector_norm)(jnp.stack([x, x])).mean(),
    "in vmap over the last axis": lambda x: jax.vmap(
        lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True), in_axes=-1, out_axes=-1
    )(x[None, :, None]).sum(),
    "a root of products": lambda x: jnp.sqrt(jnp.sum(x * x)),
    "a root of powers": jax.jit(lambda x: jnp.sqrt(jnp.sum(x**2, keepdims=True)).sum()),
    "a root of squares": lambda x: jnp.sum(jnp.square(x)) ** 0.5,
    "a root of a mean": lambda x: jnp.sqrt(jnp.mean(x**2) / 0.5),
    **BY_SUMS,
}


@pytest.mark.parametrize("name", cases(BY_SQUARES))
def test_roots_of_sums_of_squares_under_min_norm(name: str) -> None:
    """0 at 0, in both modes and to second order; NaN, and no wrong number, where the squares have infinite slopes."""
    function = BY_SQUARES[name]
    rewritten = min_norm(function)
    x = jnp.array([3.0, -4.0])
    assert rewritten(x).tobytes() == function(x).tobytes()
    of_roots = min_norm(lambda x: function(jnp.sqrt(x)))

    @jax.jit
    def derivatives(x: jax.Array, zero: jax.Array) -> tuple[Any, ...]:
        at_zero = [derivative(rewritten)(zero) for derivative in (jax.grad, jax.jacfwd, jax.hessian)]
        return jax.grad(rewritten)(x), at_zero, [mode(of_roots)(zero) for mode in (jax.grad, jax.jacfwd)]

    gradient, at_zero, infinite = derivatives(x, jnp.zeros(2))
    np.testing.assert_allclose(gradient, [0.6, -0.8], rtol=1e-6)
    assert not any(map(np.any, at_zero))
    assert np.isnan(infinite).all()


@pytest.mark.parametrize("order", [1, INF])
def test_vector_norms_of_other_orders_under_min_norm(order: Any) -> None:
    function = min_norm(lambda x: jnp.linalg.vector_norm(x, ord=order))
    for x in ([0.0, 0.0], [3.0, -3.0], [0.0, 2.0]):
        ours = jax.grad(lambda x: jaxclamp.norm(x, order))(jnp.array(x))
        np.testing.assert_array_equal(jax.grad(function)(jnp.array(x)), ours)


@pytest.mark.parametrize("order", [1.5, 3, 4])
def test_norms_of_orders_between_have_the_gradient_0_at_0(order: Any) -> None:
    for norm in (jnp.linalg.norm, jnp.linalg.vector_norm):
        function = min_norm(functools.partial(norm, ord=order))
        assert jax.grad(function)(jnp.zeros(2)).tolist() == [0, 0]
        np.testing.assert_allclose(jax.grad(function)(jnp.ones(2)), 2 ** (1 / order - 1), rtol=1e-6)


@jax.jit
def _where(condition: jax.Array, x: jax.Array, y: Any) -> jax.Array:
    """Is named as a function of JAX is, and does something else."""
    return x - jnp.where(condition, 1.0, y)


def test_other_roots_keep_their_slope() -> None:
    for function in (
        lambda x: jnp.sqrt(jnp.sum(x)),
        lambda x: jnp.sqrt(jnp.sum(x * x[::-1])),
        lambda x: jnp.sum(x * x) ** 0.25,
        lambda x: jnp.sum(x**3) ** 0.5,
        lambda x: jnp.sum(x**3) ** (1 / 3),
        lambda x: jnp.sqrt(x[0] ** 2 + x[1]),
        lambda x: jnp.sqrt(x[0] ** 2 + x[1] ** 4),
        lambda x: jnp.sqrt(x[0] ** 2 - x[1] ** 2),
        lambda x: jnp.sqrt(x[0] ** 2 + -1.0 * x[1] ** 2),
        lambda x: jnp.sqrt(jnp.sum(x * x + -4.0 * x * x)),
        lambda x: jnp.sqrt(jnp.sum(x * (x[::-1] * x))),
        lambda x: jnp.sqrt((squares := x * x) + squares * squares),
        lambda x: jnp.sqrt(_where(x > 9, x * x, 0.0)),
        lambda x: jnp.sqrt(jnp.outer(x, x)),
        lambda x: jnp.sqrt(x[0] * x[1] + x[1] * x[0]),
        jnp.sqrt,
    ):
        assert not jnp.isfinite(jax.grad(lambda x: min_norm(function)(x).sum())(jnp.zeros(2))).any()  # noqa: B023


@pytest.mark.parametrize("squared", [jnp.square, lambda z: z**2, lambda z: z * z])
def test_squares_of_complex_numbers_add_up_to_0_elsewhere_too(squared: Callable[[jax.Array], jax.Array]) -> None:
    """1 + 1j ** 2 is 0, and the slope of its root infinite."""
    function = min_norm(lambda x: jnp.sqrt(jnp.sum(squared(x * jnp.array([1, 1j])))).real)
    assert not jnp.isfinite(jax.grad(function)(jnp.ones(2))).any()


MATRIX = np.float32([[3.0, 1.0], [-1.0, 2.0]])
NO_VECTOR_NORMS: dict[str, Callable[[jax.Array], Any]] = {
    **{f"of a matrix, {ord}": functools.partial(jnp.linalg.norm, ord=ord) for ord in (1, -1, jnp.inf, 2, "nuc")},
    "of complex numbers": lambda x: jnp.linalg.norm((1 + 1j) * x),
}


@pytest.mark.parametrize("name", cases(NO_VECTOR_NORMS))
def test_norms_that_are_no_vector_norms_stay_as_they_are(name: str) -> None:
    function = NO_VECTOR_NORMS[name]
    for changed in (min_norm(function), lambda x: jaxclamp.ties(function)(x)[0]):
        np.testing.assert_array_equal(changed(MATRIX), function(MATRIX))
    np.testing.assert_allclose(jax.grad(min_norm(function))(MATRIX), jax.grad(function)(MATRIX), rtol=1e-6)
    np.testing.assert_allclose(jaxclamp.grad(function)(MATRIX), jax.grad(function)(MATRIX), rtol=1e-4, atol=1e-6)


OF_COMPLEX: dict[str, Callable[[jax.Array], jax.Array]] = {
    **{f"order {order}": functools.partial(jnp.linalg.norm, ord=order) for order in (None, 2, 1.5, 3)},
    "Frobenius": lambda z: jnp.linalg.norm(z[None]),
    "by hand": lambda z: jnp.sqrt(jnp.sum((z.conj() * z).real)),
    "by sizes": lambda z: jnp.sqrt(jnp.sum(jnp.abs(z) ** 2)),
}


@pytest.mark.parametrize("name", cases(OF_COMPLEX))
def test_norms_of_complex_numbers(name: str) -> None:
    """At 0 they have the gradient that they have at v, and under `min_norm` none."""
    norm = lambda x: OF_COMPLEX[name](jax.lax.complex(x[:2], x[2:]))  # noqa: E731
    v = jnp.array([3.0, -4.0, 1.0, 2.0])
    gradient = jaxclamp.grad(norm, direction=v)(jnp.zeros(4))
    np.testing.assert_allclose(gradient, jax.grad(norm)(v), rtol=1e-5)
    assert jax.grad(min_norm(norm))(jnp.zeros(4)).tolist() == [0, 0, 0, 0]


NORMS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "norm": jaxclamp.norm,
    "hypot": lambda x: jaxclamp.hypot(*x),
    "jnp.linalg.norm": jnp.linalg.norm,
    "jnp.hypot": lambda x: jnp.hypot(*x),
    "batched": lambda x: jax.vmap(jnp.linalg.norm)(jnp.stack([x, x])).mean(),
    "in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda _, total: total + jnp.linalg.norm(x) / 2, jnp.zeros(())),
    "compiled": jax.jit(lambda x: jnp.linalg.norm(x, keepdims=True).sum()),
    **BY_SUMS,
    "of a sum that is bounded by 0": lambda x: jnp.sqrt(jnp.maximum(0.0, x[0] ** 2 + jax.nn.relu(x[1] ** 2))),
    "of a sum that is clipped": lambda x: jnp.sqrt(jaxclamp.clamp_min(jnp.clip(x * x, -1.0).sum(), 0)),
}


@pytest.mark.parametrize("name", cases(NORMS))
def test_along_a_direction(name: str) -> None:
    """At 0 the limit of the gradients at t v, which is v / |v|; elsewhere, and in NaN, as before."""
    function, v = NORMS[name], jnp.array([3.0, -4.0])
    along = jaxclamp.grad(function, direction=v)
    standing_still = jaxclamp.grad(lambda x, y: function(x) + y, (0, 1), direction=(jnp.zeros(2), 1.0))

    @jax.jit
    def derivatives(zero: jax.Array, apart: jax.Array, unknown: jax.Array) -> tuple[Any, ...]:
        moved = jaxclamp.directional_derivative(function, (zero,), (v,))
        slopes = along(zero), along(apart), standing_still(zero, 0.0)[0]
        return moved, slopes, jax.jacfwd(along)(zero), jaxclamp.grad(function)(unknown)

    moved, slopes, second, of_nan = derivatives(jnp.zeros(2), jnp.array([-0.0, 2.0]), jnp.array([NAN, 1.0]))
    np.testing.assert_allclose(moved, [0, 5], rtol=1e-6)
    np.testing.assert_allclose(slopes, [[0.6, -0.8], [0, 1], [0, 0]], rtol=1e-6)
    assert not jnp.any(second)
    assert jnp.isnan(of_nan).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_along_a_direction_beside_an_integer(dtype: str) -> None:
    """An integer does not move: at 0 the norm of (x, 0) is |x|."""
    x, v = jnp.array([0.0, 0.0, -4.0], dtype), jnp.array([-2.0, 2.0, 2.0], dtype)
    for integers in (jnp.array([0, 1, 3]), jnp.array([0, 0, 0])):
        gradient = jaxclamp.grad(lambda x, y=integers: jnp.hypot(x, y).sum(), direction=v)(x)
        assert gradient.dtype == x.dtype
        at_zero = jnp.where(integers == 0, jnp.array([-1.0, 1.0, -1.0]), jnp.array([-1.0, 0.0, -0.8]))
        np.testing.assert_allclose(gradient.astype("float32"), at_zero, rtol=4e-3)


@pytest.mark.parametrize("hypot", [jaxclamp.hypot, jnp.hypot], ids=["jaxclamp", "jax"])
def test_a_number_beside_integers(hypot: Callable[..., jax.Array]) -> None:
    """Its dtype is weak, which JAX ends in the program of an array, and not in that of scalars."""

    def total(y: float) -> jax.Array:
        return hypot(jnp.array([0, 1, 2]), y).sum()

    assert ties(total)(0.0)[1].tied == 1
    assert jaxclamp.grad(total)(0.0) == 1


DEVIATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "std": jnp.std,
    "not corrected": functools.partial(jnp.std, ddof=1),
    "compiled": jax.jit(jnp.std),
    "along an axis": lambda x: jnp.std(jnp.stack([x, 2 * x]), axis=1, keepdims=True).sum(),
    "batched": lambda x: jax.vmap(jnp.std)(jnp.stack([x, 2 * x])).sum(),
    "of some": lambda x: jnp.std(x, where=jnp.array([True, True, False])),
    "in bfloat16": lambda x: jnp.std(x.astype(jnp.bfloat16)).astype(float),
    "in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda _, total: total + jnp.std(x), jnp.zeros(())),
    "a root of a variance": lambda x: jnp.sqrt(jnp.var(x)),
    "a power of a variance": lambda x: (jnp.var(x, keepdims=True) ** 0.5).sum(),
    "nanstd": lambda x: jnp.nanstd(jnp.append(x, jnp.nan)),
    "a root of a nanvar": lambda x: jnp.sqrt(jnp.nanvar(x[None], axis=1)).sum(),
    "of complex numbers": lambda x: jnp.std(1j * x),
}


@pytest.mark.parametrize("name", cases(DEVIATIONS))
def test_deviations(name: str) -> None:
    """That of numbers which are equal and move by v is t times that of v, which has the gradient of v."""
    function, v = DEVIATIONS[name], jnp.array([3.0, -4.0, 2.0])
    rewritten = min_norm(function)

    @jax.jit
    def at(x: jax.Array) -> tuple[Any, ...]:
        values = rewritten(x), function(x)
        return *jaxclamp.value_and_grad(function, direction=v)(x), values, jax.grad(rewritten)(x)

    gradient_of_v = jax.jit(jax.grad(function))(v)
    for x in (jnp.ones(3), v):
        value, gradient, (of_rewritten, own), at_ties = at(x)
        np.testing.assert_allclose(gradient, gradient_of_v, rtol=1e-5)
        # Programs that XLA fuses in different ways round differently.
        np.testing.assert_allclose([value, of_rewritten], own, rtol=1e-6)
        np.testing.assert_allclose(at_ties, gradient_of_v if x is v else jnp.zeros(3), rtol=1e-5)


@pytest.mark.parametrize("check_vma", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_deviations_on_devices(check_vma: bool) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    shard = functools.partial(jax.shard_map, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P(), check_vma=check_vma)
    total = shard(lambda x: jax.lax.psum(jnp.std(x), "d"))
    gradient = jax.jit(jaxclamp.grad(total, direction=jnp.array([1.0, 2.0, 5.0, 3.0])))(jnp.ones(4))
    np.testing.assert_allclose(gradient, [-0.5, 0.5, 0.5, -0.5], rtol=1e-5)
    norms = {
        "psum": shard(lambda x: jnp.sqrt(jax.lax.psum(jnp.sum(x * x), "d"))),
        "pmean": shard(lambda x: jnp.sqrt(jax.lax.pmean(jnp.mean(x**2), "d") / 0.25)),
    }
    for norm in norms.values():
        gradient = jax.jit(jaxclamp.grad(norm, direction=jnp.array([1.0, 1.0, -3.0, 5.0])))(jnp.zeros(4))
        np.testing.assert_allclose(gradient, np.array([1, 1, -3, 5]) / 6, rtol=1e-5)
        assert not jax.jit(jax.grad(min_norm(norm)))(jnp.zeros(4)).any()


def test_quotients_of_norms_and_numbers_that_move() -> None:
    function = lambda x, y: jnp.sqrt(jnp.sum(x**2) / y)  # noqa: E731
    gradient = jaxclamp.grad(function, (0, 1), direction=(jnp.array([3.0, -4.0]), jnp.array(1.0)))
    np.testing.assert_allclose(gradient(jnp.zeros(2), jnp.array(4.0))[0], [0.3, -0.4], rtol=1e-6)
    assert gradient(jnp.zeros(2), jnp.array(4.0))[1] == 0
    assert jnp.isnan(gradient(jnp.zeros(2), jnp.array(0.0))[0]).all()


@jax.custom_jvp
def versine(x: jax.Array) -> jax.Array:
    return 1 - jnp.cos(x)


versine.defjvps(lambda tangent, _, x: jnp.sin(x) * tangent)


def test_roots_of_other_functions_of_squares() -> None:
    """At 0 it is about |x|**2: the slope |v| of a norm was found."""
    root = lambda x: jnp.sqrt(versine(jnp.sum(x**2)))  # noqa: E731
    assert jnp.isnan(jaxclamp.directional_derivative(root, (jnp.zeros(2),), (jnp.ones(2),))[1])


def squares(x: jax.Array) -> jax.Array:
    """Those of the distances between points."""
    return jnp.sum((x[:, None] - x) ** 2, -1)


@jax.jit
def ends(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x[0], x[-1]


BY_SELECTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "the nearest, of all but itself": lambda x: jnp.sqrt(jnp.where(jnp.eye(3) > 0, jnp.inf, squares(x)).min(0)).sum(),
    "the farthest": lambda x: squares(x).max() ** 0.5,
    "the larger": lambda x: jnp.sqrt(jnp.maximum(x[0, 0] ** 2, jnp.minimum(x[0, 1] ** 2, jnp.sum(x[1] ** 2)))),
    "the larger, and 0": lambda x: jnp.sqrt(jnp.maximum(x[0, 0] ** 2, jnp.sum(x[1] ** 2)) + 0.0),  # as by an optimizer
    "clipped": lambda x: jnp.sqrt(jnp.clip(jnp.sum(x**2, 1), 0.0, 5.0)).sum(),
    "bounded": lambda x: jnp.sqrt(jnp.minimum(jnp.sum(x**2, 1), 5.0))[0],
    "sorted": lambda x: jnp.sqrt(jnp.sort(jnp.sum(x**2, 1))) @ jnp.arange(3.0),
    "the first k": lambda x: jnp.sqrt(jax.lax.top_k(jnp.sum(x**2, 1), 2)[0]) @ jnp.array([2.0, 1.0]),
    "running": lambda x: jnp.sqrt(jax.lax.cummin(jnp.sum(x**2, 1))).sum(),
    "of pairs": lambda x: jnp.sqrt(squares(x)[jnp.triu_indices(3, 1)]).sum(),
    "one of them": lambda x: jnp.sqrt(squares(x)[0, 1]),
    "turned round": lambda x: jnp.sqrt(squares(x)[:1, :0:-1]).sum(),
    "repeated": lambda x: jnp.sqrt(jnp.tile(jnp.sum(x**2, 1), 2)).sum(),
    "of windows": lambda x: jnp.sqrt(jax.lax.reduce_window(x**2, 0.0, jax.lax.add, (2, 2), (1, 1), "SAME")).sum(),
    "by a call": lambda x: jnp.sqrt(ends(jnp.sum(x**2, 1))[1]),
    "padded": lambda x: jnp.sqrt(jnp.pad(jnp.sum(x**2, 1), 1, constant_values=4.0)).sum(),
    "stacked": lambda x: jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(x[0] ** 2), x[1, 0] ** 2]))),
    "joined": lambda x: jnp.sqrt(jnp.sum(jnp.concatenate([x[0] ** 2, jnp.ravel(x[1:] ** 2)]))),
    "selected": lambda x: jnp.sqrt(jnp.where(jnp.arange(3) > 1, jnp.sum(x**2, 1), x[0, 1] ** 2)).sum(),
}


@pytest.mark.parametrize("name", cases(BY_SELECTIONS))
def test_roots_of_selected_sums(name: str) -> None:
    """At 0 they have the gradient that they have at v; values to the bit. Under `min_norm` all is 0 at 0."""
    function, x = BY_SELECTIONS[name], jnp.zeros((3, 2))
    v = jnp.array([[0.25, -1.0], [0.5, 0.75], [-0.5, 0.125]])  # along which no two distances are equal
    under_min_norm = jax.jit(jax.grad(min_norm(function)))
    gradient = jax.jit(jaxclamp.grad(function, direction=v))(x)
    np.testing.assert_allclose(gradient, under_min_norm(v), rtol=1e-5, equal_nan=False)
    assert not jnp.any(under_min_norm(x))
    for changed in (min_norm(function), lambda x: jaxclamp.value_and_grad(function)(x)[0]):
        assert changed(v / 3).tobytes() == function(v / 3).tobytes()


def test_what_fills_a_selection_has_its_root() -> None:
    """The number that a gather gives for an index that is out of bounds; the fill itself was the result, 4."""
    read = lambda x: jnp.minimum(x**2, 9.0).at[jnp.array([0, 7])].get(mode="fill", fill_value=4.0)  # noqa: E731
    assert jaxclamp.value_and_grad(lambda x: jnp.sqrt(read(x)).sum())(jnp.ones(2))[0] == 3.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_power_of_what_is_selected_and_converted(dtype: str) -> None:
    """The exponent has the dtype behind the conversion: JAX refused it before."""
    smaller = lambda x: jnp.minimum(x[0] ** 2, 4 * x[1] ** 2).astype("float32") ** 0.5  # noqa: E731
    v = jnp.array([1.0, 0.25], dtype)
    assert jaxclamp.grad(smaller, direction=v)(0 * v).tolist() == [0.0, 2.0]


def test_selections_among_numbers_of_both_signs() -> None:
    """A root of each of them would be NaN, and with it the largest, or has an infinite slope."""
    bounded = lambda x: jnp.sqrt(jnp.max(jnp.where(jnp.array([True, False]), x**2, -jnp.inf)))  # noqa: E731
    beside_another = lambda x: jnp.sqrt(jnp.maximum(jnp.sum(x**2), x[0]))  # noqa: E731
    for function in (bounded, beside_another):
        for changed in (min_norm(function), lambda x, fun=function: jaxclamp.value_and_grad(fun)(x)[0]):
            assert changed(jnp.array([2.0, -1.0])) == function(jnp.array([2.0, -1.0]))
    assert not jnp.isfinite(jaxclamp.grad(beside_another)(jnp.zeros(2))).all()


@pytest.mark.parametrize("signed", [lambda x, y: jax.lax.select(y > 0, x, jnp.full(2, -1.0)), lambda x, y: x / y])
def test_sums_of_both_signs(signed: Callable[..., jax.Array]) -> None:
    """1 - 1 is 0 where the powers are not: the slope of its root is infinite."""
    y = jnp.array([1.0, -1.0])
    for changed in (jaxclamp.grad, lambda function: jax.grad(min_norm(function))):
        gradient = changed(lambda x: jnp.sqrt(jnp.sum(signed(x * x, y))))(jnp.ones(2))
        assert not jnp.isfinite(gradient[0])


def test_without_jit() -> None:
    with jax.disable_jit():
        for function in (jnp.std, BY_SQUARES["a root of squares"]):
            assert jnp.isfinite(jaxclamp.grad(function)(jnp.zeros(2))).all()


def test_a_function_of_that_name_is_another() -> None:
    """Of which a result is an operand, or is returned twice."""

    @jax.jit
    def _var(x: jax.Array) -> tuple[jax.Array, ...]:
        return x, jnp.abs(x), jnp.abs(x)

    assert jaxclamp.grad(lambda x: sum(_var(x)), direction=-1.0)(0.0) == -1


def test_programs_of_norms() -> None:
    """Which have a gradient at 0: 0, where the norm is squared or bounded; choices see how it moves."""
    x = jnp.zeros(2)
    for function in (
        lambda x: jnp.linalg.norm(x) ** 2,
        lambda x: jnp.maximum(jnp.linalg.norm(x), 1e-3),
        lambda x: jnp.where(jnp.linalg.norm(x) > 0, 0.0, jnp.hypot(*x)),
    ):
        assert jaxclamp.grad(function)(x).tolist() == [0, 0]
    around = jaxclamp.subdifferential(jnp.linalg.norm)(x)
    np.testing.assert_allclose(around.min_norm, 0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(np.array(around.gradients), axis=1), 1, rtol=1e-5)
