"""Replaces NaN in a gradient that is there only because a cotangent of 0 met a slope that is not finite.

The rule, its reason and an example are those of `jaxclamp/_programs/nan_gradients.py`:

    Where the gradient is NaN, and all slopes on the paths that are left are finite, it is the sum over these paths.

Two reverse passes find both. In the one with a guard, a cotangent of 0 that meets a slope that is not finite
contributes nothing: so it finds the sum. The other one is the certificate: it finds 0 for an entry without a path, NaN
where a slope on one is not finite, and else a positive number.

A finite derivative along a direction would not do as a certificate: ``sqrt(x).norm() ** 2`` is the sum of x, and has
slopes of 1. At 0 torch takes 0 for the derivative of the norm, whatever moves, so that forward mode finds 0, as the
guard does. But there is a path through the norm, and NaN stays.

Guard and paths are hooks on the nodes of the graph of autograd. So the reverse pass is the usual one, to the bit, and
only where a gradient has a NaN are there two more.
"""

from __future__ import annotations

import contextlib
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction, once_differentiable
from torch.autograd.graph import Node, get_gradient_edge

from interop._programs.decided import operands
from interop._programs.order import are_late, value_and_tangent, value_of
from interop._torch.forms import functions_named
from interop._torch.grad_state import leaves_behind, nodes_behind
from interop._torch.in_numpy import is_any
from interop._torch.private_api import is_transformed, is_view, with_old_versions, without_forward_mode
from interop._transforms.unbounded import has_slope_without_bound
from interop.native._rules.reductions import with_reduced_axes

Tensor = torch.Tensor


# Reverse passes with hooks.

_Cotangents: TypeAlias = Sequence[Tensor | None]
"""The cotangents of a node, one for each of its results; None where the program does not use that."""
_OfOperand = Callable[[Node, int, Tensor, _Cotangents], Tensor]
"""Takes a node, the number of an operand, the gradient that the node finds for it, and the cotangents of the node; it
returns what takes the place of that gradient."""


def _hooked(root: Node, leaves: Iterable[Node] | None, of_operand: _OfOperand) -> contextlib.ExitStack:
    """Put hooks on the graph behind ``root``, on the way to ``leaves``, or to all; closing takes them away."""
    nodes = nodes_behind(root)
    on_the_way = set(nodes if leaves is None else leaves)
    for node in reversed(nodes):  # what a node reads comes before it
        if any(behind in on_the_way for behind, _ in node.next_functions):
            on_the_way.add(node)

    def hook(node: Node) -> Callable[..., Any]:
        def of_node(gradients: Sequence[Tensor | None], cotangents: _Cotangents) -> Any:
            return tuple(
                # An operand may have fewer bits than the result, and so than the cotangents.
                of_operand(node, i, gradient, cotangents).to(gradient.dtype)
                if gradient is not None and behind in on_the_way
                else gradient
                for i, (gradient, (behind, _)) in enumerate(zip(gradients, node.next_functions, strict=True))
            )

        return of_node

    hooks = contextlib.ExitStack()
    for node in nodes:
        if node in on_the_way and node.next_functions:
            hooks.callback(node.register_hook(hook(node)).remove)
    return hooks


def _active(cotangents: _Cotangents) -> list[Tensor]:
    return [cotangent for cotangent in cotangents if cotangent is not None]


def _is_of_complex(gradient: Tensor, active: Sequence[Tensor]) -> bool:
    """Return whether a node has complex numbers on either side: a product of a real and a complex one has both."""
    return any(tensor.is_complex() for tensor in (gradient, *active))


