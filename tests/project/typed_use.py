"""What type checkers make of the public names. `make lint` checks this file: each ignored error has to be one."""

import jax
import torch

import interop
import jaxclamp

X = torch.ones(1, 2)

interop.clmap(X)  # type: ignore[attr-defined]
interop.clamp(X, 2, 3, 4, 5)  # type: ignore[call-arg, arg-type]
interop.clamp(X, ties="half")  # type: ignore[arg-type]
interop.nn.ReLU7()  # type: ignore[attr-defined]
jaxclamp.clmap(1.0)  # type: ignore[attr-defined]
jaxclamp.clamp(1.0, 2, 3, 4, 5)  # type: ignore[call-arg, arg-type]

clamped: torch.Tensor = interop.clamp(X, min=0.0, ties="inclusive", out=None)
overwritten: torch.Tensor = interop.clamp_(X, 0.0, max=6.0)
pooled: torch.Tensor = interop.max_pool1d(X, 2)
places: torch.Tensor = interop.max_pool1d(X, 2, return_indices=True)[1]
module: torch.nn.Hardtanh = interop.nn.Hardtanh(0.0, 6.0)
called: torch.Tensor = interop.nn.ReLU6()(X)
interop.nn.ReLU6()(X, X)  # type: ignore[call-arg]
values, indices = interop.max_with_indices(X, 1)

interop.native.clamp(X, ties="half")  # type: ignore[arg-type]
interop.native.clmap(X)  # type: ignore[attr-defined]
interop.native.maximum(X)  # type: ignore[call-arg]
clipped: torch.Tensor = interop.native.clip(X, 0.0, 6.0)
largest: torch.Tensor = interop.native.max(X)
values, indices = interop.native.max(X, 0, keepdim=True)


def loss(x: jax.Array, scale: float = 1.0) -> jax.Array:
    return (scale * x).sum()


ONES = jax.numpy.ones(2)
jaxclamp.grad(loss)(ONES, scale=2.0)
jaxclamp.grad(loss)("ones")  # type: ignore[arg-type]
jaxclamp.grad(loss)(ONES, size=2.0)  # type: ignore[call-arg]
value: jax.Array = jaxclamp.value_and_grad(loss)(ONES)[0]
