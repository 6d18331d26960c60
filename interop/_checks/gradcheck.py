"""The check of the gradients of a torch function: `gradcheck`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.autograd.gradcheck import GradcheckError

from interop._torch.private_api import flattened, leaves_by_name
from interop._transforms.ties import ties
from jaxclamp._shared.gradient_check import Scale, check, names_of_entries
from jaxclamp._shared.slopes import Array, Function, largest_beside
from jaxclamp._shared.verdict import GradientReport, Names

_CHUNK = 1024
"""The most points in one call: all at once could need more memory than there is.

They are more than in `jaxclamp.check_grads`, which pads the last call to as many points; here nothing is padded."""


@torch.inference_mode(False)
def gradcheck(
    fun: Callable[..., Any],
    inputs: torch.Tensor | Sequence[Any],
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    scale: Scale = None,
) -> GradientReport:
    r"""Check the gradients of a function against its values, at kinks too: `torch.autograd.gradcheck` that holds there.

    The verdicts are those of `jaxclamp.check_grads`, where they are described. The function may have any derivative,
    that of a `torch.autograd.Function` included. It is called for many points at once by `torch.func.vmap`, or point
    by point if it does not allow that.

    Args:
      fun: a function of tensors, with a tensor or a tree of them as its result. It gets copies of its arguments each
        time.
      inputs: its arguments. Those that are real and floating and require grad are checked; the others are constants.
      eps: how far away nearby points are, in units of ``scale``; by default the precision of the values decides, each
        time anew.
      atol: absolute tolerance; by default none but the error of the derivative that the values tell, and rounding.
      rtol: relative tolerance; by default 1e-5 for float64, 2e-3 for float32, 1e-2 for float16 and 1e-1 for bfloat16.
      raise_exception: whether to raise an error if the check fails.
      check_forward_ad: whether to check forward mode; together with backward mode, that both agree.
      check_backward_ad: whether to check backward mode.
      scale: how far each input moves before slopes change much: a number, or for each input a number, an array of them
        or None. By default it is the size of each entry; that of the largest in its tensor, if it is 0; or 1.

    Returns:
      A report, which is true if the check passed, and prints as a short table.

    Raises:
      GradcheckError: the check failed, a RuntimeError as in torch. It has a line for each reason, with the entries,
        and the line of code where `ties` knows it.
      TypeError: ``fun`` is not callable, one of the ``inputs`` that require grad is complex or in a tree, or the result
        has no floating point numbers.
      ValueError: none of the ``inputs`` requires grad, no mode is asked for, a tolerance, ``eps`` or ``scale`` is
        negative, or two calls of ``fun`` return different values, or as many numbers as the values say.

    >>> x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    >>> print(gradcheck(lambda x: x * x, x))
    16 derivatives: 16 right
    >>> gradcheck(torch.amax, x).verdicts[0].kind
    'least norm'
    >>> bool(gradcheck(lambda x: torch.relu(x) - torch.relu(-x), x, raise_exception=False))  # which is x
    False
    """
    if not callable(fun):
        raise TypeError(f"gradcheck: fun is {fun!r}; pass a function of tensors.")
    if not (check_forward_ad or check_backward_ad):
        raise ValueError("gradcheck: neither mode is asked for; set check_backward_ad or check_forward_ad.")
    if not isinstance(inputs, Iterable):
        raise TypeError(f"gradcheck: inputs is {inputs!r}; pass a tensor, or a tuple of the arguments of fun.")
    function = _Flat(fun, (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs))
    forward, reverse = check_forward_ad, check_backward_ad
    report = check(function, "gradcheck", forward=forward, reverse=reverse, atol=atol, rtol=rtol, eps=eps, scale=scale)
    __tracebackhide__ = True  # pytest shows the line of the test
    if raise_exception and not report:
        raise GradcheckError(report.failure("gradcheck"))
    return report


class _Flat:
    """A function of tensors as one of a vector, what is differentiated of its inputs, whose value is a vector too.

    What is ``wide`` is computed in float64.
    """

    names: Names

    def __init__(self, fun: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self._fun = fun
        self._inputs = inputs
        for i, argument in enumerate(inputs):
            if not isinstance(argument, torch.Tensor) and any(map(_requires_grad, flattened(argument)[0])):
                raise TypeError(
                    f"gradcheck: inputs[{i}] is a {type(argument).__name__} with tensors that require grad, which "
                    "would not be checked; pass each of them as an input, to a function that puts them together."
                )
        self._active = [i for i, t in enumerate(inputs) if _requires_grad(t)]
        if not any(inputs[i].numel() for i in self._active):
            raise ValueError(
                "gradcheck: none of the inputs requires grad; set requires_grad where it is to be checked."
            )
        self._tensors = [inputs[i].detach().clone() for i in self._active]
        if any(tensor.is_complex() for tensor in self._tensors):
            raise TypeError("gradcheck: inputs has complex numbers; pass a function of real and imaginary parts.")
        if any(tensor.is_nested or tensor.layout is not torch.strided for tensor in self._tensors):
            raise TypeError("gradcheck: inputs has a sparse or nested tensor; pass a dense one, and convert it in fun.")
        self.point = _joined(self._tensors)
        with torch.no_grad():
            results = self._results(self._tensors)
        if not any(result.numel() for result in results.values()):
            raise TypeError("gradcheck: the result of fun has no floating point numbers, so there is no derivative.")
        dtypes = [tensor.dtype for tensor in (*self._tensors, *results.values())]
        # An error as large as the rounding of the coarsest of them is none.
        coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        self.dtype = str(coarsest).removeprefix("torch.")
        self.epsilon = torch.finfo(coarsest).eps
        self.largest = largest_beside([_numbers(tensor) for tensor in self._tensors])
        self.arguments = np.repeat(self._active, [tensor.numel() for tensor in self._tensors])
        outputs = [(name, result.shape) for name, result in results.items()]
        inputs_by_name = [(f"inputs[{i}]", inputs[i].shape) for i in self._active]
        self.names = names_of_entries(outputs), names_of_entries(inputs_by_name)

    def forward(self, point: Array, wide: bool = False) -> Array:
        primals = self._split(torch.from_numpy(point), torch.float64 if wide else None)
        columns = []
        for basis in np.eye(self.point.size):
            with forward_ad.dual_level():
                tangents = self._split(torch.from_numpy(basis), torch.float64 if wide else None)
                duals = [forward_ad.make_dual(*pair) for pair in zip(primals, tangents, strict=True)]
                parts = [forward_ad.unpack_dual(result) for result in self._results(duals).values()]
                # What depends on no input has no tangent.
                columns.append(_joined([torch.zeros_like(p) if tangent is None else tangent for p, tangent in parts]))
        return np.stack(columns, axis=1)

    def reverse(self, point: Array, wide: bool = False) -> Array:
        parts = self._split(torch.from_numpy(point), torch.float64 if wide else None)
        tensors = [part.clone().requires_grad_() for part in parts]
        value = self._vector(tensors)
        rows = np.zeros((value.numel(), self.point.size))
        if value.requires_grad:
            # Row by row: a `torch.autograd.Function` need have no rule for a batch of gradients.
            for row, entry in zip(rows, value, strict=True):
                gradients = torch.autograd.grad(entry, tensors, retain_graph=True, materialize_grads=True)
                row[:] = _joined(gradients)
        return rows

    def values(self, wide: bool = True) -> tuple[Function, float]:
        dtype: torch.dtype | None = torch.float64  # whose values tell smaller errors than those of narrower dtypes
        with torch.no_grad():
            try:
                results = self._results(self._split(torch.from_numpy(self.point), dtype)) if wide else {}
                is_wide = wide and all(result.dtype == dtype for result in results.values())
            except Exception:  # whatever keeps it from float64, such as parameters in float32
                is_wide = False
        dtype = dtype if is_wide else None

        def value(point: torch.Tensor) -> torch.Tensor:
            return self._vector(self._split(point, dtype))

        def one_by_one(points: torch.Tensor) -> torch.Tensor:
            values = [value(point) for point in points]
            if len(sizes := {len(each) for each in values}) > 1:
                counts = " or ".join(map(str, sorted(sizes)))
                raise ValueError(
                    f"gradcheck: how many numbers fun returns depends on the values: {counts}; return all, with 0 in "
                    "the place of those that are left out, for example by torch.where."
                )
            return torch.stack(values)

        with torch.no_grad():
            first, again = (value(torch.from_numpy(self.point)) for _ in range(2))
        if first.shape != again.shape or not torch.allclose(first, again, equal_nan=True):
            raise ValueError(
                "gradcheck: fun returns other values when it is called again; take its random numbers out, "
                "for example with model.eval()."
            )
        batched: Callable[[torch.Tensor], torch.Tensor] = torch.func.vmap(value, chunk_size=_CHUNK)
        try:
            with torch.no_grad():
                batched(torch.from_numpy(self.point)[None])
        except Exception:  # it has no rule for vmap, looks at numbers, or leaves torch
            batched = one_by_one

        def values(points: Array) -> Array:
            with torch.no_grad():
                return _numbers(batched(torch.from_numpy(points)))

        return values, torch.finfo(dtype).eps if dtype else self.epsilon

    def ties_at(self, point: Array) -> dict[str, int]:
        with warnings.catch_warnings(), torch.no_grad(), ties() as counted:
            warnings.simplefilter("ignore")  # of what cannot be counted
            try:
                self._fun(*self._arguments(self._split(torch.from_numpy(point))))
            except RuntimeError:  # by `ties`, of a compiled function
                return {}
        return {f"{line.place}: {line.op}": line.tied for line in counted.report.lines if line.tied}

    def _results(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Call the function, and map names to the floating point tensors among its results."""
        result = self._fun(*self._arguments(tensors))
        leaves = leaves_by_name(vars(result) if dataclasses.is_dataclass(result) else result)
        tensors_by_name = {f"out{name}": r for name, r in leaves.items() if isinstance(r, torch.Tensor)}
        if any(r.is_complex() for r in tensors_by_name.values()):
            raise TypeError("gradcheck: the result of fun is complex; pass a function with real and imaginary parts.")
        return {name: r for name, r in tensors_by_name.items() if r.is_floating_point()}

    def _vector(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([result.flatten() for result in self._results(tensors).values()])

    def _split(self, point: torch.Tensor, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """Split the vector into tensors, with this dtype or those of the inputs."""
        parts = torch.split(point, [tensor.numel() for tensor in self._tensors], dim=-1)
        return [
            part.reshape(t.shape).to(t.device, dtype or t.dtype) for part, t in zip(parts, self._tensors, strict=True)
        ]

    def _arguments(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Return copies of all arguments, which the function may overwrite."""
        active = dict(zip(self._active, tensors, strict=True))
        arguments = [active.get(i, argument) for i, argument in enumerate(self._inputs)]
        return [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments]


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _numbers(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().cpu().numpy()


def _joined(tensors: Sequence[torch.Tensor]) -> Array:
    return np.concatenate([_numbers(tensor).ravel() for tensor in tensors])
