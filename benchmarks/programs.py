"""Gradients of whole programs beside those that JAX and torch take op by op: time, memory, and many inputs.

Prints tables: each line has medians in turns in one process, and their ratios to the first. ``python
benchmarks/programs.py [networks|models|convolutional|inputs|memory]`` asks for a part. The environment
variables of the Makefile keep glibc from returning pages between the calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from memory import growth_of_peak, printed_in_a_process
from native import Call, medians, normal, row
from torch.nn.functional import cross_entropy
from training import Clamps, layered, mobile_net, multilayer, resnet, vgg, weights

import interop
import jaxclamp

sys.path.append(str(Path(__file__).parent.parent / "examples"))
import jax_training
import quantised_training
import tie_audit
import tie_influence
import torch_training

Loss = Callable[..., Any]

WIDE = weights(*[(256, 256)] * 6)
CLIPPED = 8
"""How many times the function of many inputs does so."""


def perceptron(params: tie_influence.Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
    return tie_influence.loss(params, x, labels, "min_norm")[0]


def clipped(params: Any, x: jax.Array) -> jax.Array:
    return (layered(lambda x: jnp.clip(x, -1.0, 1.0))(params, x) ** 2).mean()


def digits(loss: Loss, params: Any, batch: int) -> tuple[Loss, tuple[Any, ...]]:
    x, labels = jax_training.data()
    return loss, (params, jnp.asarray(x[:batch]), jnp.asarray(labels[:batch]))


WIDTH, BLOCKS, HEADS = 128, 12, 4


@jax.checkpoint
def block(x: jax.Array, kernels: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    """A block of a transformer, as `jax.lax.scan` takes it."""

    def normalized(x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    query, key, value = (
        part.reshape(*x.shape[:-1], HEADS, -1) for part in jnp.split(normalized(x) @ kernels["attention"], 3, -1)
    )
    scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", query, key) / (WIDTH / HEADS) ** 0.5)
    x = x + jnp.einsum("bhts,bshd->bthd", scores, value).reshape(x.shape) @ kernels["out"]
    return x + jax.nn.relu(normalized(x) @ kernels["up"]) @ kernels["down"], None


def transformer(kernels: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return (jax.lax.scan(block, x, kernels)[0] ** 2).mean()


KERNELS = {
    name: jnp.full((BLOCKS, *shape), shape[0] ** -0.5)
    for name, shape in {
        "attention": (WIDTH, 3 * WIDTH),
        "out": (WIDTH,) * 2,
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }.items()
}


def losses_in_jax() -> dict[str, tuple[Loss, tuple[Any, ...]]]:
    """Return the losses of the networks of the examples, and of six wide layers, with their arguments."""
    integers = next(quantised_training.train("op by op, JAX", 1)).weights
    deep = [(kernel.T, bias) for kernel, bias in weights((512, 64), (512, 512), (512, 512), (10, 512))]
    x = jax.random.normal(jax.random.key(1), (1024, 256))
    return {
        "jax_training, batch 128": digits(jax_training.loss, jax_training.Network(jax.random.key(0)), 128),
        "quantised_training, batch 64": digits(
            quantised_training.loss, jax.tree.map(partial(jnp.asarray, dtype="float32"), integers), 64
        ),
        "tie_influence, width 512, batch 256": digits(perceptron, deep, 256),
        "six clipped layers of 256, batch 32": (clipped, (WIDE, x[:32])),
        "six clipped layers of 256, batch 1024": (clipped, (WIDE, x)),
        "a transformer of 12 scanned blocks": (transformer, (KERNELS, x[:128].reshape(4, 64, WIDTH))),
    }


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Call, int, int]:
    """Compile a call; return it, the bytes of its arguments, results and temporaries, and those of temporaries."""
    program = jax.jit(function).lower(*arguments).compile()
    memory = program.memory_analysis()
    temporaries = memory.temp_size_in_bytes
    needed = memory.argument_size_in_bytes + memory.output_size_in_bytes + temporaries
    return lambda: jax.block_until_ready(program(*arguments)), needed, temporaries


def networks() -> None:
    """Time JAX: grad of JAX, of jaxclamp along a drawn direction and a passed one, value_and_grad of both."""
    for name, (loss, arguments) in losses_in_jax().items():

        def along_passed(v: Any, *arguments: Any, loss: Loss = loss) -> Any:
            return jaxclamp.grad(loss, direction=v)(*arguments)

        calls, memory, temporaries = zip(
            compiled(jax.grad(loss), *arguments),
            compiled(jaxclamp.grad(loss), *arguments),
            compiled(along_passed, jax.tree.map(jnp.ones_like, arguments[0]), *arguments),
            compiled(jax.value_and_grad(loss), *arguments),
            compiled(jaxclamp.value_and_grad(loss), *arguments),
            strict=True,
        )
        times = medians(calls, 2.0)
        ratios = {"drawn": times[1] / times[0], "passed": times[2] / times[0], "value": times[4] / times[3]}
        row(name, "", *times, **ratios)
        for name_of_size, size in {"memory": memory, "temporaries": temporaries}.items():
            ratios = {"drawn": size[1] / size[0], "passed": size[2] / size[0], "value": size[4] / size[3]}
            row(f"its {name_of_size}, KiB", "", *size, unit=1 / 1024, **ratios)


def losses_in_torch() -> dict[str, tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]]:
    """Return the models of the examples, and six wide layers, with their losses."""
    x, labels = torch_training.data()
    ((audited, audited_labels),) = tie_audit.batches(1, 64)

    def of_digits(model: torch.nn.Module) -> torch.Tensor:
        return cross_entropy(model(x[:64]), labels[:64])

    return {
        "torch_training, modules, batch 64": (torch_training.network("modules"), of_digits),
        "torch_training, functions, batch 64": (torch_training.network("functions"), of_digits),
        "tie_audit, batch 64": (
            tie_audit.checkpoint(),
            lambda model: cross_entropy(model(audited), audited_labels),
        ),
        "six Linear and Hardtanh of 256, batch 32": (multilayer(), partial(squares, normal(32, 256))),
        "six Linear and clamp of 256, batch 32": (Clamps(), partial(squares, normal(32, 256))),
        "six Linear and clamp of 256, batch 1024": (Clamps(), partial(squares, normal(1024, 256))),
        "six Linear and ReLU of 256, with ties, batch 1024": (tied(), partial(squares, normal(1024, 256).round())),
    }


def tied() -> torch.nn.Module:
    """Return a network whose weights are multiples of 1/16, so that sums for integers are often 0."""
    model = torch.nn.Sequential(*(layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((16 * parameter).round() / 16)
    return model


def squares(x: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    return model(x).square().mean()


def eager(model: torch.nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
    model.zero_grad()
    loss(model).backward()


def along(model: torch.nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
    model.zero_grad()
    with interop.along(model):
        value = loss(model)
    value.backward()


def functional(transform: Loss, model: torch.nn.Module, loss: Callable[[Any], torch.Tensor]) -> Call:
    """Return the gradient of the loss as a function of the parameters."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def of_parameters(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss(lambda x: torch.func.functional_call(model, parameters, (x,)))

    return partial(transform(of_parameters), parameters)


