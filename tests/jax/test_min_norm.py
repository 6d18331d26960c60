"""`min_norm` against the ops themselves: every native spelling, in every context, and what has to stay untouched."""

import functools
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import check_jaxpr
from jax.sharding import NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

import jaxclamp
from jaxclamp import OPS, TIES, Op, min_norm, ties
from jaxclamp._shared.counterparts import Counterpart
from jaxclamp._shared.tie_cases import cases, is_differentiable
from jaxclamp._transforms.jaxprs import _rewritten

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # flax and what it imports
    from flax import nnx

DEVICES = 8
QUICK = ("leaky_relu", "hardtanh", "maximum", "fmax", "amax", "clamp_min", "abs", "relu6", "hardsigmoid")
"""One op of each kind of formula; the spellings of the others are asked one by one below."""
SPELLINGS = [
    pytest.param(op, counterpart, id=counterpart.text, marks=[pytest.mark.thorough] * (op.name not in QUICK))
    for op in OPS.values()
    for counterpart in op.counterparts
    if counterpart.framework == "jax"
]


def mesh(kind: jax.sharding.AxisType = jax.sharding.AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh((DEVICES,), ("batch",), axis_types=(kind,))


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def gradient_of_sum(function: Callable[[Any], jax.Array], at: Any) -> Any:
    return jax.grad(lambda at: function(at).sum())(at)


def names_in(jaxpr: Any) -> list[str]:
    """Primitives and names of inner jits, in order, those in bodies included."""
    return str(jaxpr).replace("=", " ").split()


def forms(op: Op) -> Iterator[tuple[tuple[str, ...], dict[str, np.ndarray], dict[str, Any]]]:
    """(active, arrays, all else) for every tie of ``op`` and every set of active operands; ties on numbers together."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for arguments, active, inactive in cases(op):
        constant = {n for n, v in arguments.items() if not is_differentiable(v)}
        constant |= arguments.keys() - active if inactive == "numbers" else set()
        others = tuple((n, v) for n, v in arguments.items() if n in constant)
        arrays = {n: np.asarray(v) for n, v in arguments.items() if n not in constant}
        groups.setdefault((active, others, arrays["x"].shape), []).append(arrays)
    for (active, others, shape), members in groups.items():
        for group in [members] if shape == () else [[member] for member in members]:
            yield active, {n: np.stack([m[n] for m in group]) for n in group[0]}, dict(others)


@pytest.mark.parametrize(("op", "native"), SPELLINGS)
def test_native_spelling_becomes_the_op(op: Op, native: Counterpart) -> None:
    """The native value to the bit, and the gradient of the op at every tie, for every set of active operands."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(op.function).parameters.items()}
    asked = 0
    for active, arrays, others in forms(op):
        unknown = {n: v for n, v in {**arrays, **others}.items() if n not in native.parameters}
        if any(n in active or np.any(v != defaults[n]) for n, v in unknown.items()):
            continue
        given = [{n: jnp.asarray(a, dtype) for n, a in arrays.items()} for dtype in ("float32", "bfloat16")]

        def of_all(function: Callable[..., jax.Array], arrays: Any) -> jax.Array:
            f = lambda arrays: function({**arrays, **others})  # noqa: B023, E731
            return jax.vmap(f)(arrays) if op.family == "reduction" else f(arrays)

        def gradient(function: Callable[..., jax.Array], arrays: Any) -> Any:
            at = {name: arrays[name] for name in active}  # noqa: B023
            return gradient_of_sum(lambda at: of_all(function, {**arrays, **at}), at)

        rewritten = min_norm(native)

        @jax.jit
        def everything(given: Any) -> Any:
            values = [[of_all(f, arrays) for arrays in given] for f in (rewritten, native)]  # noqa: B023
            functions = rewritten, lambda arguments: op.function(**arguments)  # noqa: B023
            return values, [[gradient(f, arrays) for arrays in given] for f in functions]

        try:
            jax.eval_shape(lambda given: [of_all(native, arrays) for arrays in given], given)
        except TypeError:
            continue  # it does not take the arguments in this form
        asked += 1
        for found, expected in everything(given):
            assert jax.tree.all(jax.tree.map(same_bits, found, expected)), (active, arrays, others)
    assert asked


X = jnp.array([-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 5.0, 6.0, 7.0])
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "abs": (jnp.abs, jaxclamp.abs),
    "max": (lambda x: jnp.maximum(0.0, x), lambda x: jaxclamp.maximum(0.0, x)),
    "min": (lambda x: jnp.minimum(x, jnp.full_like(x, 3.0)), lambda x: jaxclamp.minimum(x, 3.0)),
    "fmax": (lambda x: jnp.fmax(x, 0.5), lambda x: jaxclamp.fmax(x, 0.5)),
    "fmin": (lambda x: jnp.fmin(x, 0.5), lambda x: jaxclamp.fmin(x, 0.5)),
    "clip": (lambda x: jnp.clip(x, 0, 6), lambda x: jaxclamp.clip(x, 0, 6)),
    "clip by keyword": (lambda x: jnp.clip(x, max=6.0, min=0.0), lambda x: jaxclamp.clip(x, 0.0, 6.0)),
    "clip from below": (lambda x: jnp.clip(x, 0.0), lambda x: jaxclamp.clamp_min(x, 0.0)),
    "clip from above": (lambda x: jnp.clip(x, max=6.0), lambda x: jaxclamp.clamp_max(x, 6.0)),
    "lax.clamp": (lambda x: jax.lax.clamp(x.dtype.type(0), x, x.dtype.type(6)), lambda x: jaxclamp.clamp(x, 0.0, 6.0)),
    "leaky_relu": (jax.nn.leaky_relu, jaxclamp.leaky_relu),
    "leaky_relu, slope": (lambda x: jax.nn.leaky_relu(x, -0.5), lambda x: jaxclamp.leaky_relu(x, -0.5)),
    "elu": (lambda x: jax.nn.elu(x, alpha=2.0), lambda x: jaxclamp.elu(x, alpha=2.0)),
    "selu": (jax.nn.selu, jaxclamp.selu),
    "celu": (jax.nn.celu, jaxclamp.celu),
    "hard_tanh": (jax.nn.hard_tanh, jaxclamp.hard_tanh),
    "hard_sigmoid": (jax.nn.hard_sigmoid, jaxclamp.hard_sigmoid),
    "hard_swish": (jax.nn.hard_swish, jaxclamp.hard_swish),
    "relu": (jax.nn.relu, jaxclamp.relu),
    "relu6": (jax.nn.relu6, jaxclamp.relu6),
    "reduce_max": (lambda x: jnp.max(jnp.stack([x, 2 * x]), 0), lambda x: jaxclamp.amax(jnp.stack([x, 2 * x]), 0)),
    "reduce_min": (lambda x: jnp.min(jnp.stack([x, 2 * x]), 0), lambda x: jaxclamp.amin(jnp.stack([x, 2 * x]), 0)),
}