def _guarded(node: Node, i: int, gradient: Tensor, cotangents: _Cotangents) -> Tensor:
    """Return the gradient of the operand of number ``i``, to which cotangents that are 0 contribute nothing.

    Where the operand was 4, as in ``sqrt(x)``, the node has 1/4 times the cotangent, and that is left alone. Where it
    was -1, the node has NaN: that becomes 0 if the cotangent is 0, and stays if not.
    """
    if not is_any(gradient.isnan()):
        return gradient  # nearly every node, which is not called again as below
    active = _active(cotangents)
    if len(active) > 1 or isinstance(node, BackwardCFunction) or _is_of_complex(gradient, active):
        # Which element is made of which is not known.
        is_unread = torch.stack([(cotangent == 0).all() for cotangent in active]).all()
        return torch.where(gradient.isnan() & is_unread, 0.0, gradient)
    (cotangent,) = active
    if (product := _product(node, i)) is not None:
        factor, times = product
        # Where a cotangent that is not 0 meets a number that is not finite, the paths say so. addmm and its kin scale
        # the product by alpha; mm has none.
        finite = times(cotangent, torch.where(factor.isfinite(), factor, 0.0)) * getattr(node, "_saved_alpha", 1)
        return torch.where(gradient.isnan(), finite, gradient)
    # For an operand that was broadcast the node returns the terms, and the engine takes their sum.
    terms = gradient if gradient.shape == cotangent.shape else _terms(node, i, cotangents)
    unread = _spread(node, cotangent == 0, terms)
    return torch.where(terms.isnan() & unread, 0.0, terms).sum_to_size(gradient.shape)


def _terms(node: Node, i: int, cotangents: _Cotangents) -> Tensor:
    """Call the node again: what it finds for the operand, not yet summed over axes along which that was broadcast."""
    terms: Any = node(*cotangents)  # type: ignore[operator]  # the stubs do not know it
    return terms[i] if isinstance(terms, tuple) else terms


def _spread(node: Node, of_result: Tensor, terms: Tensor) -> Tensor:
    """Spread what holds of the elements of a result over the elements of the operand that went to them.

    An element went to the one in its place, or if its axis was reduced, to the one of its row. Of a result of shape
    (2,), reduced along the last axis of an operand of shape (2, 3), each is spread over a row of three.
    """
    if of_result.dim() < terms.dim():
        of_result = with_reduced_axes(of_result, _axes(node, terms), keeps=False)
    shape = of_result.shape
    fits = len(shape) in (0, terms.dim()) and all(n in (1, m) for n, m in zip(shape, terms.shape, strict=False))
    return of_result if fits else of_result.all()


def _axes(node: Node, operand: Tensor) -> Sequence[int]:
    """Return the axes of an operand along which the node has its elements in rows; all, if it names none."""
    if node.name() == "NativeLayerNormBackward0":
        return range(operand.dim())[-len(node._saved_normalized_shape) :]  # type: ignore[attr-defined]
    if node.name() == "ConvolutionBackward0":
        return range(operand.dim())[1:]
    axes = getattr(node, "_saved_dim", None)
    if axes is None or not operand.dim():  # a number has none, but torch takes 0 and -1 for it
        return range(operand.dim())
    # A node has axes that count from the end as numbers without sign.
    signed = (axis - 2**64 if axis >= 2**63 else axis for axis in ((axes,) if isinstance(axes, int) else axes))
    return [axis % operand.dim() for axis in signed]


_PRODUCTS: Mapping[str, tuple[int, str, str]] = {
    "MmBackward0": (0, "_saved_self", "_saved_mat2"),
    "BmmBackward0": (0, "_saved_self", "_saved_mat2"),
    "MvBackward0": (0, "_saved_self", "_saved_vec"),
    "AddmmBackward0": (1, "_saved_mat1", "_saved_mat2"),
    "BaddbmmBackward0": (1, "_saved_batch1", "_saved_batch2"),
    "AddmvBackward0": (1, "_saved_mat", "_saved_vec"),
}
"""Maps the name of the node of a product of matrices to the number of its left factor, and to what keeps both."""


def _product(node: Node, i: int) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]] | None:
    """Return the second factor, if the operand is one of a product of matrices, and how to multiply cotangents by it.

    Where a row of probabilities is NaN, and nothing reads it, the cotangents are 0. The values get nothing from this
    row, but their gradient from the other rows.
    """
    left, of_left, of_right = _PRODUCTS.get(node.name(), (-2, "", ""))  # no operand has the number -2 or -1
    if i not in (left, left + 1):
        return None
    is_vector = of_right == "_saved_vec"

    def times(cotangent: Tensor, factor: Tensor) -> Tensor:
        cotangent = cotangent.unsqueeze(-1) if is_vector else cotangent
        if i == left:
            return cotangent @ (factor.unsqueeze(0) if is_vector else factor.mT)
        return (factor.mT @ cotangent).squeeze(-1) if is_vector else factor.mT @ cotangent

    return getattr(node, of_right if i == left else of_left), times