def models() -> None:
    """Time torch: backward, the same in a block of along, torch.func.grad, interop.grad."""
    for name, (model, loss) in losses_in_torch().items():
        contenders: list[Call] = [partial(eager, model, loss), partial(along, model, loss)]
        contenders += [functional(transform, model, loss) for transform in (torch.func.grad, interop.grad)]
        times = medians(contenders, 2.0)
        ratios = {"along": times[1] / times[0], "grad": times[3] / times[0], "of_func": times[3] / times[2]}
        row(name, "", *times, **ratios)


def convolutional() -> None:
    """torch: backward, and the same in a block of along. torch.func takes no averages of batch norm."""
    for name, model, width in (("MobileNet", mobile_net(), 32), ("VGG", vgg(), 32), ("ResNet", resnet(), 64)):
        loss = partial(squares, normal(16, 3, width, width))
        times = medians([partial(eager, model, loss), partial(along, model, loss)], 2.0)
        row(f"{name}-like, batch 16", "", *times, along=times[1] / times[0])


def many(clip: Callable[..., Any], tan: Callable[..., Any], x: Any) -> Any:
    """Clip the tangents of however many inputs, several times over, and sum them."""
    for _ in range(CLIPPED):
        x = clip(tan(x), -1.0, 1.0)
    return x.sum()


def inputs() -> None:
    """Time one function of more and more inputs: unmodified, along a drawn direction, along a passed one."""
    for n in (10, 1_000, 100_000):
        at, v = jax.random.normal(jax.random.key(0), (2, n))
        in_jax = partial(many, jnp.clip, jnp.tan)
        gradients = [jax.grad(in_jax), jaxclamp.grad(in_jax), jaxclamp.grad(in_jax, direction=v)]
        times = medians([compiled(gradient, at)[0] for gradient in gradients])
        row("inputs of a function in JAX", n, *times, drawn=times[1] / times[0], passed=times[2] / times[0])
    for n in (10, 1_000, 100_000):
        x, direction = normal(2, n)
        in_torch = partial(many, torch.clamp, torch.tan)
        gradients = [torch.func.grad(in_torch), interop.grad(in_torch), interop.grad(in_torch, direction=direction)]
        times = medians([partial(gradient, x) for gradient in gradients])
        row("inputs of a function in torch", n, *times, drawn=times[1] / times[0], passed=times[2] / times[0])


BATCH = 16_384
LARGE_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
"""Sets what glibc takes for large; it would raise that by itself."""


def memory() -> None:
    """Measure in torch how far a forward and backward pass raise the peak of a fresh process, in MiB."""
    peaks = [printed_in_a_process(__file__, "peak", name, **LARGE_BLOCKS) for name in ("eager", "along", "grad")]
    ratios = {"along": peaks[1] / peaks[0], "grad": peaks[2] / peaks[0]}
    row(f"six Linear and clamp of 256, batch {BATCH}", "", *peaks, unit=1 / 2**20, **ratios)


def peak(name: str) -> None:
    """Print the bytes by which one contender raises the peak of this process."""
    model, x = Clamps(), normal(BATCH, 256)

    def loss(model: torch.nn.Module) -> torch.Tensor:
        return model(x).square().mean()

    call = {
        "eager": partial(eager, model, loss),
        "along": partial(along, model, loss),
        "grad": functional(interop.grad, model, loss),
    }[name]
    call()
    print(growth_of_peak(call))


PARTS = {"networks": networks, "models": models, "convolutional": convolutional, "inputs": inputs, "memory": memory}


def main(names: Sequence[str]) -> None:
    if names[:1] == ["peak"]:
        return peak(names[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)  # most tensors are too small to share
    print(f"jax {jax.__version__}, torch {torch.__version__}, torch on one thread; microseconds")
    for name in names or PARTS:
        print(f"{name}: {PARTS[name].__doc__}")
        PARTS[name]()
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
