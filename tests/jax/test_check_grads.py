"""`jaxclamp.check_grads`: right gradients pass, wrong ones fail, at kinks and elsewhere."""

from __future__ import annotations

import collections
import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import jaxclamp
from jaxclamp import CONVENTIONS, OPS, Op
from jaxclamp._checks.check_grads import _Flat
from jaxclamp._shared.gradient_check import check
from jaxclamp._shared.hull import nearest
from jaxclamp._shared.pieces import Pieces
from jaxclamp._shared.verdict import GradientReport, Kind, Verdict
from tests.support.verdicts import kinds, refused, with_gradient

F64 = 2.0**-52
RECORDS = Path(__file__).parents[2] / "interop" / "answers"


def wedge(k: int, x: jax.Array) -> jax.Array:
    """Not 0 for x between k - 1 and k times y alone."""
    return jnp.maximum(0.0, jnp.minimum(x[0] - (k - 1) * x[1], k * x[1] - x[0]))


RIGHT = {
    "amax, four-way tie": (jnp.max, np.zeros(4), {"least norm": 1}),
    "relu": (jax.nn.relu, np.array([-1.0, 0.0, 2.0]), {"least norm": 1}),
    "abs": (jnp.abs, np.array([-1.0, 0.0, 2.0]), {"member": 1}),
    "pooling": (lambda x: jaxclamp.max_pool2d(x, 2).sum(), np.zeros((1, 4, 4)), {"least norm": 4}),
    "many kinks in one sum": (lambda x: jnp.mean(jax.nn.relu(x)), np.zeros(200), {"least norm": 1}),
    "smallest of absolute values": (lambda x: jnp.min(jnp.abs(x)), np.zeros(3), {"member": 1}),
    "smallest, still along each entry": (
        jaxclamp.min_norm(lambda x: jnp.min(jnp.abs(x))),
        np.zeros(2),
        {"least norm": 1},
    ),
    "a product of zeros": (jnp.prod, np.zeros(3), {}),
    "ties of many": (jnp.max, np.zeros(40), {"least norm": 1}),
    "floor": (jnp.floor, np.array([1.0, 1.5]), {"jump": 1}),
    "a value that no branch has": (jnp.sign, np.array([0.0, 1.0]), {"jump": 1}),
    "a thin piece": (
        with_gradient(functools.partial(wedge, 6), lambda x: jnp.array([0.5, -2.5])),
        np.zeros(2),
        {"member": 1},
    ),
    "a thin piece beside a term": (
        with_gradient(lambda x: wedge(6, x) + jnp.max(x[2:]), lambda x: jnp.array([0.5, -2.5, 0.5, 0.5])),
        np.zeros(4),
        {"member": 1},
    ),
    "kink of a network": (lambda x: jnp.sum(jax.nn.relu(_weights(8, 5) @ x)), np.zeros(5), {"least norm": 1}),
}