# The certificate.


def has_nan(tensors: Sequence[Tensor]) -> bool:
    """Return whether a number may be NaN, or infinities of both signs are among them: whether a sum is NaN."""
    return is_any(torch.stack([tensor.sum().to(tensors[0]) for tensor in tensors]).isnan()) if tensors else False


def certified(
    gradients: Sequence[Tensor], root: Node, pull: Callable[[], Sequence[Tensor]], leaves: Iterable[Node] | None = None
) -> list[Tensor]:
    """Return the gradients, with NaN replaced by what the guard finds where the certificate allows it.

    Args:
      gradients: of the result of a graph, those that ``pull`` found.
      root: the node of the result.
      pull: takes the reverse pass once more.
      leaves: the nodes on the way to which there are guards; by default all.
    """
    with _hooked(root, leaves, _guarded):
        guarded = pull()
    with _hooked(root, leaves, _path):
        paths = pull()
    return [
        torch.where(gradient.isnan() & ~path.isnan(), number, gradient)
        for gradient, path, number in zip(gradients, paths, guarded, strict=True)
    ]


def _path(node: Node, i: int, gradient: Tensor, cotangents: _Cotangents) -> Tensor:
    """Return 0 where no path is left, NaN where one has a slope that is not finite, and else a positive number.

    The cotangents are such numbers, too. Of ``where(x > 0, sqrt(x), x)`` at -1 the node of ``where`` has 0 for the root
    and 1 for x. The root has a slope of NaN, and 0 for x all the same. So x gets 0 + 1: a NaN there may be replaced.
    Of ``sqrt(x) * 0`` the node of the product has 1 for the root, although its slope is 0, and x gets NaN.
    """
    active = _active(cotangents)
    name = "" if _is_of_complex(gradient, active) else re.sub(r"Backward\d*$", "", node.name())
    if name in _SELECTIONS:  # it moves these numbers as it moves cotangents
        # 1 for each sum of paths: their number would overflow in a deep graph.
        return torch.where(gradient > 0, 1.0, gradient)
    if name in _ELEMENTWISE:
        return _path_of_elements(node, i, gradient, *active)
    if f"{name}Backward0" in _PRODUCTS:
        return _path_of_product(node, i, gradient, *active)
    return _path_of_rows(node, i, gradient, active, knows_rows=name in _IN_ROWS and len(active) == 1)


def _path_of_elements(node: Node, i: int, gradient: Tensor, cotangent: Tensor) -> Tensor:
    """Do as `_path` for a node that makes each element of those in its place: pass the cotangent on, or NaN."""
    is_finite = _terms(node, i, [torch.ones_like(cotangent)]).isfinite()  # of a cotangent of 1 it is the slope
    return torch.where(is_finite | (cotangent == 0), cotangent, math.nan).sum_to_size(gradient.shape)


def _path_of_product(node: Node, i: int, gradient: Tensor, cotangent: Tensor) -> Tensor:
    """Do as `_path` for a product of matrices: NaN where any of the terms is one of a path and no finite factor."""
    if (product := _product(node, i)) is None:  # what addmm adds to the product
        return cotangent.sum_to_size(gradient.shape)
    factor, times = product
    # How many terms of the sum are of a cotangent that is read, and a number that is not finite.
    count = times((cotangent != 0).to(factor.dtype), (~factor.isfinite()).to(factor.dtype))
    return torch.where(count > 0, math.nan, times(cotangent, torch.ones_like(factor)))


def _path_of_rows(node: Node, i: int, gradient: Tensor, active: Sequence[Tensor], knows_rows: bool) -> Tensor:
    """Do as `_path` for a node that makes the elements of a row of all others in it, as softmax.

    A path leads from each element of a row to all of that row. Where rows are not known, the operand is one row.
    """
    axes: Sequence[int] = range(gradient.dim())
    if knows_rows and i == 0:  # the other operands are weights
        axes = _axes(node, gradient)
        is_read = _spread(node, active[0] != 0, gradient)
    else:
        is_read = torch.stack([(cotangent != 0).any() for cotangent in active]).any()
    is_read, is_finite = is_read.expand(gradient.shape), gradient.isfinite()
    for axis in axes:
        is_read, is_finite = is_read.any(axis, keepdim=True), is_finite.all(axis, keepdim=True)
    return torch.where(is_read, torch.where(is_finite, 1.0, math.nan), 0.0).expand(gradient.shape)


