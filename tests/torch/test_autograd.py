"""Wrapped functions under torch's own machinery: every order, forward mode, torch.func, checkpoints, modes."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import interop
import jaxclamp
from interop import TORCH_OPS, wrap_for_torch
from interop._torch.grad_state import outside_of_modes
from interop._torch.private_api import out_of_old_vmap
from jaxclamp import OPS, Op
from tests.support.calls import arguments, parameters

Tensor = torch.Tensor
smooth = wrap_for_torch(lambda x, w: jnp.tanh(x) * jnp.sin(w) + x * w * w)
pair = wrap_for_torch(lambda x: {"sin": jnp.sin(x), "sum": (x * x).sum(), "count": jnp.arange(3)})


def native(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x) * torch.sin(w) + x * w * w


def points(*shape: int, requires_grad: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(2))
    return x.requires_grad_(requires_grad), w.requires_grad_(requires_grad)


def test_gradcheck_in_both_modes_and_to_second_order() -> None:
    inputs = points(5, requires_grad=True)
    assert torch.autograd.gradcheck(smooth, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(smooth, inputs, check_fwd_over_rev=True)


def test_gradcheck_of_several_outputs() -> None:
    x, _ = points(4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: (pair(x)["sin"], pair(x)["sum"]), x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: (pair(x)["sin"], pair(x)["sum"]), x)


def test_fourth_derivative() -> None:
    x, _ = points(3, requires_grad=True)
    y = wrap_for_torch(jnp.sin)(x)
    for _ in range(4):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(y, torch.sin(x))


x5, w5 = points(5)
x45, w45 = points(4, 5)

TRANSFORMED: dict[str, Callable[[Callable[[Tensor, Tensor], Tensor]], Any]] = {
    "grad": lambda f: grad(lambda x: f(x, w5).sum())(x5),
    "grad of grad": lambda f: grad(grad(lambda x: f(x, w5[0])))(x5[1]),
    "vmap": lambda f: vmap(f)(x45, w45),
    "vmap over another axis": lambda f: vmap(f, in_dims=(1, None))(x45.T.contiguous(), w5),
    "nested vmap": lambda f: vmap(vmap(f))(torch.stack([x45, w45]), torch.stack([w45, x45])),
    "vmap of grad": lambda f: vmap(grad(lambda x, w: f(x, w).sum()))(x45, w45),
    "grad of vmap": lambda f: grad(lambda x: vmap(f)(x, w45).sum())(x45),
    "jvp": lambda f: jvp(lambda x: f(x, w5), (x5,), (w5,)),
    "jvp of both": lambda f: jvp(f, (x5, w5), (w5, x5)),
    "vjp": lambda f: vjp(f, x5, w5)[1](x5),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1))(x5, w5),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1))(x5, w5),
    "hessian": lambda f: hessian(lambda x: f(x, w5).sum())(x5),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(lambda x: f(x * x, w5).sum()))(x5),
    # Torch has cotangents that are 0 without memory there.
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(lambda x: (f(x, w5) * w5).sum()))(x5),
    "jacrev of jacrev": lambda f: jacrev(jacrev(lambda x: f(x, w5).sum()))(x5),
    "jvp of grad": lambda f: jvp(grad(lambda x: f(x, w5).sum()), (x5,), (w5,)),
    "per-sample gradients": lambda f: vmap(grad(lambda w, x: f(x, w).sum()), in_dims=(None, 0))(w5, x45),
}


@pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED.keys())
def test_torch_func(transform: Callable[..., Any]) -> None:
    torch.testing.assert_close(transform(smooth), transform(native))


@pytest.mark.parametrize("x", [-1.0, 0.0, 3.0, 6.0, 7.0])
def test_ties_under_torch_func(x: float) -> None:
    at = torch.tensor(x)
    slope = float(0 < x < 6)
    clamp = lambda x: interop.clamp(x, 0.0, 6.0)  # noqa: E731
    assert grad(clamp)(at) == jacfwd(clamp)(at) == jacrev(clamp)(at) == vmap(grad(clamp))(at[None])[0] == slope
    assert jvp(clamp, (at,), (torch.tensor(2.0),))[1] == 2 * slope
    assert hessian(clamp)(at) == 0


def test_active_inputs_under_torch_func() -> None:
    zero = torch.zeros(())
    assert grad(interop.maximum, argnums=(0, 1))(zero, zero) == (0.5, 0.5)
    assert grad(interop.maximum)(zero, zero) == 0
    assert jvp(lambda x: interop.maximum(x, zero), (zero,), (torch.ones(()),))[1] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_tangents_that_torch_gives_in_float64(dtype: torch.dtype) -> None:
    """As of a tensor without axes behind a number, in torch.func."""
    x = torch.tensor(-1.0, dtype=dtype)
    tangent = jvp(lambda x: interop.maximum(2.0 * x + 2.0, 0 * x), (x,), (torch.ones_like(x),))[1]
    assert torch.equal(tangent, torch.ones_like(x))  # half of the slopes 2 and 0
    assert torch.equal(jacfwd(lambda x: interop.relu(x + 2.0))(x), torch.ones_like(x))


def test_forward_mode_of_dual_tensors() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x5, w5)
        ours, theirs = (forward_ad.unpack_dual(f(dual, w5)).tangent for f in (smooth, native))
        torch.testing.assert_close(ours, theirs)
        result = pair(dual)
        torch.testing.assert_close(forward_ad.unpack_dual(result["sin"]).tangent, torch.cos(x5) * w5)
        assert forward_ad.unpack_dual(result["count"]).tangent is None


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    x, w = points(5, requires_grad=True)
    torch.utils.checkpoint.checkpoint(smooth, x, w, use_reentrant=reentrant).sum().backward()
    again = [t.detach().requires_grad_() for t in (x, w)]
    native(*again).sum().backward()
    torch.testing.assert_close([x.grad, w.grad], [t.grad for t in again])


def test_hooks_and_retained_graphs() -> None:
    x, w = points(5, requires_grad=True)
    seen: list[Tensor] = []
    y = smooth(x, w)
    y.register_hook(seen.append)
    x.register_hook(lambda g: 2 * g)
    y.sum().backward(retain_graph=True)
    once = x.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * once)
    assert len(seen) == 2
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_modes() -> None:
    x, w = points(5, requires_grad=True)
    with torch.no_grad():
        assert not smooth(x, w).requires_grad
    with torch.inference_mode():
        y = smooth(x, w)
        assert y.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        smooth(y, w)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        *(pytest.param(d, marks=pytest.mark.thorough) for d in (torch.float16, torch.float64)),
    ],
)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_autocast(op: Op, dtype: torch.dtype) -> None:
    given = arguments(op, dtype)
    counterpart = next(c for c in op.counterparts if c.framework == "torch")
    for lower in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=lower):
            ours = TORCH_OPS[op.name](*given)
            theirs = counterpart(dict(zip(parameters(op), given, strict=False)))
        first, second = (y[0] if isinstance(y, tuple) else y for y in (ours, theirs))
        assert first.dtype == second.dtype


def test_default_device() -> None:
    x, w = points(5, requires_grad=True)
    with torch.device("meta"):
        y = smooth(x, w)
        y.sum().backward()
    assert y.device == x.grad.device == x.device
    torch.testing.assert_close(x.grad, torch.autograd.grad(native(x, w).sum(), x)[0])


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_batched_gradients(strategy: str) -> None:
    x, w = points(5, requires_grad=True)
    every = torch.eye(5, dtype=torch.float64)
    ours = torch.autograd.grad(smooth(x, w), (x, w), every, is_grads_batched=True)
    torch.testing.assert_close(ours, torch.autograd.grad(native(x, w), (x, w), every, is_grads_batched=True))
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    torch.testing.assert_close(jacobian(smooth, (x, w), vectorize=True, strategy=strategy), jacobian(native, (x, w)))
    of_sum, expected = (lambda x, w, f=f: f(x, w).sum() for f in (smooth, native))
    got = hessian(of_sum, (x, w), vectorize=True, outer_jacobian_strategy=strategy)
    torch.testing.assert_close(got, hessian(expected, (x, w)))


def test_batched_gradients_with_a_graph() -> None:
    x, w = points(5, requires_grad=True)
    found = []
    for f in (smooth, native):
        every = torch.eye(5, dtype=torch.float64)
        (rows,) = torch.autograd.grad(f(x, w), x, every, is_grads_batched=True, create_graph=True)
        found.append(torch.autograd.grad((rows**2).sum(), (x, w)))
    torch.testing.assert_close(*found)


def test_batched_gradcheck() -> None:
    inputs = points(5, requires_grad=True)
    batched = {"check_batched_grad": True}
    assert torch.autograd.gradcheck(smooth, inputs, check_forward_ad=True, check_batched_forward_grad=True, **batched)
    assert torch.autograd.gradgradcheck(smooth, inputs, check_fwd_over_rev=True, **batched)
    assert torch.autograd.gradcheck(lambda x: pair(x)["sum"], inputs[0], **batched)


def test_batched_gradients_at_ties() -> None:
    x = torch.tensor([0.0, 3.0, 6.0], requires_grad=True)
    y = interop.clamp(x, 0.0, 6.0)
    (rows,) = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    assert rows.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("function", [smooth, lambda x, w: interop.native.max_pool1d(x[None], 3, 1)])
def test_batches_of_batched_gradients_are_refused(function: Callable[..., torch.Tensor]) -> None:
    x, w = points(5, requires_grad=True)
    y = function(x, w)
    vmap_of_old = torch._vmap_internals._vmap
    with pytest.raises(NotImplementedError, match="batched gradients within batched gradients"):
        vmap_of_old(vmap_of_old(lambda v: torch.autograd.grad(y, x, v)[0]))(y.new_ones(2, 3, *y.shape))


def test_batched_gradients_in_a_thread_of_the_engine() -> None:
    """The engine differentiates what is on a GPU in a thread that does not know the vmap of its caller."""

    def whole(v: Tensor) -> Tensor:
        found = outside_of_modes(lambda: out_of_old_vmap(v))
        assert found.tolist() == [[1, 2], [3, 4]]
        return v

    torch._vmap_internals._vmap(whole)(torch.tensor([[1, 2], [3, 4]]))


def test_integer_inputs_and_partial_gradients() -> None:
    x, _ = points(3, requires_grad=True)
    scaled = wrap_for_torch(lambda x, n: x * n)
    scaled(x, torch.arange(3)).sum().backward()
    assert x.grad.tolist() == [0, 1, 2]


# Residuals instead of inputs.

saving = wrap_for_torch(lambda x, w: {"y": jnp.tanh(x) * jnp.sin(w) + x * w * w, "i": jnp.argmax(x)}, save="residuals")


def of_saving(x: Tensor, w: Tensor) -> Tensor:
    return saving(x, w)["y"]


def test_gradients_from_residuals() -> None:
    inputs = points(5, requires_grad=True)
    assert torch.autograd.gradcheck(of_saving, inputs, check_batched_grad=True, check_forward_ad=True)
    for active in (inputs[:1], inputs[1:], inputs):
        ours = torch.autograd.grad(of_saving(*inputs).sum(), active)
        torch.testing.assert_close(ours, torch.autograd.grad(native(*inputs).sum(), active))
    assert not saving(*inputs)["i"].requires_grad
    z = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(wrap_for_torch(lambda z: z * z * jnp.conj(z), save="residuals"), z)
    torch.testing.assert_close(grad(lambda x: of_saving(x, w5).sum())(x5), grad(lambda x: native(x, w5).sum())(x5))


def test_one_byte_is_kept_for_an_op() -> None:
    clamp = wrap_for_torch(lambda x: jaxclamp.clamp(x, 0.0, 6.0), save="residuals")
    x = torch.tensor([-1.0, 0.0, 3.0, 6.0], requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        y = clamp(x)
    assert [(t.dtype, t.shape) for t in kept] == [(torch.int8, x.shape)]
    with torch.no_grad():
        x.fill_(100.0)  # nothing depends on it any more
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 0]


def test_second_derivatives_from_residuals_are_refused() -> None:
    """Also where the incoming gradient is a constant, and a part of the derivative would be missing silently."""
    x, w = points(5, requires_grad=True)
    with pytest.raises(RuntimeError, match="with save='residuals' there is no second derivative"):
        torch.autograd.grad(of_saving(x, w).sum() + (x**3).sum(), x, create_graph=True)
    with pytest.raises(ValueError, match="wrap_for_torch: save='mask' is not one of 'inputs', 'residuals'"):
        wrap_for_torch(jnp.sin, save="mask")