def everything(side: int) -> Callable[[jax.Array], jax.Array]:
    """All native spellings (side 0), or all ops (side 1), of one vector; the results are told apart by weights."""
    return lambda x: sum((1 + k) * pair[side](x) for k, pair in enumerate(PAIRS.values()))


def over_rows(
    batched: Callable[..., Callable[..., jax.Array]],
) -> Callable[[Callable[..., jax.Array]], Callable[[jax.Array], jax.Array]]:
    """``batched(f)`` on twice as many rows as there are devices, of which the last is x."""

    def context(f: Callable[..., jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: batched(f)(x - jnp.arange(2 * DEVICES - 1.0, -1.0, -1.0)[:, None])[-1]

    return context


def scanned(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda x: jax.lax.scan(lambda carry, row: (carry + 1, f(row)), 0, x)[1]


def sharded(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return jax.shard_map(f, mesh=mesh(), in_specs=P("batch"), out_specs=P("batch"))


def repeated(f: Callable[..., jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def once(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda state: state[0] < 1, lambda state: (state[0] + 1, f(state[1])), (0, x))[1]

    return once


def through_cond(f: Callable[..., jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.cond(x.sum() < 1e9, f, lambda x: x, x)


CONTEXTS: dict[str, Callable[[Callable[..., jax.Array]], Callable[[jax.Array], jax.Array]]] = {
    "call": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": through_cond,
    "switch": lambda f: lambda x: jax.lax.switch((x.sum() < 1e9).astype(int), [lambda x: x, f, lambda x: -x], x),
    "while": repeated,
    "scan": over_rows(scanned),
    "vmap": over_rows(jax.vmap),
    "vmap of the last axis": over_rows(lambda f: lambda x: jax.vmap(f, in_axes=-1, out_axes=-1)(x.T).T),
    "vmap of vmap": over_rows(lambda f: lambda x: jax.vmap(jax.vmap(f))(x[None])[0]),
    "shard_map": over_rows(lambda f: sharded(jax.vmap(f))),
    "shard_map, unchecked": over_rows(
        lambda f: jax.shard_map(jax.vmap(f), mesh=mesh(), in_specs=P("batch"), out_specs=P("batch"), check_vma=False)
    ),
    "nested": over_rows(
        lambda f: jax.jit(jax.checkpoint(sharded(scanned(jax.jit(CONTEXTS["cond"](jax.checkpoint(f)))))))
    ),
}


QUICK_CONTEXTS = ("while", "vmap of the last axis", "nested")
"""Those that `make test` asks; jit, checkpoint, scan, cond and shard_map are within the nested one."""


@pytest.mark.parametrize(
    "context", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK_CONTEXTS)) for name in CONTEXTS]
)
def test_inside(context: str) -> None:
    native, ours = (CONTEXTS[context](everything(side)) for side in (0, 1))
    rewritten = min_norm(native)

    @jax.jit
    def values_and_tangents(x: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        return [jax.jvp(f, (x,), (jnp.ones_like(x),)) for f in (rewritten, native, ours)]

    (value, tangent), (native_value, native_tangent), (_, expected) = values_and_tangents(X)
    np.testing.assert_allclose(value, native_value, rtol=1e-6)  # XLA rounds what it fuses in other ways
    np.testing.assert_allclose(tangent, expected, rtol=1e-6)
    assert not np.allclose(tangent, native_tangent)
    if context != "while":  # which has no reverse mode
        gradient = jax.jit(lambda x: gradient_of_sum(rewritten, x))(X)
        np.testing.assert_allclose(gradient, tangent, rtol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_each_spelling_where_its_jaxpr_changes(name: str) -> None:
    """One by one, so that no two deviations can cancel: batched in two ways, and with the types of a shard_map."""
    native, ours = PAIRS[name]

    def both(f: Callable[[jax.Array], jax.Array], rewrite: Callable[..., Any]) -> list[tuple[jax.Array, jax.Array]]:
        x = X[:, None, None] + jnp.arange(6.0).reshape(2, 3)
        batched = [(rewrite(jax.vmap(f, in_axes=axis)), x) for axis in (0, 2)]
        sharded_too = (rewrite(sharded(f)), jnp.stack([X] * DEVICES))
        return [(g(x), gradient_of_sum(g, x)) for g, x in (*batched, sharded_too)]

    found, expected = jax.jit(lambda: [both(native, min_norm), both(ours, lambda f: f)])()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


def test_x64() -> None:
    """The types of constants inside the library functions depend on the mode, not only on those of the operands."""
    for x64 in (False, True, False):
        with jax.enable_x64(x64):
            x = jnp.asarray(np.asarray(X), "float32")
            found, expected = jax.jit(
                lambda x: [gradient_of_sum(f, x) for f in (min_norm(everything(0)), everything(1))]
            )(x)
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_parameters_that_are_differentiated_and_batched() -> None:
    """A slope for each channel, for each example and for both, as vmap aligns them with x."""
    slope = jnp.array([-0.5, 0.25, 2.0])
    points = np.zeros((3, 3), np.float32), np.eye(3, dtype=np.float32)  # off the tie, slopes count as well
    all_axes = ((None, None), (0, None), (None, 0), (0, 0), (1, 0), (1, None))

    @jax.jit
    def gradients(x: jax.Array, slope: jax.Array) -> list[list[Any]]:
        def of(f: Callable[..., jax.Array], axes: tuple[int | None, int | None]) -> Callable[..., jax.Array]:
            return f if axes == (None, None) else jax.vmap(f, in_axes=axes)

        pairs = [(min_norm(of(jax.nn.leaky_relu, axes)), of(jaxclamp.leaky_relu, axes)) for axes in all_axes]
        return [[jax.grad(lambda x, s, f=f: f(x, s).sum(), argnums=(0, 1))(x, slope) for f in pair] for pair in pairs]

    for x in points:
        for axes, (found, expected) in zip(all_axes, gradients(x, slope), strict=True):
            assert jax.tree.all(jax.tree.map(same_bits, found, expected)), axes


def test_all_active_operands_of_a_clamp_share_evenly() -> None:
    """Which the maximum and minimum that jnp.clip consists of do not, one by one."""
    three = jnp.full(3, 2.0)
    for native in (jnp.clip, lambda x, lo, hi: jnp.clip(x, max=hi, min=lo), lambda x, lo, hi: jax.lax.clamp(lo, x, hi)):
        gradients = jax.grad(lambda *xs, f=native: min_norm(f)(*xs).sum(), argnums=(0, 1, 2))(three, three, three)
        np.testing.assert_allclose(gradients, np.full((3, 3), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize("ties", TIES)
def test_conventions(ties: Any) -> None:
    def gradients(f: Callable[..., jax.Array], g: Callable[..., jax.Array]) -> Any:
        x = jnp.array([2.0, 2.0, 1.0])
        return [jax.grad(lambda *xs: f(*xs).sum(), argnums=(0, 1, 2))(x, x, x), jax.grad(g)(x)]

    native = min_norm(lambda x, lo, hi: jnp.maximum(jnp.clip(x, lo, hi), x), ties=ties), min_norm(jnp.max, ties=ties)
    ours = (
        lambda x, lo, hi: jaxclamp.maximum(jaxclamp.clamp(x, lo, hi, ties=ties), x, ties=ties),
        functools.partial(jaxclamp.amax, ties=ties),
    )
    assert jax.tree.all(jax.tree.map(same_bits, gradients(*native), gradients(*ours)))
    assert jax.grad(min_norm(jnp.abs, ties=ties))(0.0) == 0  # a kink has no operands to choose between


def test_unknown_convention_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="min_norm: ties='even' is not a convention"):
        min_norm(jnp.abs, ties="even")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "padding", [pytest.param("VALID", marks=pytest.mark.thorough), "SAME", [(0, 0), (2, 1), (0, 0)]]
)
def test_pooling(padding: Any) -> None:
    """In JAX the first of a window takes all; here they share, in overlapping windows and beside padding too."""
    first = functools.partial(jax.lax.reduce_window, init_value=-jnp.inf, computation=jax.lax.max)
    two = functools.partial(first, window_dimensions=(2,), window_strides=(2,), padding="VALID")
    assert gradient_of_sum(two, jnp.ones(2)).tolist() == [1, 0]
    assert gradient_of_sum(min_norm(two), jnp.ones(2)).tolist() == [0.5, 0.5]

    def pooled(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 1), (1, 2, 1), padding, window_dilation=(1, 2, 1))

    x = jnp.round(jnp.sin(jnp.arange(42.0)).reshape(2, 7, 3) * 2)
    rewritten = min_norm(pooled)
    assert same_bits(rewritten(x), pooled(x))
    cotangent = jnp.arange(1.0, 1 + pooled(x).size).reshape(pooled(x).shape)
    (found,) = jax.vjp(rewritten, x)[1](cotangent)
    pads = [(0, 0)] * 3
    if padding != "VALID":
        total = 2 * (pooled(x).shape[1] - 1) + 5 - 7
        pads[1] = (2, 1) if padding != "SAME" else (total // 2, total - total // 2)
    padded = np.pad(np.asarray(x), pads, constant_values=-np.inf)
    expected = np.zeros(padded.shape)
    for n, i, c in np.ndindex(*cotangent.shape):
        window = padded[n, 2 * i : 2 * i + 5 : 2, c]
        tied = window == window.max()
        expected[n, 2 * i : 2 * i + 5 : 2, c] += tied / tied.sum() * float(cotangent[n, i, c])
    np.testing.assert_allclose(found, expected[:, pads[1][0] : pads[1][0] + 7], rtol=1e-6)


def network(ops: Any, parameters: Any, x: jax.Array) -> jax.Array:
    """A convolutional network with the ops of a namespace."""
    first, second, slope = parameters
    x = jax.lax.conv(x, first, (1, 1), "SAME")
    x = ops.hard_tanh(ops.leaky_relu(x, slope))
    x = ops.clip(jax.lax.conv(x, second, (1, 1), "SAME"), 0.0, 6.0)
    return jnp.mean(ops.abs(x.reshape(len(x), -1)) ** 2 + ops.maximum(x.max(), 0.0))


class Native:
    hard_tanh, leaky_relu = jax.nn.hard_tanh, jax.nn.leaky_relu
    clip, abs, maximum = jnp.clip, jnp.abs, jnp.maximum


def test_a_model_equals_the_one_rewritten_by_hand() -> None:
    keys, shapes = jax.random.split(jax.random.key(0), 3), [(4, 1, 3, 3), (2, 4, 3, 3), (8, 1, 6, 6)]
    rounded = [jnp.round(jax.random.normal(k, s)) for k, s in zip(keys, shapes, strict=True)]
    parameters, x = (*rounded[:2], jnp.float32(0.1)), rounded[2]
    native = jax.jit(jax.value_and_grad(functools.partial(network, Native)))(parameters, x)
    found = jax.jit(jax.value_and_grad(min_norm(functools.partial(network, Native))))(parameters, x)
    by_hand = jax.jit(jax.value_and_grad(functools.partial(network, jaxclamp)))(parameters, x)
    assert same_bits(found[0], native[0])
    assert jax.tree.all(jax.tree.map(same_bits, found[1], by_hand[1]))
    assert not np.allclose(found[1][0], native[1][0])


def test_lookalikes_stay() -> None:
    """The name is not enough: another formula, a slope on the other side, or operands that meet along other axes."""

    @jax.jit
    def leaky_relu(x: jax.Array) -> jax.Array:
        return jnp.where(x >= 0, x, 0.5 * x)

    @jax.jit
    def hard_tanh(x: jax.Array) -> jax.Array:
        return jnp.where(x > 1, 1, jnp.where(x < -1, -2, x))

    @jax.jit
    def clip(x: jax.Array, lo: jax.Array) -> jax.Array:
        return jnp.maximum(lo[:, None], x.T)

    for lookalike, point in ((leaky_relu, 0.0), (hard_tanh, 1.0)):
        assert jax.grad(min_norm(lookalike))(point) == jax.grad(lookalike)(point) == 1
    lo = jnp.array([0.0, 1.0, 2.0])
    x = jnp.ones((3, 3)).at[0, 1].set(5.0)
    assert same_bits(min_norm(clip)(x, lo), clip(x, lo))
    # What such a clip consists of has ties all the same, and is the op where the formula is.
    gradient = jax.grad(lambda x: min_norm(clip)(x, lo).sum())(x)
    assert gradient.tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 0]]

    def crossed(x: jax.Array) -> jax.Array:
        return jnp.where(x >= 0, x, 0.01 * x.T)

    crossed.__name__ = "leaky_relu"
    assert same_bits(min_norm(jax.jit(crossed))(-x - lo), crossed(-x - lo))

    @jax.jit
    def another(x: jax.Array) -> jax.Array:
        return jax.nn.leaky_relu(x)  # within an inner jit of any name it is known

    np.testing.assert_allclose(jax.grad(min_norm(another))(0.0), 0.01)


def test_functions_with_their_own_rule_stay() -> None:
    @jax.custom_jvp
    def ours(x: jax.Array) -> jax.Array:
        return jnp.maximum(x, 0.0)

    ours.defjvp(lambda primals, tangents: (ours(*primals), 7 * tangents[0]))

    @jax.custom_vjp
    def theirs(x: jax.Array) -> jax.Array:
        return jnp.abs(x)

    theirs.defvjp(lambda x: (theirs(x), None), lambda _, g: (11 * g,))
    f = min_norm(jax.jit(lambda x: ours(x) + theirs(x)))
    assert jax.grad(f)(0.0) == 18
    assert jax.grad(min_norm(jax.nn.softplus))(0.0) == 0.5  # with a max and an abs inside
    once = jax.make_jaxpr(min_norm(jnp.abs))(0.0)
    assert str(jax.make_jaxpr(min_norm(min_norm(jnp.abs)))(0.0)) == str(once)


@pytest.mark.parametrize("body", [jax.nn.relu, jnp.abs, lambda x: x], ids=["relu", "abs", "identity"])
def test_functions_with_their_own_rule_stay_under_every_convention(body: Callable[[Any], Any]) -> None:
    """Though their body is what another convention replaces."""
    function = jax.custom_jvp(lambda x: body(x))
    function.defjvp(lambda primals, tangents: (function(*primals), 7 * tangents[0]))
    assert jax.grad(min_norm(function, ties="inclusive"))(0.0) == 7


def test_ops_stay_under_every_convention() -> None:
    """Whose body is a function of JAX, too."""
    assert jax.grad(jaxclamp.fmax)(0.0, 0.0) == 0
    assert jax.grad(min_norm(jaxclamp.fmax, ties="inclusive"))(0.0, 0.0) == 0


def test_what_is_not_of_real_numbers_stays() -> None:
    def f(x: jax.Array, n: jax.Array, z: jax.Array) -> Any:
        large = jnp.clip(n, 0, 3), jnp.abs(n), jnp.max(n), jnp.maximum(n > 1, n > 2)
        return jnp.abs(z), jnp.maximum(z, 0), large, jnp.max(x[:, :0], axis=0), jax.lax.reduce_max(x, ())

    arguments = jnp.ones((3, 2)), jnp.arange(4), jnp.array([1j, 3 + 4j])
    rewritten, native = min_norm(f)(*arguments), f(*arguments)
    assert jax.tree.all(jax.tree.map(same_bits, rewritten, native))
    assert names_in(jax.make_jaxpr(min_norm(f))(*arguments)) == names_in(jax.make_jaxpr(f)(*arguments))


def test_any_signature() -> None:
    """Static arguments steer Python, what is no array comes back as it went in, and numbers stay numbers."""

    def f(model: dict[str, Any], n: int, *rest: Any, mode: str, bound: float = 0.0) -> Any:
        x = model["x"]
        for _ in range(n):
            x = model["activation"](x, bound) if mode == "on" else x
        return {"x": x, "name": model["name"], "n": n, "none": None, "rest": rest, "numpy": np.ones(2)}

    model = {"x": jnp.zeros(2), "activation": jnp.maximum, "name": "layer"}
    result = min_norm(f)(model, 2, "a", np.float32(1), mode="on", bound=0.0)
    assert result.keys() == {"x", "name", "n", "none", "rest", "numpy"}
    assert isinstance(result["n"], int)
    assert result["rest"] == ("a", np.float32(1))
    assert isinstance(result["numpy"], np.ndarray)
    gradient = jax.grad(lambda x: min_norm(f)({**model, "x": x}, 3, mode="on")["x"].sum())(jnp.zeros(2))
    assert gradient.tolist() == [0, 0]
    assert min_norm(f).__name__ == "f"
    static = min_norm(jax.jit(lambda x, n: jnp.maximum(x, 0.0) * len(range(n)), static_argnums=1))
    assert static(jnp.ones(()), 3) == 3


def test_before_and_after_the_transformations() -> None:
    x = jnp.array([-1.0, 0.0, 1.0])
    slopes = [-1.0, 0.0, 1.0]
    assert jax.vmap(jax.grad(min_norm(jax.jit(jnp.abs))))(x).tolist() == slopes
    assert jax.jit(jax.vmap(jax.grad(jax.jit(min_norm(jnp.abs)))))(x).tolist() == slopes
    assert gradient_of_sum(min_norm(jax.vmap(jnp.abs)), x).tolist() == slopes
    assert gradient_of_sum(jax.vmap(min_norm(jnp.abs)), x).tolist() == slopes
    assert jax.jacfwd(min_norm(jnp.abs))(x).tolist() == jnp.diag(jnp.array(slopes)).tolist()
    assert jax.hessian(min_norm(lambda x: jnp.abs(x) ** 2))(0.0) == 0


def test_tracers_that_the_function_closes_over() -> None:
    def outer(bound: jax.Array) -> jax.Array:
        table = jnp.ones(3)  # a constant array, closed over too
        return min_norm(lambda x: (jnp.maximum(x, bound) * table).sum())(bound * 1.0)

    assert jax.grad(outer)(2.0) == 3.0
    assert jax.jit(jax.grad(outer))(2.0) == 3.0
    inactive = jax.grad(lambda x, bound: min_norm(lambda x: jnp.maximum(x, bound))(x))
    assert inactive(0.0, jnp.zeros(())) == 0


def test_constants_stay_inactive() -> None:
    constants = (0.0, jnp.zeros(3), np.zeros(3, "float32"), jnp.broadcast_to(jnp.zeros(()), 3))
    for constant in constants:
        for f in (lambda x, c=constant: jnp.maximum(x, c), lambda x, c=constant: jnp.maximum(x, jnp.zeros_like(x) + c)):
            for rewritten in (min_norm(f), jax.jit(min_norm(f)), min_norm(jax.jit(f)), min_norm(jax.checkpoint(f))):
                assert gradient_of_sum(rewritten, jnp.zeros(3)).tolist() == [0, 0, 0]


def test_effects_happen_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            jax.debug.print("{}", row, ordered=True)
            return jnp.maximum(carry, row), None

        jax.debug.print("start", ordered=True)
        return jax.lax.scan(step, 0.0, x)[0]

    min_norm(f)(jnp.arange(3.0))
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["start", "0.0", "1.0", "2.0"]


def test_what_else_an_equation_says_stays() -> None:
    """Names of inner jits, donation, sharding, checkpoint policies, named scopes; one body for two calls of one jit."""

    @functools.partial(jax.jit, donate_argnums=0)
    def block(x: jax.Array) -> jax.Array:
        with jax.named_scope("scope"):
            return jnp.maximum(x, 0.0)

    policy = jax.checkpoint_policies.save_only_these_names("a")
    sharding = jax.sharding.NamedSharding(mesh(), P("batch"))

    def f(x: jax.Array) -> jax.Array:
        x = jax.checkpoint(block, policy=policy)(x)
        return jax.lax.with_sharding_constraint(block(block(x)), sharding)

    jaxpr = jax.make_jaxpr(min_norm(f))(jnp.ones(DEVICES))
    check_jaxpr(jaxpr.jaxpr)
    remat, first, second, constraint = jaxpr.jaxpr.eqns
    assert remat.params["policy"] is policy
    assert first.params["name"] == "block"
    assert first.params["donated_invars"] == (True,)
    assert first.params["jaxpr"] is second.params["jaxpr"]
    (inner,) = first.params["jaxpr"].jaxpr.eqns
    assert "scope" in str(inner.source_info.name_stack)
    assert constraint.params["sharding"] == sharding
    x = jnp.ones(DEVICES)
    min_norm(block)(x)
    assert x.is_deleted()


def test_what_does_not_change_stays_the_same_object() -> None:
    """Else what is inside would be compiled at each call."""

    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    for name, context in CONTEXTS.items():
        if "shard_map" not in name and name != "nested":  # whose bodies are traced anew
            jaxpr = jax.make_jaxpr(context(inner))(X)
            assert _rewritten(lambda eqn, descend: descend(eqn))(jaxpr) is jaxpr, name
    before, after = (jax.make_jaxpr(f(lambda x: jnp.abs(inner(x))))(X).eqns for f in (lambda f: f, min_norm))
    assert after[0].params["jaxpr"] is before[0].params["jaxpr"]
    assert after[1].primitive is not before[1].primitive


@pytest.mark.parametrize(
    "kind", [pytest.param(jax.sharding.AxisType.Auto, marks=pytest.mark.thorough), jax.sharding.AxisType.Explicit]
)
def test_sharding_stays(kind: jax.sharding.AxisType) -> None:
    devices = mesh(kind)
    with jax.set_mesh(devices):
        sharding = jax.sharding.NamedSharding(devices, P("batch"))
        x = jax.device_put(jnp.zeros(2 * DEVICES), sharding)
        f = min_norm(lambda x: jnp.clip(jax.nn.leaky_relu(jnp.maximum(x, 0.0)), 0.0, 6.0) + jax.nn.hard_tanh(x))
        for g in (f, jax.jit(f)):
            assert g(x).sharding == sharding
            gradient = jax.grad(lambda x, g=g: g(x).sum())(x)
            assert gradient.tolist() == [1.0] * x.size
            if kind is jax.sharding.AxisType.Explicit:
                assert gradient.sharding == sharding


def test_well_formed() -> None:
    for context in CONTEXTS.values():
        check_jaxpr(jax.make_jaxpr(min_norm(context(everything(0))))(X).jaxpr)


@pytest.mark.thorough  # for it starts a process
def test_without_jit() -> None:
    """Neither inside the context nor after it is anything lost, in a process that begins there."""
    code = """
import jax, jaxclamp
def slopes():
    functions = [(jax.nn.leaky_relu, 0.0), (jax.nn.celu, 0.0), (jax.nn.hard_tanh, 1.0)]
    return [round(float(jax.grad(jaxclamp.min_norm(f))(x)), 4) for f, x in functions]
with jax.disable_jit():
    print(slopes(), jaxclamp.ties(jax.nn.leaky_relu)(jax.numpy.zeros(2))[1].tied)
print(slopes())
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "[0.01, 1.0, 0.0] 2\n[0.01, 1.0, 0.0]\n"


WRITES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "changes": ("args[0]['a']", lambda d: d.update(a=d["a"] + 1)),
    "counts": ("args[0]['n']", lambda d: d.update(n=d["n"] + 1)),
    "adds": ("args[0]['new']", lambda d: d.update(new=1)),
    "removes": ("args[0]['a']", lambda d: d.pop("a")),
    "changes inside": ("args[0]['inner'][0]", lambda d: d["inner"].reverse()),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("transformation", [min_norm, ties])
def test_writes_to_arguments_are_refused(transformation: Callable[..., Any], how: str) -> None:
    path, write = WRITES[how]

    def f(d: Any, *, by_name: Any = None) -> jax.Array:
        write(d if by_name is None else by_name)
        return jnp.abs(jnp.zeros(2))

    def given() -> dict[str, Any]:
        return {"a": jnp.zeros(2), "n": 0, "inner": [jnp.zeros(2), 1]}

    with pytest.raises(ValueError, match=f"writes to its argument, {re.escape(path)}, .* change a copy and return"):
        transformation(f)(given())
    with pytest.raises(ValueError, match=re.escape(path.replace("args[0]", "kwargs['by_name']"))):
        transformation(f)(None, by_name=given())
    transformation(lambda d: write({**d, "inner": list(d["inner"])}))(given())


@pytest.mark.parametrize("transformation", [min_norm, ties])
def test_modules_of_flax_that_write_are_refused(transformation: Callable[..., Any]) -> None:
    """Statistics of a batch norm, and the counter of a dropout; one that does not write passes."""
    rngs, x = nnx.Rngs(0), jnp.ones((2, 2))
    for module, path in ((nnx.BatchNorm(2, rngs=rngs), "mean"), (nnx.Dropout(0.5, rngs=rngs), "rngs.count")):
        with pytest.raises(ValueError, match=rf"args\[0\]\.{path}\b.*flax.nnx: nnx.split outside, nnx.merge"):
            transformation(lambda module, x: module(x))(module, x)
        module.eval()
        transformation(lambda module, x: module(x))(module, x)


def test_operands_that_the_value_does_not_need() -> None:
    """As those of a derivative that was taken before; an inner jit may have such as well."""

    def leaky_relu(x: jax.Array, unused: jax.Array) -> jax.Array:
        return jnp.where(x >= 0, x, 0.01 * x)

    np.testing.assert_allclose(jax.grad(min_norm(jax.jit(leaky_relu)))(0.0, jnp.ones(3)), 0.01)


@pytest.mark.usefixtures("strictest_settings")
def test_strict_modes() -> None:
    f = min_norm(lambda x: jnp.clip(x, 0.0, 6.0))
    assert gradient_of_sum(jax.jit(f), jnp.zeros(2)).tolist() == [0, 0]


def test_clip_without_bounds() -> None:
    """It was taken for clamp_min without a minimum."""
    x = jnp.array([-1.0, 0.0, -0.0, jnp.inf, jnp.nan])

    def identities(x: jax.Array) -> list[jax.Array]:
        of_jax = [jnp.clip(x), x.clip(), jnp.clip(x, None, None)]
        return of_jax + [jaxclamp.clip(x), jaxclamp.clip(x, None, None), jaxclamp.clamp(x, min=None)]

    values, report = jaxclamp.ties(identities)(x)
    for found in (*identities(x), *values, *jaxclamp.min_norm(identities)(x)):
        assert found.tobytes() == x.tobytes()
    assert report.tied == 0
    for function in (identities, jaxclamp.min_norm(identities)):
        assert jax.grad(lambda x, f=function: sum(map(jnp.sum, f(x))))(x).tolist() == [6, 6, 6, 6, 6]


def device_mesh(axis_type: str) -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("i",), axis_types=(getattr(jax.sharding.AxisType, axis_type),))


@pytest.mark.parametrize("zero", [jnp.zeros((2, 1)), np.zeros((2, 1), np.float32)], ids=["of JAX", "of NumPy"])
@pytest.mark.parametrize("op", [jnp.fmin, jnp.fmax], ids=lambda op: op.__name__)
def test_skipping_ops_in_a_shard_map(op: Callable[..., jax.Array], zero: Any) -> None:
    """What spreads a constant over the devices hid the formula, for operands of different rank."""
    spread = jax.shard_map(
        lambda x: op(zero, x), mesh=device_mesh("Auto"), in_specs=PartitionSpec("i"), out_specs=PartitionSpec(None, "i")
    )
    x = jnp.array([-1.0, 0.0, 1.0, 0.0] * 2)
    gradient = jax.jit(jax.grad(lambda x: jaxclamp.min_norm(spread)(x).sum()))(x)
    assert gradient.tolist() == [2.0 * float(v < 0 if op is jnp.fmin else v > 0) for v in x.tolist()]


@pytest.mark.parametrize("op", [jnp.fmin, jnp.fmax], ids=lambda op: op.__name__)
def test_skipping_ops_under_explicit_sharding(op: Callable[..., jax.Array]) -> None:
    mesh = device_mesh("Explicit")
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.array([-1.0, 0.0, 1.0, 0.0] * 2), NamedSharding(mesh, PartitionSpec("i")))
        gradient = jax.grad(lambda x: jaxclamp.min_norm(lambda x: op(jnp.full((2, 8), 0.0), x))(x).sum())(x)
    assert gradient.tolist() == [2.0 * float(v < 0 if op is jnp.fmin else v > 0) for v in x.tolist()]
