"""Small JAX programs at points where choices tie: does `jaxclamp.grad` give a wrong gradient without a word?

The truth is JAX's own: its gradient a small step along a direction, where nothing ties, and the difference of values.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import jaxclamp
from jaxclamp._transforms import undecided
from tests.programs.functions_at_ties import (
    EQUAL,
    GRID,
    ONES,
    POINT,
    ZEROS,
    Program,
    abs_with_vjp,
    attention,
    attention_of_relu,
    batched_abs,
    bellman_ford,
    binarised,
    bisected,
    branch_in_rule,
    clipped_by_norm,
    clipped_gradient,
    clipped_in_vjp,
    conjugate_gradient,
    contact,
    custom_root,
    dense,
    equinox_network,
    flax_network,
    group_shrunk,
    hard_attention,
    in_a_kernel,
    in_a_map,
    l1_ball,
    largest_by_result,
    learned_step,
    maximum_by_result,
    median_filter,
    numbers,
    on_the_host,
    pool,
    relu_by_operand,
    relu_by_result,
    relu_with_vjp,
    rnn,
    rounded,
    rows,
    running_maximum,
    safe_norm,
    simplex,
    sorting_network,
    spring,
    stable_sigmoid,
    stable_softmax,
    straight_through,
    table_at_digitize,
    table_at_floor,
    table_at_integer,
    table_at_searchsorted,
    table_at_stopped,
    time_warping,
    until_settled,
    viterbi,
    with_a_break,
    with_loop_state,
)
from tests.support.imports import TESTS

PROGRAMS: dict[str, tuple[Program, Any]] = {
    # Rectifiers, clamps and absolute values.
    "relu": (jax.nn.relu, POINT),
    "relu(x) - relu(-x)": (lambda x: jax.nn.relu(x) - jax.nn.relu(-x), POINT),
    "relu(relu(x)) - relu(-x)": (lambda x: jax.nn.relu(jax.nn.relu(x)) - jax.nn.relu(-x), POINT),
    "maximum": (lambda x: jnp.maximum(x, 0), POINT),
    "maximum, reversed": (lambda x: jnp.maximum(x, x[::-1]), EQUAL),
    "minimum": (lambda x: jnp.minimum(x, x[::-1]), EQUAL),
    "fmax": (lambda x: jnp.fmax(x, 0.0), POINT),
    "fmin": (lambda x: jnp.fmin(x, x**2), POINT),
    "lax.max": (lambda x: lax.max(x, jnp.zeros_like(x)), POINT),
    "clip": (lambda x: jnp.clip(x, 0, 1), POINT),
    "x.clip": (lambda x: x.clip(min=0.0), POINT),
    "clip, moving bounds": (lambda x: jnp.clip(x, -x[1], x[3] ** 2), POINT),
    "clip, one bound": (lambda x: jnp.clip(x, 0, 0) + x, POINT),
    "lax.clamp": (lambda x: lax.clamp(0.0, x, 1.0), POINT),
    "lax.clamp, moving": (lambda x: lax.clamp(0 * x - x[1], x, 0 * x + x[3] ** 2), POINT),
    "where(x > 0)": (lambda x: jnp.where(x > 0, x, 0.0), POINT),
    "where(x >= 0)": (lambda x: jnp.where(x >= 0, x, 0.01 * x), POINT),
    "where, greater": (lambda x: jnp.where(jnp.greater(x, 0), x, -x), POINT),
    "where, nested": (lambda x: jnp.where(x < 0, 0.0, jnp.where(x > 1, 1.0, x)), POINT),
    "where, not": (lambda x: jnp.where(~(x > 0), -x, x), POINT),
    "where, and": (lambda x: jnp.where((x >= 0) & (x <= 1), x, jnp.clip(x, 0, 1)), POINT),
    "where, either": (lambda x: jnp.where((x < 0) | (x > 1), x - x * x, 0.0), POINT),
    "where, exclusive or": (lambda x: jnp.where((x > 0) ^ (x > 1), x, jnp.clip(x, 0, 1)), POINT),
    "where, logical_not": (lambda x: jnp.where(jnp.logical_not(jax.nn.relu(x)), -x, x), POINT),
    "where(x == 0), both defined": (lambda x: jnp.where(x == 0, 3 * x, x), POINT),
    "where(x != 1)": (lambda x: jnp.where(x != 1, x, 2 - x), POINT),
    "select": (lambda x: lax.select(x > 0, x, -x), POINT),
    "jnp.select": (
        lambda x: jnp.select([x < -1, x > 1], [-jnp.ones_like(x), jnp.ones_like(x)], x),
        [-1.0, 1.0, 0.0, 2.0],
    ),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 0, x >= 0], [lambda x: -x, lambda x: 2 * x]), POINT),
    "choose": (lambda x: jnp.choose((x > 0).astype(int), [-x, x], mode="clip"), POINT),
    "select_n": (lambda x: lax.select_n((x > 0).astype("int32") + (x > 1), -x, x, x**2), POINT),
    "x * (x > 0)": (lambda x: x * (x > 0), POINT),
    "a mask as numbers": (lambda x: x * (x > 0).astype(x.dtype), POINT),
    "a mask as integers": (lambda x: x * (x >= 0).astype("int32"), POINT),
    "relu as a mask": (lambda x: x * jax.nn.relu(x).astype(bool), POINT),
    "sum, where": (lambda x: jnp.sum(x, where=x > 0), POINT),
    "max, where": (lambda x: jnp.max(x, where=x > 0, initial=0.0), POINT),
    "set": (lambda x: x.at[jnp.array([0, 2])].set(jnp.abs(x[:2])), POINT),
    "at[].max": (lambda x: jnp.zeros(2).at[jnp.array([0, 1, 1, 0])].max(x), POINT),
    "at[].min": (lambda x: jnp.zeros(2).at[jnp.array([0, 1, 1, 0])].min(x), POINT),
    "at[].multiply": (lambda x: x.at[jnp.array([0, 1])].multiply(x[2:] > 0), [0.0, 1.0, 1.0, 2.0]),
    "segment_max": (lambda x: jax.ops.segment_max(x, jnp.array([0, 1, 1, 0]), 2), ONES),
    "segment_min": (lambda x: jax.ops.segment_min(x, jnp.array([0, 0, 1, 1]), 2), ONES),
    "nonzero": (lambda x: x[jnp.nonzero(x > 0, size=4, fill_value=0)].sum() - x[0], [0.5, 1.0, -2.0, 1.0]),
    "compress": (lambda x: jnp.compress(x > 0, x, size=2), [0.5, 1.0, -2.0, -1.0]),
    "heaviside": (lambda x: x * jnp.heaviside(x, 0.5), POINT),
    "(x + |x|) / 2": (lambda x: (x + jnp.abs(x)) / 2, POINT),
    "x * (1 + sign(x)) / 2": (lambda x: x * (1 + jnp.sign(x)) / 2, POINT),
    "abs": (jnp.abs, POINT),
    "fabs": (jnp.fabs, POINT),
    "abs() of Python": (lambda x: abs(x), POINT),
    "abs of abs": (lambda x: jnp.abs(jnp.abs(x) - 1), POINT),
    "|x| by relus": (lambda x: jax.nn.relu(x) + jax.nn.relu(-x) - jnp.abs(x), POINT),
    "sign(x) * x": (lambda x: jnp.sign(x) * x, POINT),
    "x / (|x| + 1)": (lambda x: x / (jnp.abs(x) + 1), POINT),
    "x^2 / |x|": (lambda x: jnp.where(x == 0, 0.0, x**2 / jnp.abs(x)), POINT),
    "sqrt(x^2)": (lambda x: jnp.sqrt(x**2), POINT),
    "sin(x) / x": (lambda x: jnp.where(x == 0, 1.0, jnp.sin(x) / x), POINT),
    "sinc": (jnp.sinc, POINT),
    "relu(x)^2.5": (lambda x: jax.nn.relu(x) ** 2.5, POINT),
    "relu(x)^0.5 * relu(x)^2": (lambda x: jax.nn.relu(x) ** 0.5 * jax.nn.relu(x) ** 2, POINT),
    "xlogy": (lambda x: jax.scipy.special.xlogy(jax.nn.relu(x) ** 2, jax.nn.relu(x)), POINT),
    "hypot": (lambda x: jnp.hypot(x, 0.0), POINT),
    "dead zone": (lambda x: jnp.sign(x) * jax.nn.relu(jnp.abs(x) - 1), POINT),
    "soft threshold by parts": (lambda x: jax.nn.relu(x - 1) - jax.nn.relu(-x - 1), POINT),
    "copysign of ones": (lambda x: x * jnp.copysign(jnp.ones_like(x), x), POINT),
    "copysign of |x|": (lambda x: jnp.copysign(jnp.abs(x), x), POINT),
    "signbit": (lambda x: jnp.where(jnp.signbit(x), -x, x), POINT),
    "second order": (lambda x: jnp.where(x * x > 0, x, -x), POINT),
    "angle": (lambda x: jnp.angle(x) * jax.nn.relu(-x), POINT),
    "atan2": (lambda x: jnp.abs(jnp.arctan2(x, -1.0)), POINT),
    "|z| of complex numbers": (lambda x: jnp.abs(x + 0j), POINT),
    "nan_to_num": (lambda x: jnp.nan_to_num(jax.nn.relu(x)), POINT),
    "isclose": (lambda x: jnp.where(jnp.isclose(x, 1.0, 0.0, 0.0), x, x**2), POINT),
    "prod": (lambda x: jnp.prod(jax.nn.relu(x)), POINT),
    "cumprod": (lambda x: jnp.cumprod(x), POINT),
    # Activations.
    "relu6": (lambda x: jax.nn.relu6(6 * x), POINT),
    "hard_tanh": (jax.nn.hard_tanh, POINT),
    "hard_sigmoid": (lambda x: jax.nn.hard_sigmoid(3 * x), POINT),
    "hard_swish": (lambda x: jax.nn.hard_swish(3 * x), POINT),
    "leaky_relu": (lambda x: jax.nn.leaky_relu(x, 0.2), POINT),
    "elu": (lambda x: jax.nn.elu(x, 2.0), POINT),
    "celu": (lambda x: jax.nn.celu(x, 2.0), POINT),
    "selu": (jax.nn.selu, POINT),
    "squareplus": (jax.nn.squareplus, POINT),
    "softplus": (jax.nn.softplus, POINT),
    "soft_sign": (jax.nn.soft_sign, POINT),
    "log_sigmoid": (jax.nn.log_sigmoid, POINT),
    "sparse_plus": (jax.nn.sparse_plus, POINT),
    "sparse_sigmoid": (jax.nn.sparse_sigmoid, POINT),
    "glu of relu": (lambda x: jax.nn.glu(jax.nn.relu(x)), POINT),
    "squared relu": (lambda x: jax.nn.relu(x) ** 2, POINT),
    "crelu": (lambda x: jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)]), POINT),
    "maxout": (lambda x: rows(x).max(1), EQUAL),
    "standardize": (lambda x: jax.nn.standardize(jax.nn.relu(x)), POINT),
    # Reductions and orders.
    "max": (jnp.max, EQUAL),
    "min": (lambda x: x.min(), EQUAL),
    "amax, axis": (lambda x: jnp.amax(rows(x), 1), ONES),
    "min, keepdims": (lambda x: rows(x).min(0, keepdims=True), ONES),
    "ptp": (lambda x: jnp.ptp(x), EQUAL),
    "x[argmax]": (lambda x: x[jnp.argmax(x)], EQUAL),
    "x[argmin]": (lambda x: x[x.argmin()], EQUAL),
    "take_along_axis": (lambda x: jnp.take_along_axis(rows(x), rows(x).argmax(1, keepdims=True), 1), ONES),
    "one_hot of argmax": (lambda x: jnp.sum(jax.nn.one_hot(x.argmax(), 4) * x), EQUAL),
    "x == x.max()": (lambda x: jnp.sum(x * (x == x.max())) / jnp.sum(x == x.max()), EQUAL),
    "nanmax": (lambda x: jnp.nanmax(x), EQUAL),
    "lax.reduce": (lambda x: lax.reduce(x, -jnp.inf, lax.max, (0,)), EQUAL),
    "lax.reduce, by where": (lambda x: lax.reduce(x, -jnp.inf, lambda a, b: jnp.where(a > b, a, b), (0,)), EQUAL),
    "lax.argmax": (lambda x: x[lax.argmax(x, 0, jnp.int32)], EQUAL),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (x.argmax(),), (1,)), EQUAL),
    "dynamic_index": (lambda x: lax.dynamic_index_in_dim(x, x.argmin(), keepdims=False), EQUAL),
    "unravel_index": (lambda x: rows(x)[jnp.unravel_index(x.argmax(), (2, 2))], EQUAL),
    "top_k": (lambda x: lax.top_k(x, 2)[0], EQUAL),
    "top_k, a mask": (lambda x: lax.top_k(jnp.where(x < lax.top_k(x, 3)[0][-1], 0.0, x), 3)[0], EQUAL),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2)[0], EQUAL),
    "sort": (jnp.sort, EQUAL),
    "sort, descending": (lambda x: jnp.sort(x, descending=True), EQUAL),
    "sort, two operands": (lambda x: lax.sort((x, numbers(4)), num_keys=1)[0], EQUAL),
    "argsort": (lambda x: x[jnp.argsort(x)], EQUAL),
    "lexsort": (lambda x: x[jnp.lexsort((numbers(4), x))], EQUAL),
    "partition": (lambda x: jnp.partition(x, 1)[1], EQUAL),
    "median": (jnp.median, EQUAL),
    "nanmedian": (jnp.nanmedian, EQUAL),
    "median, axis": (lambda x: jnp.median(rows(x), 0), ONES),
    "quantile": (lambda x: jnp.quantile(x, 0.4), EQUAL),
    "percentile, nearest": (lambda x: jnp.percentile(x, 40, method="nearest"), EQUAL),
    "cummax": (lambda x: lax.cummax(x), EQUAL),
    "cummin, reverse": (lambda x: lax.cummin(x, reverse=True), EQUAL),
    "associative_scan": (lambda x: lax.associative_scan(jnp.maximum, x), EQUAL),
    "maximum.accumulate": (lambda x: jnp.maximum.accumulate(x), EQUAL),
    "maximum.reduce": (lambda x: jnp.maximum.reduce(x), EQUAL),
    "logsumexp": (jax.nn.logsumexp, EQUAL),
    "softmax": (jax.nn.softmax, EQUAL),
    "logaddexp": (lambda x: jnp.logaddexp(x, x[::-1]), EQUAL),
    "std": (jnp.std, ONES),
    "var": (jnp.var, ONES),
    "trimmed mean": (lambda x: jnp.sort(x)[1:-1].mean(), EQUAL),
    "median filter": (median_filter, EQUAL),
    "sorting network": (sorting_network, EQUAL),
    "any": (lambda x: jnp.where(jnp.any(x > 1), x, jnp.minimum(x, 1)), POINT),
    "all": (lambda x: jnp.where(jnp.all(x[1:2] >= 1), x, x * x[1]), POINT),
    "count_nonzero": (lambda x: jax.nn.relu(x) * (jnp.count_nonzero(jax.nn.relu(x)) > -1), POINT),
    # Norms and distances.
    "norm, 1": (lambda x: jnp.linalg.norm(x, 1), POINT),
    "norm, inf": (lambda x: jnp.linalg.norm(x, jnp.inf), EQUAL),
    "norm, -inf": (lambda x: jnp.linalg.norm(x, -jnp.inf), POINT),
    "norm, 2, at 0": (lambda x: jnp.linalg.norm(x), ZEROS),
    "norm, 3": (lambda x: jnp.linalg.norm(x, 3), [0.5, 1.0, -2.0, 1.0]),
    "norms, 3, of rows": (lambda x: jnp.linalg.norm(rows(x), 3, axis=1), [0.0, 0.0, 1.0, -2.0]),
    "norm, 1.5, at 0": (lambda x: jnp.linalg.vector_norm(x, ord=1.5), ZEROS),
    "root mean square, in a loop": (
        lambda x: lax.scan(lambda c, row: (c + jnp.sqrt(jnp.mean(row**2)), None), 0.0, rows(x))[0],
        [0.0, 0.0, 1.0, -2.0],
    ),
    "matrix norm, 1": (lambda x: jnp.linalg.norm(rows(x), 1), ONES),
    "matrix norm, 2": (lambda x: jnp.linalg.norm(rows(x), 2), [1.0, 0.0, 0.0, 1.0]),
    "clipped by its norm": (clipped_by_norm, POINT),
    "safe norm by a rule": (safe_norm, ZEROS),
    "optax.safe_norm": (lambda x: optax.safe_norm(x, 1e-3) + x.sum(), ZEROS),
    "total variation": (lambda x: jnp.abs(jnp.diff(x)).sum(), EQUAL),
    "distance to the nearest": (lambda x: jnp.abs(x[:, None] - jnp.array([-1.0, 1.0])).min(1), POINT),
    # Losses.
    "huber": (lambda x: optax.losses.huber_loss(x, 0 * x), POINT),
    "huber by hand": (lambda x: jnp.where(jnp.abs(x) < 1, 0.5 * x * x, jnp.abs(x) - 0.5), POINT),
    "l1": (lambda x: jnp.abs(x - 1).mean(), POINT),
    "pinball": (lambda x: jnp.maximum(0.3 * x, -0.7 * x), POINT),
    "insensitive": (lambda x: jnp.maximum(jnp.abs(x - 2) - 1, 0), [1.0, 3.0, 2.0, 1.0]),
    "hinge": (lambda x: optax.losses.hinge_loss(x, jnp.ones_like(x)), POINT),
    "perceptron": (lambda x: optax.losses.perceptron_loss(x, jnp.ones_like(x)), POINT),
    "ramp": (lambda x: jnp.clip(1 - x, 0, 1), POINT),
    "sigmoid cross entropy": (lambda x: optax.losses.sigmoid_binary_cross_entropy(x, 0.3), POINT),
    "cross entropy at argmax": (
        lambda x: optax.losses.softmax_cross_entropy_with_integer_labels(x, x.argmax()) + 0 * x,
        EQUAL,
    ),
    "triplet": (lambda x: jax.nn.relu(jnp.abs(x[0] - x[1]) - jnp.abs(x[0] - x[3]) + 0.0 * x[2]), POINT),
    "contrastive": (lambda x: jax.nn.relu(1 - jnp.abs(x[0] - x[1])) ** 2 + jnp.abs(x[1] - x[3]), POINT),
    "clip by global norm": (lambda x: optax.clip_by_global_norm(math.sqrt(6)).update(x, optax.EmptyState())[0], POINT),
    "optax.clip": (lambda x: optax.clip(1.0).update(x, optax.EmptyState())[0], POINT),
    # Pools.
    "reduce_window": (pool, GRID),
    "a minimum pool": (lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (2, 2), "SAME"), GRID),
    "flax.max_pool": (lambda x: nn.max_pool(x[None, :, :, None], (2, 2), (2, 2), "SAME"), GRID),
    "equinox, adaptive": (lambda x: eqx.nn.AdaptiveMaxPool2d(2)(x[None]), GRID),
    "the gradient of a pool": (lambda x: jax.grad(lambda x: jnp.sum(pool(x) ** 2))(x).sum(), GRID),
    "avg_pool of relu": (lambda x: nn.avg_pool(jax.nn.relu(x)[None, :, :, None], (2, 2)), GRID),
    "image.resize of relu": (lambda x: jax.image.resize(jax.nn.relu(x), (3, 3), "linear"), GRID),
    # Control flow.
    "cond": (lambda x: lax.cond(x.sum() > 0, lambda x: x, lambda x: 2 * x, x), ZEROS),
    "cond, of one element": (lambda x: lax.cond(x[1] > x[3], lambda x: x[1], lambda x: x[3], x), POINT),
    "cond under vmap": (lambda x: jax.vmap(lambda a: lax.cond(a > 0, jnp.positive, jnp.negative, a))(x), POINT),
    "switch": (lambda x: lax.switch((x.sum() > 0).astype(int), [jnp.negative, lambda x: 2 * x], x), ZEROS),
    "platform_dependent": (lambda x: lax.platform_dependent(x, default=jax.nn.relu), POINT),
    "scan": (running_maximum, EQUAL),
    "fori_loop": (with_loop_state, EQUAL),
    "a loop that settles": (until_settled, POINT),
    "while_loop": (lambda x: lax.while_loop(lambda y: y.sum() > 2, lambda y: y / 2, x), POINT),
    "a flag that breaks": (with_a_break, EQUAL),
    "map": (in_a_map, ONES),
    "Bellman-Ford": (bellman_ford, POINT),
    "time warping": (time_warping, POINT),
    "Viterbi": (viterbi, EQUAL),
    "spring contact": (spring, POINT),
    "spring energy": (lambda x: 0.5 * jax.nn.relu(-x) ** 2, POINT),
    "friction": (lambda x: jnp.clip(-3.0 * x, -3.0, 3.0), POINT),
    "bisection": (bisected, EQUAL),
    "rnn": (rnn, POINT),
    # Projections and proximal steps.
    "projection_simplex": (lambda x: optax.projections.projection_simplex(x), [0.5, 0.5, -0.5, 0.0]),
    "projection_l1_ball": (lambda x: optax.projections.projection_l1_ball(x), [0.5, -0.5, 0.0, 0.0]),
    "projection_l2_ball": (lambda x: optax.projections.projection_l2_ball(x, math.sqrt(6)), POINT),
    "projection_box": (lambda x: optax.projections.projection_box(x, -1.0, 1.0), POINT),
    "projection_halfspace": (lambda x: optax.projections.projection_halfspace(x, jnp.ones(4), 0.0), POINT),
    "projection_hypercube": (lambda x: optax.projections.projection_hypercube(x), POINT),
    "projection_non_negative": (lambda x: optax.projections.projection_non_negative(x), POINT),
    "projection_linf_ball": (lambda x: optax.projections.projection_linf_ball(x), POINT),
    "simplex": (simplex, [0.5, 0.5, -0.5, 0.0]),
    "l1 ball": (l1_ball, [0.5, -0.5, 0.0, 0.0]),
    "group lasso": (group_shrunk, POINT),
    "isotonic": (lambda x: (lax.cummax(x) + lax.cummin(x, reverse=True)) / 2, EQUAL),
    "optax.isotonic": (lambda x: optax.projections.projection_box(lax.cummax(x), 0.0, 2.0), EQUAL),
    # Jumps that cancel, interpolation.
    "triangle wave, floor": (lambda x: jnp.abs(x - 2 * jnp.floor(x / 2) - 1), POINT),
    "triangle wave, round": (lambda x: jnp.abs(x - 2 * jnp.round(x / 2)), POINT),
    "triangle wave, %": (lambda x: jnp.abs(x % 2 - 1), POINT),
    "triangle wave, fmod": (lambda x: 1 - jnp.abs(jnp.fmod(jnp.abs(x), 2.0) - 1), POINT),
    "triangle wave, modf": (lambda x: 0.5 - jnp.abs(jnp.modf(jnp.abs(x))[0] - 0.5), POINT),
    "triangle wave, divmod": (lambda x: jnp.abs(jnp.divmod(x, 2.0)[1] - 1), POINT),
    "triangle wave, //": (lambda x: jnp.abs(x - 2 * (x // 2) - 1), POINT),
    "triangle wave, trunc": (lambda x: 0.5 - jnp.abs(jnp.abs(x) - jnp.trunc(jnp.abs(x)) - 0.5), POINT),
    "triangle wave, rint": (lambda x: jnp.abs(x - jnp.rint(x)), [0.5, -0.5, 1.5, 0.25]),
    "ceil - floor": (lambda x: (jnp.ceil(x) - x) * (x - jnp.floor(x)), POINT),
    "a table at floor": (table_at_floor, POINT),
    "a table at an integer": (table_at_integer, POINT),
    "a table at searchsorted": (table_at_searchsorted, POINT),
    "a table at digitize": (table_at_digitize, POINT),
    "a table behind stop_gradient": (table_at_stopped, POINT),
    "interp": (lambda x: jnp.interp(x, jnp.array([-2.0, 0.0, 1.0, 2.0]), jnp.array([0.0, 1.0, -1.0, 2.0])), POINT),
    "map_coordinates": (
        lambda x: jax.scipy.ndimage.map_coordinates(numbers(4) ** 2, [x + 1], 1, mode="nearest"),
        [0.0, 1.0, -0.5, 1.0],
    ),
    "hats": (lambda x: jax.nn.relu(1 - jnp.abs(x[:, None] - jnp.arange(-3.0, 4.0))) @ numbers(7) ** 2, POINT),
    "frexp": (lambda x: jnp.ldexp(*jnp.frexp(x)), POINT),
    "a mask behind stop_gradient": (lambda x: jnp.where(lax.stop_gradient(x) > 0, x, -x), POINT),
    # Quantisers and rules of their own.
    "straight through": (straight_through, POINT),
    "straight through, at halves": (straight_through, [0.25, 0.75, -0.25, 0.25]),
    "learned step, straight through": (learned_step, [1.0, -2.0, 0.0, 1.0]),
    "learned step, straight through, at halves": (learned_step, [0.5, -1.0, 0.25, 0.5]),
    "straight through, then clip": (lambda x: jnp.clip(x + lax.stop_gradient(jnp.round(x) - x), 0, 1), POINT),
    "straight through by custom_vjp": (lambda x: rounded(x) * 2, [0.25, 1.0, -2.0, 1.0]),
    "straight through by custom_vjp, then clip": (lambda x: jnp.clip(rounded(x), 0.0, 1.0), [0.25, 1.0, -2.0, 1.0]),
    "straight through, clipped in its rule": (clipped_in_vjp, POINT),
    "straight through, binarised": (binarised, POINT),
    "custom_jvp, by its result": (relu_by_result, POINT),
    "custom_jvp, by its operand": (relu_by_operand, POINT),
    "custom_jvp, of two": (lambda x: maximum_by_result(x, x[::-1]), EQUAL),
    "custom_jvp, of many": (largest_by_result, EQUAL),
    "custom_jvp, a contact": (lambda x: contact(x) - contact(-x), POINT),
    "custom_jvp, in a scan": (lambda x: lax.scan(lambda y, _: (relu_by_result(y - 1), None), x, None, 2)[0], POINT),
    "custom_jvp, under vmap": (lambda x: jax.vmap(relu_by_result)(x), POINT),
    "custom_jvp, a cond in its rule, under vmap": (lambda x: jax.vmap(branch_in_rule)(x), POINT),
    "custom_jvp, of a callback": (on_the_host, POINT),
    "custom_vjp, of relu": (relu_with_vjp, POINT),
    "custom_vjp, of abs": (abs_with_vjp, POINT),
    "custom_vjp, then a clip": (lambda x: jnp.clip(clipped_gradient(x), 0, 1), POINT),
    "custom_vmap": (lambda x: jax.vmap(batched_abs)(x), POINT),
    "pallas_call": (in_a_kernel, POINT),
    "pure_callback": (
        lambda x: jax.pure_callback(np.abs, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        POINT,
    ),
    # Stable forms.
    "softmax less its maximum": (stable_softmax, EQUAL),
    "logsumexp less its maximum": (lambda x: x.max() + jnp.log(jnp.exp(x - x.max()).sum()), EQUAL),
    "sigmoid by sign": (stable_sigmoid, POINT),
    # Networks and attention.
    "attention by relu": (attention, POINT),
    "attention to the nearest": (hard_attention, EQUAL),
    "attention of relu": (attention_of_relu, POINT),
    "dense layers": (dense, ZEROS),
    "flax": (flax_network, [0.0] * 16),
    "equinox": (equinox_network, [0.0, 6.0, 6.0, 0.0]),
    "layer norm of relu": (lambda x: jax.nn.standardize(jax.nn.relu(x)), POINT),
    # Transformations within.
    "vmap": (lambda x: jax.vmap(jax.nn.relu)(x), POINT),
    "vmap of max": (lambda x: jax.vmap(jnp.max)(rows(x)), ONES),
    "vmap of sort": (lambda x: jax.vmap(jnp.sort)(rows(x)), ONES),
    "jvp": (lambda x: sum(jax.jvp(lambda x: jax.nn.relu(x) ** 2, (x,), (jnp.ones_like(x),))), POINT),
    "grad": (lambda x: jax.grad(lambda x: jnp.sum(jax.nn.relu(x) ** 3))(x), POINT),
    "vjp": (lambda x: jax.vjp(lambda x: jnp.abs(x) * x, x)[1](x)[0], POINT),
    "jacrev": (lambda x: jax.jacrev(lambda x: jax.nn.relu(x) ** 2)(x).sum(0), POINT),
    "jacfwd": (lambda x: jax.jacfwd(lambda x: jax.nn.relu(x) ** 2)(x).sum(0), POINT),
    "hessian": (lambda x: jax.hessian(lambda x: jnp.sum(jax.nn.relu(x) ** 3))(x).sum(0), POINT),
    "linearize": (lambda x: jax.linearize(lambda x: jnp.maximum(x, 0) ** 2, x)[1](x), POINT),
    "jit": (jax.jit(lambda x: jnp.where(x > 0, x, -x)), POINT),
    "checkpoint": (jax.checkpoint(lambda x: jax.nn.relu(x) * jnp.abs(x)), POINT),
    "named_call": (jax.named_call(lambda x: jax.nn.relu(x) * 2), POINT),
    "jnp.vectorize": (jnp.vectorize(lambda a: jnp.where(a > 0, a, -a)), POINT),
    "under min_norm": (lambda x: jaxclamp.min_norm(jax.nn.relu)(x) - jax.nn.relu(-x), POINT),
    "norms under min_norm": (
        jaxclamp.min_norm(lambda x: jnp.linalg.vector_norm(x, ord=3) + jnp.sqrt(jnp.min(x**2 + x[::-1] ** 2))),
        ZEROS,
    ),
    "norm under as_of": (jaxclamp.as_of("torch 2.13")(lambda x: jnp.linalg.vector_norm(x, ord=3)), ZEROS),
    "jaxclamp.relu": (lambda x: jaxclamp.relu(x) - jaxclamp.relu(-x), POINT),
    "jaxclamp.amax": (lambda x: jaxclamp.amax(x), EQUAL),
    # Linear algebra and solvers.
    "solve": (lambda x: jnp.linalg.solve(jnp.diag(jax.nn.relu(x) + 1) + 0.5, jnp.ones(4)), POINT),
    "solve, abs on the right": (lambda x: jnp.linalg.solve(jnp.cos(numbers(4, 4)) + 3 * jnp.eye(4), jnp.abs(x)), POINT),
    "inverse": (lambda x: jnp.linalg.inv(jnp.diag(jnp.abs(x) + 1)), POINT),
    "cholesky": (lambda x: jnp.linalg.cholesky(jnp.diag(jnp.abs(x) + 1) + 0.5), POINT),
    "det": (lambda x: jnp.linalg.det(jnp.maximum(rows(x), rows(x).T)), EQUAL),
    "expm": (lambda x: jax.scipy.linalg.expm(jax.nn.relu(rows(x))), POINT),
    "eigvalsh, equal": (lambda x: jnp.linalg.eigvalsh(rows(x)), [1.0, 0.0, 0.0, 1.0]),
    "svdvals, equal": (lambda x: jnp.linalg.svd(rows(x), compute_uv=False), [1.0, 0.0, 0.0, 1.0]),
    "conjugate gradient": (conjugate_gradient, POINT),
    "custom_root": (custom_root, POINT),
    # Dtypes.
    "float32": (lambda x: jax.nn.relu(x.astype("float32")).astype(float), POINT),
    "a mask as float32": (lambda x: x * (x > 0).astype("float32"), POINT),
    "reduce_precision": (lambda x: jax.nn.relu(lax.reduce_precision(x, 11, 52)), POINT),
    "bitcast": (lambda x: jnp.where(lax.bitcast_convert_type(x, jnp.uint64) >> 63 == 1, -x, x), POINT),
    # Linear operations around.
    "einsum": (lambda x: jnp.einsum("i,j->ij", jax.nn.relu(x), jnp.abs(x)), POINT),
    "convolve": (lambda x: jnp.convolve(jax.nn.relu(x), numbers(2)), POINT),
    "matmul": (lambda x: jax.nn.relu(numbers(3, 4) @ jax.nn.relu(x)), POINT),
    "fft": (lambda x: jnp.fft.fft(jax.nn.relu(x)).real, POINT),
    "roll": (lambda x: jnp.maximum(x, jnp.roll(x, 1)), EQUAL),
    "trapezoid": (lambda x: jnp.trapezoid(jnp.abs(x)), POINT),
    "cumsum": (lambda x: jax.nn.relu(jnp.cumsum(x)), POINT),
    "donated": (lambda x: jax.jit(jax.nn.relu)(x + 0), POINT),
}


def loss_of(program: Program) -> Program:
    """A weighted sum of the results, which tells them apart."""

    def loss(x: jax.Array) -> jax.Array:
        result = program(x)
        return jnp.sum(result * numbers(*result.shape, start=1.0))

    return loss


BY_ITS_AUTHOR = {name for name in PROGRAMS if "straight through" in name} | {"custom_vjp, then a clip"}
"""Programs whose gradient is not that of their values."""
COARSE = {"float32"}
"""Programs with few digits."""

WARNED = ("approx_max_k", "custom_jvp, of a callback")
REFUSED = {
    "while_loop": "Try using lax.scan",
    "pallas_call": "does not support reverse-mode autodiff",
    "pure_callback": "Please use `jax.custom_jvp`",
    "custom_jvp, a cond in its rule, under vmap": "for 'stop_gradient' not implemented",
}
"""Programs that JAX itself does not differentiate, and what its error says."""
DOCUMENTED: dict[str, tuple[str, ...]] = {
    "`sqrt(x) ** 2` at 0 multiplies an infinite slope by 0, which gives NaN.": (
        *("relu(x)^0.5 * relu(x)^2", "xlogy", "angle"),
        "safe norm by a rule",
    ),
    "Where the branch that is entered is NaN, a `where` takes the one that it takes at the point": ("x^2 / |x|",),
    "Where operands have equal values and equal derivatives along $v$, higher derivatives would decide.": (
        "second order",
    ),
    "A mask of `x.detach()`, `x.data` or `stop_gradient(x)` is that at the point.": (
        *("a table behind stop_gradient", "a mask behind stop_gradient"),
    ),
    "`grad` takes that of a `custom_vjp` or `custom_jvp`, such as of a straight-through estimator, as it is.": (
        *("straight through, clipped in its rule", "custom_vjp, of relu", "custom_vjp, of abs"),
    ),
    "Where the function stands still between jumps, as one that rounds, fires or bisects, it moves as its rule says.": (
        "straight through by custom_vjp, then clip",
    ),
    "Written as `x + stop_gradient(round(x) - x)` a straight-through estimator moves as its gradient says": (
        "straight through, then clip",
    ),
}
"""By the sentence of the documentation that says so: programs whose gradient is not the limit of those nearby."""
QUICK = (
    *(
        "relu(x) - relu(-x)",
        "clip, moving bounds",
        "second order",
        "hard_swish",
        "x[argmax]",
        "top_k",
        "spring contact",
    ),
    *("spring contact", "triangle wave, floor", "atan2", "straight through", "custom_jvp, of two", "pure_callback"),
    *("norms, 3, of rows", "norm, 1.5, at 0", "sqrt(x^2)", "norm under as_of"),
)
EXPECTED = {
    **dict.fromkeys(PROGRAMS, "right"),
    **dict.fromkeys(WARNED, "warned"),
    **dict.fromkeys(REFUSED, "refused"),
    **{name: "wrong" for names in DOCUMENTED.values() for name in names},
}


def verdict(name: str) -> tuple[str, str]:
    """In a word, and what shows it."""
    program, at = PROGRAMS[name]
    x, t = jnp.array(at), 1e-3 if name in COARSE else 1e-5
    v = jnp.asarray(np.random.default_rng(0).normal(size=x.shape))

    def loss(x: jax.Array) -> jax.Array:
        """A weighted sum of the results, which tells them apart."""
        result = program(x)
        return jnp.sum(result * numbers(*result.shape, start=1.0))

    @jax.jit
    def along(v: jax.Array) -> Any:
        return jaxclamp.grad(loss, direction=v)(x), jaxclamp.directional_derivative(loss, (x,), (v,))[1]

    undecided._SHOWN.clear()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default", jaxclamp.UndecidedWarning)
        try:
            answers = [along(direction) for direction in (v, -v)]
        except (ValueError, NotImplementedError) as error:
            return "refused", str(error)
    unmodified = jax.jit(jax.value_and_grad(loss))
    here, _ = unmodified(x)
    for direction, (gradient, derivative) in zip((v, -v), answers, strict=True):
        (near, at_near), (far, at_far) = unmodified(x + t * direction), unmodified(x + 2 * t * direction)
        np.testing.assert_allclose(at_near, at_far, atol=2e-2, rtol=2e-2)  # nothing is chosen between the two
        limit, quotient = 2 * at_near - at_far, (4 * near - far - 3 * here) / (2 * t)
        is_right = np.allclose(gradient, limit, rtol=1e-3, atol=1e-3)
        if name not in BY_ITS_AUTHOR:
            np.testing.assert_allclose(jnp.vdot(limit, direction), quotient, rtol=1e-2, atol=1e-3)
            is_right &= np.allclose(derivative, quotient, rtol=1e-3, atol=1e-3)
        if not is_right:
            found = f"gradient {gradient}, nearby {limit}; derivative {derivative}, of values {quotient}"
            return "warned" if shown else "wrong", found
    return "right", ""


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in PROGRAMS]
)
def test_no_program_is_wrong_without_a_word(name: str) -> None:
    found, shows = verdict(name)
    assert found == EXPECTED[name], shows
    assert REFUSED.get(name, "") in shows


def test_what_is_wrong_is_documented() -> None:
    documentation = " ".join((TESTS.parent / "docs" / "decided-choices.md").read_text("utf-8").split())
    assert [sentence for sentence in DOCUMENTED if sentence not in documentation] == []
    assert EXPECTED.keys() | {*QUICK} == PROGRAMS.keys()