# fmt: off
_SELECTIONS = frozenset((
    "Where", "MaskedFill", "MaskedScatter", "MaskedSelect", "NanToNum", "Nansum",
    "Index", "IndexSelect", "IndexFill", "IndexPut", "IndexPutImpl",
    "Gather", "Scatter", "ScatterAdd", "Take", "Select", "Slice", "SelectScatter", "SliceScatter", "Diagonal",
    "Split", "SplitWithSizes", "UnsafeSplit", "Unbind", "Cat", "Stack", "Expand", "View", "ReshapeAlias",
    "UnsafeView", "Unsqueeze", "Squeeze", "Permute", "Transpose", "T", "Clone", "Alias", "ToCopy", "Flip",
    "Roll", "Repeat", "torch::autograd::CopyBackwards", "torch::autograd::Identity", "ConstantPadNd", "Tril", "Triu",
    "Sum", "Mean", "Cumsum", "Embedding", "Clamp", "ClampMin", "ClampMax", "Hardtanh", "Relu", "Maximum", "Minimum",
    "Fmax", "Fmin", "Threshold", "ThresholdBackward",
))
"""The nodes, by their names but for the ending, that move elements or add them up: a 0 among their slopes is a cut."""
_ELEMENTWISE = frozenset((
    "Abs", "Acos", "Acosh", "Add", "Addcdiv", "Addcmul", "Asin", "Asinh", "Atan", "Atan2", "Atanh",
    "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "Ceil", "Celu",
    "Cos", "Cosh", "Deg2Rad", "Digamma", "Div", "Elu", "Erf", "Erfc", "Erfinv", "Exp", "Exp2", "Expm1",
    "Floor", "Fmod", "Frac", "Gelu", "Hardshrink", "Hardsigmoid", "Hardswish", "HuberLoss", "Hypot", "LeakyRelu",
    "LeakyReluBackward", "Lerp", "Lgamma", "Log", "Log10", "Log1P", "Log2", "Logaddexp", "Logaddexp2", "Logit",
    "LogSigmoid", "Mish", "MseLoss", "Mul", "NativeDropout", "Neg", "Polygamma", "Pow", "PreluKernel",
    "Rad2Deg",
    "Reciprocal", "Remainder", "Round", "Rsqrt", "Rsub", "Sgn", "Sigmoid", "Sign", "Silu", "Sin", "Sinc", "Sinh",
    "SmoothL1Loss", "SoftMarginLoss", "Softplus", "Softshrink", "SpecialEntr", "SpecialNdtri", "SpecialXlog1Py",
    "Sqrt", "Sub", "Tan", "Tanh", "Trunc", "Xlogy",
))
"""The nodes whose results have each element made of the elements in its place, or a loss of those in all places."""
_IN_ROWS = frozenset((
    "Convolution", "Cumprod", "LinalgVectorNorm", "LogSoftmax", "Logcumsumexp", "Logsumexp", "NativeLayerNorm", "Norm",
    "Prod", "Softmax", "Std", "Var",
))
"""The nodes whose results have each element made of the elements in a row."""
# fmt: on


# The same where a backward pass writes to `.grad`.


