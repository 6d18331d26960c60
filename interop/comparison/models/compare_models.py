"""Compare a model with its port: run both on the same inputs with the same parameters, and judge what differs.

The steps, each in a file beside this one:

1. Both models enter with their inputs, each as the class of its library, a `Model`, which knows how to run it.
2. Their parameters are paired, and by these their layers: they are `Counterparts`.
3. Both get the same values for their parameters, and run. How the rows of their kernels lie is settled by that.
4. All arrays that both have are listed, each a `Place`, and judged there, by more and more runs.
5. The judgements go to the pairs of layers, whose first difference is the cause that the `ModelComparison` reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from interop.comparison.models.adapters import models_of
from interop.comparison.models.counterparts import Override, counterparts_of
from interop.comparison.models.judgements import judge, roundings_of
from interop.comparison.models.mapping import bind
from interop.comparison.models.model import Call
from interop.comparison.models.places import places
from interop.comparison.models.report import ModelComparison, reported


def compare_models(
    first: Any,
    second: Any,
    /,
    *inputs: Any,
    parameters: Any = None,
    mapping: Override | None = None,
    calls: tuple[Call | None, Call | None] = (None, None),
    layouts: tuple[str, str] | None = None,
) -> ModelComparison:
    r"""Compare a model with its port: find the first layer at which their values or gradients differ, and why.

    Both run on the same inputs with the same parameters. The values that enter and leave each module are compared, and
    the gradients there, of :math:`\sum_i w_i \, value_i` over the floats in the result, with weights as in `compare`; a
    complex number counts as two. The layer to blame is the first whose inputs agree and whose outputs do not. If all
    values agree, it is the last at whose outputs gradients agree, and at whose inputs or parameters they do not.

    Both run in the precision that was given, and in float64, where differences of rounding vanish, or shrink as
    :math:`\epsilon` does. If only gradients differ, both run under `min_norm`, where differences at ties vanish, and
    with small random numbers added to those that cross into their layers, where differences at near ties vanish, of
    numbers that are equal but for rounding. If anything differs, each runs again with other random numbers. What then
    differs from itself is random, and no bug.

    Args:
      first, second: models of torch.nn, Flax (linen and nnx), Equinox, Keras 3 on JAX, or what ``haiku.transform`` and
        ``haiku.transform_with_state`` return. A linen module is bound to its variables, ``module.bind(variables)``, or
        gets all from the other model. One of Equinox with state is the pair ``(model, state)``. Each is taken as it is:
        in training, or in evaluation.
      inputs: what both are called with. Arrays of NumPy, JAX or torch, in the layout that ``first`` takes; all else is
        passed as it is. Images (floats of four or five axes) are transposed for ``second`` if its library has channels
        elsewhere.
      parameters: where their values come from. By default they are those of ``first``, or of ``second`` if ``first``
        has none; each model has them in its own dtypes, rounded alike. ``"own"`` leaves each its own, and compares
        them. Else a tree of arrays, a state_dict, or the path of an npz or safetensors file, or of a checkpoint of
        orbax, under the names of either model.
      mapping: maps names of parameters or modules of ``first``, that are not paired, or not rightly, to those of
        ``second``: ``{"Dense_0": "fc1"}``. A parameter may have an order of axes, ``{"w": ("fc.weight", (1, 0))}``;
        None says that there is no counterpart.
      calls: how to call each, if not with the inputs alone: ``lambda model, x: model(x, train=False)``.
      layouts: of the inputs of both, if not what is usual in the library, ``("NHWC", "NHWC")``, or if images are of
        integers.

    Returns:
      A `ModelComparison`: ``verdict``, ``cause``, ``layers``, ``mapping``, and ``plot(path)``; ``print`` it.

    Raises:
      TypeError: a model is of none of these libraries, or ``calls``, ``mapping`` or ``parameters`` of another type.
      ValueError: parameters have no counterpart, or several; results differ in number, shape, kind; a name is unknown;
        an input is of float64, and parameters are not.

    >>> import flax.linen as nn, numpy as np, torch
    >>> class Net(nn.Module):
    ...     @nn.compact
    ...     def __call__(self, x):
    ...         x = nn.gelu(nn.Dense(3)(x))
    ...         return nn.Dense(2)(x)
    >>> port = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU(), torch.nn.Linear(3, 2))
    >>> comparison = compare_models(Net(), port, np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
    >>> part, reason = comparison.verdict.split(". ")
    >>> print(part)
    Values first differ in the models' own code, after Dense_0 | 0 and before Dense_1 | 2
    >>> print(reason)
    That is not explained by ties or rounding: look at the code of both there, and at 1 (GELU), which one alone calls.
    >>> [layer.settings for layer in comparison.cause.between[1]]
    ["GELU(approximate='none')"]
    """
    if not (isinstance(calls, Sequence) and len(calls) == 2):
        raise TypeError(f"compare_models: calls is {calls!r}; pass two functions, None for one that is not needed.")
    if not isinstance(mapping, Mapping | None):
        raise TypeError(f"compare_models: mapping is {mapping!r}; pass a dict from names to names.")
    models, notes = models_of(first, second, inputs, calls, layouts)
    counterparts = counterparts_of(*models, mapping or {})
    bound = bind(models, parameters, counterparts)
    to_judge = list(places(bound))
    roundings = roundings_of(bound)
    judged = judge(bound, to_judge, roundings)
    return reported(bound, judged, roundings, notes)