def _weights(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


SLOW = (
    *("pooling", "many kinks in one sum", "smallest, still along each entry", "ties of many", "a thin piece"),
    *("weights of sum 2", "elu of tinygrad", "twice", "full gradient to each", "one entry of a thin piece"),
)
"""Of right and of wrong gradients, those beside which there is another of the same kind."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in RIGHT])
def test_what_is_right_passes(name: str) -> None:
    function, x, expected = RIGHT[name]
    report = jaxclamp.check_grads(function, (x,))
    assert report
    assert kinds(report) == expected


def test_a_smooth_function_of_several_hundred_inputs() -> None:
    def function(x: jax.Array) -> jax.Array:
        return jnp.tanh(_weights(30, 300) @ x / 10)

    x = np.linspace(-1, 1, 300)
    report = jaxclamp.check_grads(function, (x,))
    assert str(report) == "9000 derivatives: 9000 right"
    twice = with_gradient(lambda x: function(x)[0], lambda x: 2 * jax.grad(lambda x: function(x)[0])(x))
    told = refused(twice, x, atol=1e-6, rtol=1e-3)
    assert told.startswith("check_grads: 300 derivatives: 300 wrong")
    assert " ...], the derivative is [" in told


def at_ties(op: Op) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Arguments on ties, those of elementwise ops in one array each, and which are active: all, or the first alone."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for tie in op.tie_points:
        given = {n: v for n, v in zip(op.signature.parameters, tie, strict=False) if v is not None}
        alone = op.family == "reduction" or op.name == "prelu"
        groups.setdefault(str(given) if alone else tuple(given), []).append(given)
    for members in groups.values():
        names = list(members[0]) if op.family != "reduction" else ["x"]
        arrays = {n: jnp.squeeze(jnp.array([m[n] for m in members], jnp.float64), axis=()) for n in names}
        if op.family == "reduction":
            arrays = {"x": arrays["x"][0]}
        for active in {1: names[:1], len(names): names}.values():
            yield {**members[0], **arrays}, active


@pytest.mark.parametrize(
    "family",
    ["kinked", *(pytest.param(family, marks=pytest.mark.thorough) for family in ("selection", "reduction"))],
)
def test_all_ops_in_all_conventions(family: str) -> None:
    """Two conventions are wrong where x is on both bounds and they are not active: the op is constant there."""
    with jax.enable_x64(True):
        forms = [(op, *form) for op in OPS.values() if op.family == family for form in at_ties(op)]
        calls = [
            (op, arguments, active, ties)
            for op, arguments, active in forms
            for ties in (CONVENTIONS if op.has_conventions else (None,))
        ]

        @jax.jit
        def function(*arrays: dict[str, jax.Array]) -> list[Any]:
            given = {id(arguments): array for (_, arguments, _), array in zip(forms, arrays, strict=True)}
            return [
                op.function(**{**arguments, **given[id(arguments)]}, **({"ties": ties} if ties else {}))
                for op, arguments, _, ties in calls
            ]

        flat = _Flat(function, tuple({n: arguments[n] for n in active} for _, arguments, active in forms))
        flat.ties_at = lambda point: {}  # type: ignore[method-assign]  # lines have a test of their own
        report = check(flat, "", forward=True, reverse=True, atol=None, rtol=None, eps=None)
    told = [f"{op.name}, {', '.join(active)}, {ties}" for op, _, active, ties in calls]
    wrong = collections.Counter(told[int(re.findall(r"\d+", v.output)[0])] for v in report.failures)
    expected = {f"{name}, x, {ties}": 1 for name in ("clamp", "hardtanh") for ties in ("balanced", "inclusive")}
    assert wrong == (expected if family == "selection" else {})
    assert {"not checkable", "modes differ"}.isdisjoint(kinds(report))
    assert ("jump" in kinds(report)) == (family == "kinked")  # hardshrink and threshold
    assert kinds(report)["least norm"] > 20
    assert str(report).splitlines()[14:] == [f"... and {len(report.verdicts) - 12} more"]  # below counts and headings


# What is wrong.


def recorded(framework: str, version: str, cell: str) -> float:
    """What a framework answers at a tie, in its record."""
    record = json.loads((RECORDS / f"{framework}-{version}.json").read_text("utf-8"))
    modes = record["answers"][cell]
    return float(modes.get("both", modes.get("reverse"))[0])


WRONG = {
    "full gradient to each": (
        with_gradient(lambda x: jnp.max(x), lambda x: x == jnp.max(x)),
        np.zeros(3),
        "not a member",
        "1.15",
    ),
    "weights of sum 2": (
        with_gradient(lambda x: jnp.max(x), lambda x: 2 * (x == 0) / 3),
        np.zeros(3),
        "not a member",
        "0.577",
    ),
    "negative weights": (
        with_gradient(lambda x: jnp.max(x), lambda x: jnp.array([1.5, -0.5, 0.0])),
        np.zeros(3),
        "not a member",
        "0.707",
    ),
    "twice": (with_gradient(jnp.sin, jnp.zeros_like), np.float32(1.0), "wrong", "0.54"),
    "identity of two relus": (lambda x: jax.nn.relu(x) - jax.nn.relu(-x), np.float32(0.0), "wrong", "1"),
    "elu of tinygrad": (
        with_gradient(
            lambda x: jax.nn.elu(x, 2.0),
            lambda x: recorded("tinygrad", "0.14.0", "elu(x=0, alpha=2), x, numbers: tinygrad.Tensor.elu"),
        ),
        np.float32(0.0),
        "not a member",
        "1",
    ),
    "prelu of MLX": (
        with_gradient(
            lambda x: jax.nn.leaky_relu(x, 0.25),
            lambda x: recorded("mlx", "0.32.4", "prelu(x=0, weight=0.25), x, numbers: mlx.nn.prelu"),
        ),
        np.float32(0.0),
        "not a member",
        "0.25",
    ),
    "one entry of a thin piece": (
        with_gradient(lambda x: wedge(6, x) + jnp.max(x[2:]), lambda x: jnp.array([1.0, 0.0, 0.5, 0.5])),
        np.zeros(4),
        "not a member",
        "0.909",
    ),
    "a smooth entry beside a kink": (
        with_gradient(lambda x: jnp.max(x[:2]) + jnp.sin(x[2]), lambda x: jnp.array([0.5, 0.5, 1.5])),
        np.zeros(3),
        "least norm, 1 wrong",
        "0.5",
    ),
    "step": (with_gradient(lambda x: jnp.floor(x).sum(), jnp.ones_like), np.float32(1.0), "off the branch", "1"),
    "NaN": (lambda x: jnp.sqrt(jnp.sum(x * x)), np.zeros(2), "not a member", "nan"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in SLOW)) for name in WRONG])
def test_what_is_wrong_fails(name: str) -> None:
    """By how much, too."""
    function, x, kind, distance = WRONG[name]
    assert re.search(rf": \d+ derivatives?: \d+ {kind}\n.*which is {distance}\d* away", refused(function, x)), name


def test_clamp_of_jax_with_bounds_in_the_wrong_order() -> None:
    told = refused(jax.lax.clamp, 2.0, -7.0, -5.0)
    assert "out by args[2]: differentiable and wrong; the gradient is 0, the derivative is 1" in told
    assert jaxclamp.check_grads(jaxclamp.clamp, (-7.0, 2.0, -5.0))


# The Clarke subdifferential, against another way to compute it.


def is_in_hull(point: np.ndarray, corners: np.ndarray) -> bool:
    """By linear programming: whether there are weights."""
    rows = np.vstack([corners.T, np.ones(len(corners))])
    found = linprog(np.zeros(len(corners)), A_eq=rows, b_eq=np.append(point, 1.0), bounds=(0, None))
    return bool(found.status == 0)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(s, marks=pytest.mark.thorough) for s in range(4, 12))])
def test_members_of_random_functions(seed: int) -> None:
    """A minimum of maxima of linear functions, at 0; its pieces are those that random points see."""
    random = np.random.default_rng(seed)
    slopes = random.integers(-2, 3, (2, 4, 3)).astype(float)

    def function(points: np.ndarray) -> np.ndarray:
        return (points @ slopes.reshape(8, 3).T).reshape(-1, 2, 4).max(axis=2).min(axis=1)[:, None]

    points = random.normal(size=(20000, 3))
    which = (points @ slopes.reshape(8, 3).T).reshape(-1, 2, 4)
    outer = which.max(axis=2).argmin(axis=1)
    inner = which[np.arange(len(points)), outer].argmax(axis=1)
    corners = np.unique(slopes[outer, inner], axis=0)
    pieces = Pieces.of(function, np.zeros(3), F64)
    for _ in range(10):
        target = random.dirichlet(np.ones(len(corners))) @ corners if random.random() < 0.5 else random.normal(size=3)
        distances = [
            float(np.linalg.norm(pieces.nearest(0, term, target[term.entries], 1e-6)[0] - target[term.entries]))
            for term in ([] if pieces.sums.is_sum[0] else pieces.terms(0))
        ]
        inside = np.clip(target, *(bound[0] for bound in pieces.bounds)) if not distances else target
        assert (max([*distances, np.abs(inside - target).max()]) < 1e-5) == is_in_hull(target, corners)


def test_nearest_point_of_a_hull() -> None:
    """No corner lies farther ahead of the nearest point: that characterises it."""
    random = np.random.default_rng(0)
    for _ in range(500):
        corners = random.integers(-1, 2, (random.integers(1, 20), random.integers(1, 6))).astype(float)
        target = random.integers(-2, 3, corners.shape[1]) / 3
        point, weights = nearest(corners, target)
        assert weights.min() >= 0
        np.testing.assert_allclose(weights @ corners, point, atol=1e-9)
        assert ((corners - point) @ (point - target)).min() > -1e-6


# Scales. A function of x / scale, times a size: in each entry of another scale it is the same function.


def test_scales_in_jax() -> None:
    """Of ties, steps and kinks beside the point, where inputs are small and outputs are not."""
    with jax.enable_x64(True):
        x = 2.0**-20 * jnp.array([1.0, 1.0, -2.0])
        functions = {
            "least norm": lambda x: jnp.max(2.0**20 * x) + jnp.exp(2.0**20 * x[2]),
            "jump": lambda x: jnp.floor(2.0**20 * x[0]) * 0.5,
            "right": lambda x: jnp.maximum(2.0**20 * x[0], 2.0**20 * x[2]) + jnp.sin(2.0**20 * x).sum(),
        }
        for kind, function in functions.items():
            report = jaxclamp.check_grads(function, (x,))
            assert set(kinds(report)) <= {kind}, kind
        double = with_gradient(functions["right"], lambda x: 1.01 * jax.grad(functions["right"])(x))
        assert "wrong" in refused(double, x)


def test_scale_that_nobody_can_guess() -> None:
    """Of inputs that are 0. Then nothing is said to be wrong, and the scale can be passed."""
    wrong = with_gradient(lambda x: jnp.sin(1e9 * x + 0.5), lambda x: 1.01e9 * jnp.cos(1e9 * x + 0.5))
    with jax.enable_x64(True):
        assert "1 wrong" in refused(wrong, 0.0, scale=1e-9, modes=["rev"])
        assert jaxclamp.check_grads(lambda x, y: jnp.sin(1e9 * x + 0.5) + y, (0.0, 0.0), scale=(1e-9, None))
        for scale in (0.0, -1.0, [1.0], (1.0, float("nan"))):
            with pytest.raises(ValueError, match=r"check_grads: scale (is|has)"):
                jaxclamp.check_grads(jnp.add, (0.0, 0.0), scale=scale)


def test_eps_is_how_far_away_nearby_points_are() -> None:
    """Of a kink that is 0.01 away: points nearer than that do not see it, and those beyond it do."""
    with jax.enable_x64(True):
        kink_beside = lambda x: jnp.abs(x - 1.01)  # noqa: E731
        assert jaxclamp.check_grads(kink_beside, (1.0,), eps=2.0**-10).verdicts == ()
        told = refused(kink_beside, 1.0, eps=2.0**-4)
        assert "1 not checkable\n" in told
        assert "slopes differ at all distances down to 0.06; pass as scale how far the input moves" in told


# The report, and what else is taken.


def test_report_names_entries_and_lines() -> None:
    def function(tree: dict[str, Any], scale: float) -> dict[str, jax.Array]:
        return {"loss": jnp.max(tree["w"]) * scale, "kept": jnp.abs(tree["b"]), "count": jnp.arange(3)}

    tree = {"w": np.zeros((1, 2)), "b": np.array([0.0, 1.0]), "n": 3}
    report = jaxclamp.check_grads(function, (tree, 2.0))
    assert report.derivatives == 3 * 5
    kept, loss = report.verdicts
    assert (kept.kind, kept.output, kept.entries) == ("member", "out['kept'][0]", ("args[0]['b'][0]",))
    assert (loss.kind, loss.output, loss.entries) == (
        "least norm",
        "out['loss']",
        ("args[0]['w'][0, 0]", "args[0]['w'][0, 1]"),
    )
    first = function.__code__.co_firstlineno + 1
    assert kept.line.endswith(f"test_check_grads.py:{first}: abs")
    assert loss.line.endswith(f"test_check_grads.py:{first}: amax")
    assert str(report).splitlines()[0] == "15 derivatives: 12 right, 2 least norm, 1 member"
    assert "args[0]['w'][0, 0], args[0]['w'][0, 1]" in str(report)


def test_the_table_begins_with_what_fails() -> None:
    def verdict(kind: Kind, gradient: float, nearest: float) -> Verdict:
        return Verdict(kind, f"out of {kind}", ("x",), np.array([gradient]), np.array([nearest]), "file.py:1: op")

    report = GradientReport(3, (verdict(Kind.LEAST_NORM, 1e-17, 0.5), verdict(Kind.MODES_DIFFER, -0.0, 2.0)))
    counts, _, first, second = (re.split("  +", line) for line in str(report).splitlines())
    # Where modes differ, reverse mode has a verdict of its own, here that it is right.
    assert counts == ["3 derivatives: 2 right, 1 least norm, 1 modes differ"]
    assert first[:6] == ["modes differ", "out of modes differ", "x", "0", "2", "2"]
    assert second[:6] == ["least norm", "out of least norm", "x", "0", "0.5", "0.5"]


def test_a_line_without_ties_is_not_named() -> None:
    """That of relu at -5, beside a kink that no op has."""
    kink = lambda x: jax.lax.cond(x > 0, lambda x: x, lambda x: 2 * x, x)  # noqa: E731
    (verdict,) = jaxclamp.check_grads(lambda x: kink(x) + jax.nn.relu(x - 5), (0.0,)).verdicts
    assert verdict.line == ""


def test_the_coarsest_dtype_decides() -> None:
    function = _Flat(lambda x, y: x * y.astype(x.dtype), (jnp.float32(1), jnp.bfloat16(1)))
    assert (function.dtype, function.epsilon) == ("bfloat16", 2**-7)


def test_float32_inside() -> None:
    """Values that are less precise than float64, and those that only look as if they were not."""

    def second(function: Callable[..., Any], x: Any) -> Any:
        return function(x)[1]

    for function in (
        lambda x: jnp.maximum(jnp.sin(x.astype(jnp.float32)), 0.0),
        lambda x: jnp.maximum(jnp.sin(x.astype(jnp.float32)).astype(jnp.result_type(x)), 0.0),
    ):
        assert "not checkable" not in kinds(jaxclamp.check_grads(function, (jnp.array([0.0, 1.0]),), modes=["rev"]))
        changed = with_gradient(functools.partial(second, function), lambda x: jnp.array([0.0, 0.9]))
        assert "wrong" in refused(changed, jnp.array([0.0, 1.0]), modes=["rev"])


def test_random_numbers_are_those_that_the_function_draws() -> None:
    """In float64 JAX draws others."""
    key = jax.random.key(0)

    def dropped_out(key: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jnp.abs(x), 0.0) + jax.random.normal(key, x.shape) * x

    report = jaxclamp.check_grads(dropped_out, (key, jnp.array([0.0, 1.0, 2.0])))
    assert "not checkable" not in kinds(report)
    scaled = with_gradient(lambda x: x * jax.random.normal(key), jnp.ones_like)
    assert "1 wrong" in refused(scaled, jnp.float32(1.0))


def untraceable(x: Any) -> Any:
    """Python decides, so that points are computed one by one."""
    return x * x if x > 0 else -x


def test_functions_that_cannot_be_traced() -> None:
    assert jaxclamp.check_grads(untraceable, (1.0,))
    assert kinds(jaxclamp.check_grads(untraceable, (0.0,))) == {"member": 1}


@pytest.mark.thorough
def test_wrong_gradients_of_functions_that_cannot_be_traced() -> None:
    assert "1 wrong" in refused(with_gradient(lambda x: untraceable(x), lambda x: 3 * x), 1.0)


def test_what_is_not_finite_is_not_checkable() -> None:
    report = jaxclamp.check_grads(lambda x: jnp.log(x), (np.array([-1.0, 1.5]),))
    assert kinds(report) == {"not checkable": 1}
    assert kinds(jaxclamp.check_grads(jax.nn.relu, (np.array([np.inf, 1.0]),))) == {"not checkable": 2}
    assert "the value is not finite" in refused(jnp.log, -1.0)  # then nothing was checked


def test_slopes_that_grow_without_bound_are_not_checkable() -> None:
    """Of one entry, of several together, and of all that there is; beside them the others are checked."""

    def x_log_x(x: jax.Array) -> jax.Array:
        return jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(x == 0, 1.0, jnp.abs(x))))

    @jax.custom_jvp
    def several(x: jax.Array) -> jax.Array:
        powers = jnp.stack([jnp.cbrt(x[0]), 3 * jnp.abs(x[1]) ** 0.9, x_log_x(x[2])])
        return jnp.append(powers + jnp.abs(x[3]), jnp.sqrt(jnp.sum(jnp.abs(x[:3]))) + x[3])

    several.defjvp(lambda primals, tangents: (several(*primals), tangents[0][3] * jnp.ones(4)))
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            point = jnp.zeros(4, dtype)
            assert kinds(jaxclamp.check_grads(several, (point,), modes=["rev"])) == {"not checkable": 4, "member": 3}
            assert "since slopes grow without bound" in refused(lambda x: jnp.sqrt(jnp.abs(x)), point[0])
            changed = with_gradient(lambda x: jnp.sqrt(x[0]) + x[1], lambda x: jnp.array([0.0, 2.0]))
            assert "1 not checkable, 1 wrong" in refused(changed, point[:2] + jnp.array([0.0, 1.0]), modes=["rev"])
    for steep in (lambda x: jnp.tanh(1e6 * x), lambda x: jnp.abs(x) ** 1.5, lambda x: jax.nn.relu(x - 1e-7)):
        assert "not checkable" not in kinds(jaxclamp.check_grads(steep, (0.0,), modes=["rev"], atol=np.inf))


def test_bad_calls_are_refused() -> None:
    for modes in ([], ["forward"]):
        with pytest.raises(ValueError, match="check_grads: modes is"):
            jaxclamp.check_grads(jnp.sin, (1.0,), modes=modes)  # type: ignore[arg-type]
    for settings in ({"eps": 0.0}, {"atol": -1.0}, {"rtol": float("nan")}):
        with pytest.raises(ValueError, match=f"check_grads: {next(iter(settings))} is"):
            jaxclamp.check_grads(jnp.sin, (1.0,), **settings)
    with pytest.raises(TypeError, match="args has no floating"):
        jaxclamp.check_grads(jnp.sin, (1,))
    with pytest.raises(TypeError, match="fun is 3; pass a function"):
        jaxclamp.check_grads(3, (1.0,))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"args is 1\.0; pass a tuple"):
        jaxclamp.check_grads(jnp.sin, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(lambda x: jaxclamp.check_grads(jnp.sin, (x,)))(1.0)
    with pytest.raises(TypeError, match="args has complex"):
        jaxclamp.check_grads(jnp.sin, (1j,))
    with pytest.raises(TypeError, match="result of fun has no floating"):
        jaxclamp.check_grads(jnp.argmax, (np.zeros(2),))


def test_a_function_without_forward_mode_is_told_the_mode_it_has() -> None:
    pulled = jax.custom_vjp(jnp.sin)
    pulled.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (cotangent * jnp.cos(x),))
    with pytest.raises(TypeError) as caught:
        jaxclamp.check_grads(pulled, (1.0,))
    assert any('modes=["rev"]' in note for note in caught.value.__notes__)
    jaxclamp.check_grads(pulled, (1.0,), modes=["rev"])


def test_what_the_function_writes_to_its_arguments_is_dropped() -> None:
    def step(state: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        state["mean"] = state["mean"] + x
        return x * state["scale"]

    state = {"mean": jnp.array(0.0), "scale": jnp.array(2.0)}
    jaxclamp.check_grads(step, (state, jnp.array(3.0)))
    assert float(state["mean"]) == 0.0


def test_nan_of_a_branch_that_is_not_taken() -> None:
    """The values say that there is a derivative; the gradient of the whole program is right."""

    def root(x: jax.Array) -> jax.Array:
        return jnp.where(x > 0, jnp.sqrt(x), 0.0)

    told = refused(root, jnp.array([-1.0]))
    assert "differentiable and wrong; the gradient is nan, the derivative is 0" in told
    assert jaxclamp.check_grads(
        with_gradient(lambda x: root(x)[0], jaxclamp.grad(lambda x: root(x)[0])), (-jnp.ones(1),)
    )


def test_an_array_without_elements_beside_numbers() -> None:
    assert jaxclamp.check_grads(lambda x, y: y * (1 + x.sum()), (jnp.zeros((0, 2)), 2.0)).derivatives == 1


def test_a_word_beside_numbers() -> None:
    """The function branches by it, and may return it."""

    def padded(x: jax.Array, mode: str) -> dict[str, Any]:
        return {"mode": mode, "total": jnp.pad(jnp.abs(x), 1, mode=mode).sum()}

    assert str(jaxclamp.check_grads(padded, (jnp.array([1.0, -2.0]), "edge"))) == "2 derivatives: 2 right"


def test_a_point_that_is_not_finite() -> None:
    report = jaxclamp.check_grads(jnp.tanh, (np.array([np.inf, 1.0]),))
    assert [verdict.reason for verdict in report.verdicts] == ["the input is not finite"] * 2


def test_small_numbers_are_written() -> None:
    error = refused(with_gradient(lambda x: 1e-9 * x, lambda x: 2e-9), 1.0)
    assert "the gradient is 2e-09, the derivative is 1e-09, which is 1e-09 away" in error


@pytest.mark.parametrize("x", [5e-324, -1e-310, 1e-290])
def test_the_smallest_inputs(x: float) -> None:
    with jax.enable_x64(True):
        assert jaxclamp.check_grads(lambda x: 0.25 * x, (np.float64(x),)).verdicts == ()


def test_an_input_beside_the_largest_number() -> None:
    with jax.enable_x64(True):
        assert "values nearby are not finite" in refused(lambda x: 0.25 * x, 1.7e308)


# Rounding of gradients, and noise of values.


@pytest.mark.parametrize("row", [*(pytest.param(row, marks=pytest.mark.thorough) for row in (0, 4)), 12])
def test_what_rounding_leaves_of_terms_that_cancel(row: int) -> None:
    """The functions are constant, or nearly; their gradients in float32 are not 0, in one mode or in both."""
    x = np.random.default_rng(0).normal(size=(13, 5))[row]
    in_float32 = jnp.asarray(x, jnp.float32)
    assert str(jaxclamp.check_grads(lambda x: jax.nn.softmax(x).sum(), (in_float32,))) == "5 derivatives: 5 right"
    told = refused(lambda x: jax.nn.standardize(x).mean(), in_float32)
    assert told.startswith("check_grads: 5 derivatives: 5 not checkable\n")
    assert "scale=inf" not in told  # beside a gradient of 0
    with jax.enable_x64(True):
        assert not jaxclamp.check_grads(lambda x: jax.nn.softmax(x).sum(), (x,)).verdicts


def test_a_gradient_that_is_rounded_more_than_values() -> None:
    """Numbers of 1e5 in float32 are 1 / 128 apart: so far the derivative is off, and up to half of it is no error."""

    def with_digits_lost(factor: float) -> Callable[..., Any]:
        return with_gradient(jnp.sin, lambda x: (1e5 + factor * jnp.cos(x)) - 1e5)

    told = refused(with_digits_lost(1.0), jnp.float32(1.0))
    (rounding,) = re.findall(r"1 not checkable\n.*rounding changes the gradient by (\S+); pass float64", told)
    assert 1 / 256 < float(rounding) < 1 / 16
    assert "1 wrong" in refused(with_digits_lost(1.5), jnp.float32(1.0))


def test_a_gradient_that_is_wrong_in_float32_alone() -> None:
    """At one point, so that nearby ones do not tell that it was rounded."""

    def gradient(x: jax.Array) -> jax.Array:
        return jnp.where((x == 1.0) & (x.dtype == jnp.float32), 2.0, jnp.cos(x))

    assert "1 wrong" in refused(with_gradient(jnp.sin, gradient), jnp.float32(1.0))


@pytest.mark.parametrize("x", [0.0, 1.0])
def test_a_gradient_whose_effect_is_less_than_the_noise(x: float) -> None:
    """Values of 1e8 in float32 are 8 apart, and tell neither 1 from 0.9 nor from 2."""
    function = lambda x: jnp.float32(1e8) + x.astype(jnp.float32)  # noqa: E731
    for at, slope, needed in (x, 0.9, "2e+04"), (64.0, 1.0, "2e+04"), (x, 2.0, "1e+04"):
        changed = with_gradient(function, lambda x: jnp.full_like(x, slope))  # noqa: B023
        told = f"values have an error of 1e+01, which hides one of 1 % in the gradient; pass scale={needed} if"
        assert told in refused(changed, jnp.float32(at))
    assert jaxclamp.check_grads(with_gradient(function, jnp.zeros_like), (jnp.float32(x),)).verdicts == ()


def test_slopes_of_points_far_away_confirm_a_gradient_and_refute_none() -> None:
    """Nearer than 1e-7, values of 1 in float32 do not change."""
    function, x = lambda x: 1 + x.astype(jnp.float32), jnp.float32(1e-9)
    assert jaxclamp.check_grads(function, (x,)).verdicts == ()
    told = refused(with_gradient(function, lambda x: jnp.full_like(x, 2.0)), x)
    assert "1 not checkable" in told
    far = re.search(r"slope is that of points (\S+) away; pass scale=\1 if the function is smooth so far", told)
    assert far
    assert 1e-7 < float(far[1]) < 4


@pytest.mark.parametrize(
    ("function", "gradient", "x", "kind"),
    [
        (jnp.sin, lambda x: jnp.cos(x) + 0.2, jnp.float32(100.0), "1 wrong"),
        (lambda x: jnp.max(x), lambda x: jnp.array([0.7, 0.5]), jnp.full(2, 100.0), "2 not a member"),
    ],
    ids=["sin", "max"],
)
def test_atol_is_in_units_of_the_derivative(function: Any, gradient: Any, x: jax.Array, kind: str) -> None:
    """Of inputs of 100, whose scale is 128."""
    changed = with_gradient(function, gradient)
    assert jaxclamp.check_grads(changed, (x,), atol=0.3, modes=["rev"])
    assert kind in refused(changed, x, atol=0.05, modes=["rev"])


def test_pieces_between_the_axes_that_do_not_converge() -> None:
    """Along the axes it is ``|x|``; beside them slopes grow without bound, so that no piece is smooth."""
    steep = with_gradient(lambda x: jnp.abs(x[0]) + jnp.abs(x[0] * x[1]) ** 0.45, jnp.zeros_like)
    assert kinds(jaxclamp.check_grads(steep, (jnp.zeros(2),), modes=["rev"])) == {"not checkable": 1}


def test_bfloat16_inside() -> None:
    """Its radius is so large that one step of the ladder leads as far as the search for slopes goes."""
    assert jaxclamp.check_grads(lambda x: 0 * x.astype(jnp.bfloat16), (jnp.full(1, 4, jnp.bfloat16),)).verdicts == ()