class Losses:
    """The losses of a block of `along`, and whether they were computed with a slope that is not finite.

    A backward pass that follows the block frees the graph as it goes, and cannot be taken twice. So the losses are
    settled when the block ends, or a backward pass begins in it. If there was such a slope, reverse passes find the
    gradients of each loss, and it becomes a function of the leaves that has these gradients. What else the block leaves
    keeps its graph, without a guard.

    A loss is a tensor of one number that the block leaves. A slope shows in the tangents of the result of a function
    without bound: they are not finite. Or it is that of another function, behind a constant that is not finite, such as
    a missing target: then the values are not finite where they are left out.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._numbers: list[weakref.ref[Tensor]] = []
        self._sums: list[Tensor] = []
        self._is_singular = False

    def see(self, function: Callable[..., Any], args: Sequence[Any], result: Any) -> None:
        """Look at a result of a function."""
        if torch.is_grad_enabled():
            # A sum is finite only if all its terms are; in 16 bits it would overflow. To look at it here would wait for
            # the device.
            for numbers in _showing_slopes(function, args, result):
                self._sums.append(numbers.sum(dtype=torch.promote_types(numbers.dtype, torch.float32)))
            if is_transformed():  # behind its vmap nobody can look at a batch
                self._settle_slopes()
        if not is_transformed():
            tensors = (x for x in operands(result) if isinstance(x, Tensor))
            self._numbers += [weakref.ref(x) for x in tensors if x.numel() == 1 and x.requires_grad]

    def settle(self, complete: Callable[[Tensor], Any]) -> None:
        """Find the gradients of the losses, if there are slopes that want it; ``complete`` gives late tangents."""
        self._settle_slopes()
        alive = [number() for number in self._numbers]
        self._numbers.clear()
        if not self._is_singular:
            return
        for loss in alive:
            # Torch cannot detach a view from what it is a view of.
            if loss is not None and (root := loss.grad_fn) is not None and not is_view(loss):
                complete(loss)
                self._settle_loss(loss, root)

    def _settle_slopes(self) -> None:
        self._is_singular |= any(is_any(~total.isfinite()) for total in self._sums)
        self._sums.clear()

    def _settle_loss(self, loss: Tensor, root: Node) -> None:
        # The loss becomes a function of all leaves, though those of the parameters alone are mended: the backward pass
        # of the program finds the gradients of the others by it, too.
        leaves = leaves_behind(loss)
        tangent = value_and_tangent(loss)[1].clone()
        moving = {id(parameter) for parameter in self._parameters}

        def pull() -> list[Tensor]:
            return list(torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True))

        with without_forward_mode():
            try:
                gradients = pull()
                if not has_nan(gradients):
                    return
                ways = [get_gradient_edge(parameter).node for parameter in self._parameters]
                mended = certified(gradients, root, pull, ways)
            except RuntimeError:  # the backward pass will raise it too
                return
            triples = zip(leaves, gradients, mended, strict=True)
            gradients = [new if id(leaf) in moving else old for leaf, old, new in triples]
            with torch.enable_grad(), with_old_versions([loss]):
                number = _Settled.apply(loss.detach(), gradients, *leaves)
                # In place, since the program holds this tensor.
                loss.detach_().copy_(number)
        # The tangent went with the old graph, and what follows may still choose by it.
        with torch.no_grad(), with_old_versions([loss]):
            loss.copy_(forward_ad.make_dual(loss.detach(), tangent))


def _showing_slopes(function: Callable[..., Any], args: Sequence[Any], result: Any) -> Iterator[Tensor]:
    """Yield numbers that are finite only if the slopes are that the function has, or leaves behind."""
    if has_slope_without_bound(function, args):
        for tensor in operands(result):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                # Where tangents are late, slopes are finite where cubes of the values are, as of 1 / sqrt(x).
                yield tensor.detach() ** 3 if are_late() else value_and_tangent(tensor)[1]
    if function in _LEAVING_OUT and isinstance(result, Tensor) and not is_view(result):
        for x in args:
            # Not of a leaf: it may be a large table, of which few rows are read. A vmap does not tell leaves.
            if isinstance(x, Tensor) and x.is_floating_point() and (x.grad_fn or is_transformed()):
                yield value_of(x)


_LEAVING_OUT = frozenset(
    function
    for name in (
        *("where", "masked_fill", "masked_select", "__getitem__", "index_select", "gather", "take", "take_along_dim"),
        *("index_fill", "index_put", "scatter", "fmax", "fmin"),
        *("nansum", "nanmean", "nanmedian", "nanquantile", "nan_to_num"),
    )
    for function in functions_named(name)
)
"""The functions by which a program leaves out elements that are not finite, so that its loss is."""


class _Settled(torch.autograd.Function):
    """A number, as a function with these gradients."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, gradients: Sequence[Tensor], *leaves: Tensor) -> Tensor:
        ctx.gradients = gradients
        return number.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return (None, None, *(cotangent.reshape(()) * gradient for gradient in ctx.gradients))
