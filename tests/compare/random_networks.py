"""Random small networks in Flax and in torch, as faithful ports and with one bug planted, and what is said of them.

A network is a list of blocks, built from one description in both libraries. Whether a bug shows on an input is asked of
torch alone, by running the port with it beside the port without, in float64. ``benchmarks/porting_study.py`` prints the
table of a hundred; ``test_verdicts_on_ports.py`` runs a few.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

from interop import ModelComparison, compare_models

Array = np.ndarray[Any, Any]
TorchFunction = Callable[[torch.Tensor], torch.Tensor]

# What a network is.


@dataclass(frozen=True)
class Block:
    """A layer, a function, or a chain of blocks whose input is added to what it returns."""

    kind: str
    name: str
    """In torch."""
    inputs: int = 0
    outputs: int = 0
    window: int = 1
    """Of a convolution or a pool; of an image that is flattened, the shorter side."""
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    """Before and behind, along both axes of an image."""
    function: str = ""
    is_module: bool = False
    """Whether a function of Flax is a module in torch."""
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Network:
    blocks: tuple[Block, ...]
    shape: tuple[int, ...]
    """Of one sample, in torch."""
    trains: bool
    """Whether batch norms take the statistics of the batch."""
    has_names: bool
    """Whether layers in Flax have the names that they have in torch."""
    is_first: bool
    """Whether it is compared with its port, or the port with it."""


class Bug(NamedTuple):
    kind: str
    site: str
    """The path of the block that has it."""


def sites(blocks: Sequence[Block], path: str = "") -> Iterator[tuple[str, Block]]:
    """All blocks by path in the order in which they end, those of a chain before it."""
    for block in blocks:
        yield from sites(block.blocks, f"{path}{block.name}.")
        yield f"{path}{block.name}", block


EPS, WRONG_EPS = 1e-5, 1e-3

FUNCTIONS: Mapping[str, tuple[TorchFunction, Callable[[Any], Any]]] = {
    "relu": (torch.relu, nn.relu),
    "relu6": (functional.relu6, jax.nn.relu6),
    "leaky_relu": (functional.leaky_relu, nn.leaky_relu),
    "gelu": (functional.gelu, lambda x: nn.gelu(x, approximate=False)),
    "gelu by tanh": (lambda x: functional.gelu(x, approximate="tanh"), nn.gelu),
    "clip": (lambda x: x.clamp(-0.5, 1), lambda x: jnp.clip(x, -0.5, 1)),
    "tanh": (torch.tanh, jnp.tanh),
    "silu": (functional.silu, nn.silu),
    "elu": (functional.elu, nn.elu),
    "dead": (lambda x: torch.relu(x - 100), lambda x: nn.relu(x - 100)),
    "softmax": (lambda x: x.softmax(-1), nn.softmax),
}
"""In torch and in Flax."""

# The bugs.

BUGS: Mapping[str, Callable[[Block], bool]] = {
    "padding on the other side": lambda b: b.kind == "conv" and max(b.pads) > 0,
    "bias left out": lambda b: b.kind in ("conv", "dense"),
    "kernel transposed": lambda b: b.kind == "conv" and b.window > 1,
    "axes swapped before flattening": lambda b: b.kind == "flatten" and b.window > 1,
    "epsilon of a norm": lambda b: b.kind in ("batch norm", "layer norm"),
    "momentum of a norm": lambda b: b.kind == "batch norm",
    "batch norm in the other mode": lambda b: b.kind == "batch norm",
    "negative slope": lambda b: b.function == "leaky_relu",
    "relu for gelu": lambda b: b.function in ("gelu", "gelu by tanh"),
    "the other gelu": lambda b: b.function in ("gelu", "gelu by tanh"),
    "bound of a clamp": lambda b: b.function in ("relu6", "clip"),
    "activation left out": lambda b: b.function in ("relu", "tanh", "silu", "elu"),
    "average that counts padding": lambda b: b.kind == "average pool",
    "maximum for average": lambda b: b.kind == "average pool",
    "order of strides": lambda b: b.kind == "conv" and len(set(b.strides)) > 1,
    "residual left out": lambda b: b.kind == "chain",
    "residual without gradient": lambda b: b.kind == "chain",
    "softmax over another axis": lambda b: b.function == "softmax" or b.kind == "attention",
    "scale of attention": lambda b: b.kind == "attention",
    "dropout left on": lambda b: b.kind == "dropout",
}
"""By kind, which blocks can have it."""

_WRONG: Mapping[tuple[str, str], TorchFunction] = {
    ("negative slope", "leaky_relu"): lambda x: functional.leaky_relu(x, 0.2),
    ("relu for gelu", "gelu"): torch.relu,
    ("relu for gelu", "gelu by tanh"): torch.relu,
    ("the other gelu", "gelu"): FUNCTIONS["gelu by tanh"][0],
    ("the other gelu", "gelu by tanh"): FUNCTIONS["gelu"][0],
    ("bound of a clamp", "relu6"): lambda x: x.clamp(0, 4),
    ("bound of a clamp", "clip"): lambda x: x.clamp(-0.5, 0.8),
    ("softmax over another axis", "softmax"): lambda x: x.softmax(0),
    **{("activation left out", function): lambda x: x for function in ("relu", "tanh", "silu", "elu")},
}
"""By bug and function, what the port has in its place."""

# In torch.


class Conv(torch.nn.Conv2d):
    def __init__(self, block: Block, bug: str) -> None:
        strides = block.strides[::-1] if bug == "order of strides" else block.strides
        super().__init__(block.inputs, block.outputs, block.window, strides)
        before, behind = block.pads
        if bug == "padding on the other side":
            before, behind = (behind, before) if before != behind else (before + 1, behind - 1)
        self.pads, self.bug = (before, behind) * 2, bug

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self.weight.mT if self.bug == "kernel transposed" else self.weight
        bias = None if self.bug == "bias left out" else self.bias
        return functional.conv2d(functional.pad(x, self.pads), kernel, bias, self.stride)


class Dense(torch.nn.Linear):
    def __init__(self, inputs: int, outputs: int, bug: str = "") -> None:
        super().__init__(inputs, outputs)
        self.bug = bug

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.mT if self.bug == "bias left out" else super().forward(x)


class PortedAttention(torch.nn.Module):
    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.q, self.k, self.v, self.o = (Dense(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.q(x) @ self.k(x).mT / (1.0 if self.bug == "scale of attention" else math.sqrt(x.shape[-1]))
        weights = scores.softmax(1 if self.bug == "softmax over another axis" else 2)
        return self.o(weights @ self.v(x))


class Function(torch.nn.Module):
    def __init__(self, function: TorchFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class PortedChain(torch.nn.Module):
    def __init__(self, blocks: Sequence[Block], bug: Bug | None, path: str = "") -> None:
        super().__init__()
        self.bug = bug.kind if bug and f"{bug.site}." == path else ""
        self.is_residual = bool(path)
        self.steps: list[Any] = []
        for block in blocks:
            self.steps.append(_in_torch(block, bug, f"{path}{block.name}"))
            if isinstance(self.steps[-1], torch.nn.Module):
                self.add_module(block.name, self.steps[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for step in self.steps:
            h = step(h)
        if not self.is_residual or self.bug == "residual left out":
            return h
        return h + (x.detach() if self.bug == "residual without gradient" else x)


def _in_torch(block: Block, bug: Bug | None, site: str) -> Any:
    its = bug.kind if bug and bug.site == site else ""
    eps = WRONG_EPS if its == "epsilon of a norm" else EPS
    window, stride, padding = block.window, block.strides, block.pads[0]
    match block.kind:
        case "chain":
            return PortedChain(block.blocks, bug, f"{site}.")
        case "conv":
            return Conv(block, its)
        case "dense":
            return Dense(block.inputs, block.outputs, its)
        case "attention":
            return PortedAttention(block.inputs, its)
        case "batch norm":
            return torch.nn.BatchNorm2d(block.inputs, eps, momentum=0.3 if its == "momentum of a norm" else 0.1)
        case "layer norm":
            return torch.nn.LayerNorm(block.inputs, eps)
        case "dropout":
            return torch.nn.Dropout(0.3)
        case "mean of image":
            return lambda x: x.mean((2, 3))
        case "mean of tokens":
            return lambda x: x.mean(1)
        case "flatten":
            turned = its == "axes swapped before flattening"
            as_in_flax = (0, 3, 2, 1) if turned else (0, 2, 3, 1)
            as_here = (0, 1, 3, 2) if turned else (0, 1, 2, 3)
            return lambda x: x.permute(as_in_flax if block.function == "as in Flax" else as_here).flatten(1)
        case "average pool" if its != "maximum for average":
            counts = its == "average that counts padding"
            return lambda x: functional.avg_pool2d(x, window, stride, padding, count_include_pad=counts)
        case "average pool" | "max pool":
            pool = torch.nn.MaxPool2d(window, stride, padding)
            return pool if block.is_module else lambda x: functional.max_pool2d(x, window, stride, padding)
        case _:
            function = _WRONG.get((its, block.function), FUNCTIONS[block.function][0])
            return Function(function) if block.is_module else function


def ported(network: Network, bug: Bug | None, values: Mapping[str, Array]) -> torch.nn.Module:
    port = PortedChain(network.blocks, bug).eval()
    for path, module in port.named_modules():
        its = bug.kind if bug and bug.site == path else ""
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train(network.trains != (its == "batch norm in the other mode"))
        if its == "dropout left on":
            module.train()
    port.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in values.items()}, strict=False)
    return port


# In Flax.


class Attention(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = (nn.Dense(self.width, name=name)(x) for name in ("q", "k", "v"))
        weights = nn.softmax(q @ k.swapaxes(1, 2) / math.sqrt(self.width))
        return nn.Dense(self.width, name="o")(weights @ v)


class Chain(nn.Module):
    blocks: tuple[Block, ...]
    trains: bool
    has_names: bool
    is_residual: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = x
        for block in self.blocks:
            h = self._step(block, block.name if self.has_names else None, h)
        return x + h if self.is_residual else h

    def _step(self, block: Block, name: str | None, x: jax.Array) -> Any:
        window, pads = (block.window,) * 2, (block.pads,) * 2
        match block.kind:
            case "chain":
                return Chain(block.blocks, self.trains, self.has_names, is_residual=True, name=name)(x)
            case "conv":
                return nn.Conv(block.outputs, window, block.strides, pads, name=name)(x)
            case "dense":
                return nn.Dense(block.outputs, name=name)(x)
            case "attention":
                return Attention(block.inputs, name=name)(x)
            case "batch norm":
                return nn.BatchNorm(not self.trains, momentum=0.9, epsilon=EPS, name=name)(x)
            case "layer norm":
                return nn.LayerNorm(epsilon=EPS, name=name)(x)
            case "dropout":
                return nn.Dropout(0.3, deterministic=True, name=name)(x)
            case "mean of image":
                return x.mean((1, 2))
            case "mean of tokens":
                return x.mean(1)
            case "flatten":
                return x.reshape(x.shape[0], -1)
            case "average pool":
                return nn.avg_pool(x, window, block.strides, pads, count_include_pad=False)
            case "max pool":
                return nn.max_pool(x, window, block.strides, pads)
            case _:
                return FUNCTIONS[block.function][1](x)


# Drawing.


class _Drawing:
    """Blocks, with names that say their place."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0

    def block(self, kind: str, **settings: Any) -> Block:
        self.count += 1
        return Block(kind, f"{kind.split()[0]}{self.count}", **settings)

    def function(self) -> Block:
        usual = [name for name in FUNCTIONS if name not in ("dead", "softmax")]
        name = "dead" if self.rng.random() < 0.06 else self.rng.choice(usual)
        return self.block("function", function=name, is_module=self.rng.random() < 0.5)

    def dense(self, inputs: int, outputs: int) -> Block:
        return self.block("dense", inputs=inputs, outputs=outputs)

    def sometimes(self, probability: float, kind: str, **settings: Any) -> list[Block]:
        return [self.block(kind, **settings)] if self.rng.random() < probability else []

    def vector(self, shape: tuple[int, ...]) -> list[Block]:
        """Of dense layers, to the end."""
        (width,) = shape
        blocks = [self.dense(width, 6), self.function()]
        blocks += self.sometimes(0.3, "layer norm", inputs=6)
        if self.rng.random() < 0.3:
            inner = (self.dense(6, 6), self.function(), self.dense(6, 6))
            blocks += [self.block("chain", blocks=inner), self.function()]
        blocks += [*self.sometimes(0.4, "dropout"), self.dense(6, 4)]
        return blocks + self.sometimes(0.25, "function", function="softmax", is_module=self.rng.random() < 0.5)

    def tokens(self, shape: tuple[int, ...]) -> list[Block]:
        _, width = shape
        attention = (self.block("layer norm", inputs=width), self.block("attention", inputs=width))
        dense = (self.block("layer norm", inputs=width), self.dense(width, width), self.function())
        chains = [self.block("chain", blocks=attention), self.block("chain", blocks=dense)]
        return [self.dense(width, width), *chains, self.block("mean of tokens"), *self.vector((width,))]

    def image(self, shape: tuple[int, ...]) -> list[Block]:
        channels, *sizes = shape
        blocks: list[Block] = []

        def through(block: Block) -> None:
            padded = [n + sum(block.pads) - block.window for n in sizes]
            sizes[:] = [n // stride + 1 for n, stride in zip(padded, block.strides, strict=True)]
            blocks.append(block)

        for _ in range(2):
            width, window = self.rng.choice((4, 5)), self.rng.choice((1, 3, 3, 3))
            strides = self.rng.choice(((1, 1), (1, 1), (2, 2), (2, 1)))
            pads = (0, 0) if window == 1 else (0, 1) if strides == (2, 2) else (1, 1)
            settings = {"window": window, "strides": strides, "pads": pads}
            through(self.block("conv", inputs=channels, outputs=width, **settings))
            blocks += self.sometimes(0.6, "batch norm", inputs=width)
            blocks.append(self.function())
            if self.rng.random() < 0.5 and min(sizes) > 1:
                kind, (window, pads) = self.rng.choice(("max", "average")), self.rng.choice(((2, (0, 0)), (3, (1, 1))))
                is_module = self.rng.random() < 0.5
                pads, window = ((1, 1), 3) if kind == "average" else (pads, window)
                settings = {"window": window, "strides": (2, 2), "pads": pads}
                through(self.block(f"{kind} pool", is_module=is_module and kind == "max", **settings))
            channels = width
        if self.rng.random() < 0.4:
            inner = [self.block("conv", inputs=width, outputs=width, window=3, pads=(1, 1)) for _ in range(2)]
            blocks.append(self.block("chain", blocks=(inner[0], self.function(), inner[1])))
        if self.rng.random() < 0.3:
            return [*blocks, self.block("mean of image"), *self.vector((width,))]
        blocks.append(self.block("flatten", window=min(sizes), function=self.rng.choice(("", "", "as in Flax"))))
        return [*blocks, *self.vector((math.prod(sizes) * width,))]


def drawn(seed: int) -> tuple[Network, Bug]:
    """A network and a bug for it, the kinds of bugs one after the other."""
    kind = list(BUGS)[seed % len(BUGS)]
    for attempt in range(1000):
        rng = random.Random(f"{seed} {attempt}")
        drawing = _Drawing(rng)
        draw, shape = rng.choice(
            ((drawing.image, (3, 8, 8)), (drawing.image, (3, 8, 8)), (drawing.tokens, (5, 6)), (drawing.vector, (6,)))
        )
        blocks = tuple(draw(shape))
        is_of_mode = {"momentum of a norm": True, "batch norm in the other mode": False}
        trains = is_of_mode.get(kind, rng.random() < 0.2)
        network = Network(blocks, shape, trains, rng.random() < 0.5, rng.random() < 0.5)
        able = [site for site, block in sites(blocks) if BUGS[kind](block)]
        if able:
            return network, Bug(kind, rng.choice(able))
    raise AssertionError(kind)


BATCH = 3

INPUTS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "random": lambda rng, shape: rng.normal(size=shape),
    "ones": lambda rng, shape: np.ones(shape),
    "zeros": lambda rng, shape: np.zeros(shape),
    "integers": lambda rng, shape: rng.integers(-2, 3, shape),
    "half dead": lambda rng, shape: rng.normal(size=shape) * (np.arange(shape[-1]) < shape[-1] // 2),
}
"""Of the half dead ones, the second half of the last axis is 0."""


def inputs_of(network: Network, kind: str, seed: int) -> Array:
    return INPUTS[kind](np.random.default_rng(seed), (BATCH, *network.shape)).astype(np.float32)


def values_of(network: Network, kind: str, seed: int) -> dict[str, Array]:
    """Parameters and statistics; beside integers they are multiples of 1/4, so that much ties."""
    rng = np.random.default_rng(seed)
    values = {}
    for name, tensor in PortedChain(network.blocks, None).state_dict().items():
        if not tensor.is_floating_point():
            continue
        role, shape = name.rpartition(".")[2], tuple(tensor.shape)
        is_norm = role == "weight" and len(shape) == 1
        array = rng.normal(size=shape) * (0.3 if len(shape) == 1 else 1.5 / math.sqrt(math.prod(shape[1:])))
        array = np.abs(array) + 0.5 if role == "running_var" else array + is_norm
        if is_norm and rng.random() < 0.1:
            array *= 0  # as residual networks begin
        values[name] = (np.round(array * 4) / 4 if kind == "integers" else array).astype(np.float32)
    return values


# What is said.


@dataclass(frozen=True)
class Outcome:
    seed: int
    inputs: str
    bug: Bug | None
    shows: bool
    """Whether the bug does, on this input."""
    finding: str
    """Of the cause; or that the models agree, or what was raised."""
    place: tuple[str, ...]
    """The blocks that it is in, by what is said."""

    @property
    def is_found(self) -> bool:
        wanted = "random" if self.bug and self.bug.kind == "dropout left on" else "port"
        return self.finding == wanted

    @property
    def is_right_place(self) -> bool:
        return self.is_found and self.bug is not None and self.bug.site in self.place

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.inputs}, {self.bug}: {self.finding} at {', '.join(self.place) or 'none'}"


def outcome(seed: int, inputs: str, *, is_faithful: bool) -> Outcome:
    """What is said of a port on inputs of a kind."""
    network, bug = drawn(seed)
    x, values = inputs_of(network, inputs, seed), values_of(network, inputs, seed)
    planted = None if is_faithful else bug
    shows = planted is not None and _shows(ported(network, None, values), ported(network, planted, values), x)
    comparison = compared(network, planted, values, x)
    cause = comparison.cause
    finding = "agrees" if cause is None else cause.finding
    return Outcome(seed, inputs, planted, shows, finding, tuple(_named(network, comparison)))


def compared(network: Network, bug: Bug | None, values: Mapping[str, Array], x: Array) -> ModelComparison:
    port, model = ported(network, bug, values), Chain(network.blocks, network.trains, network.has_names)
    if network.is_first:
        return compare_models(port, model, x)
    return compare_models(model, port, np.moveaxis(x, 1, -1) if x.ndim == 4 else x)


def _named(network: Network, comparison: ModelComparison) -> Iterator[str]:
    """The blocks in the place that the verdict names, if there is no layer in it but the one that it names."""
    cause = comparison.cause
    if cause is None:
        return
    order = [site for site, _ in sites(network.blocks)]
    in_torch = "first" if network.is_first else "second"
    layer, after, before = (
        str(getattr(pair, in_torch).path) if pair is not None else ""
        for pair in (cause.layer, cause.after, cause.before)
    )
    inside = [site for site in order if site.startswith(f"{layer}." if layer else "")]
    if not cause.is_own_code or not inside:  # attention has layers, which are no blocks
        yield layer
        return
    begin = inside.index(after) + 1 if after else 0
    end = _begin(inside, before) if before else len(inside)
    yield from inside[begin:end]
    if layer and not (after and before):  # where a chain begins or ends, its input is added
        yield layer


def _begin(order: Sequence[str], path: str) -> int:
    """Where the first of a chain and the blocks in it is."""
    return next(i for i, site in enumerate(order) if site == path or site.startswith(f"{path}."))


def _shows(right: torch.nn.Module, wrong: torch.nn.Module, x: Array) -> bool:
    """Whether two ports differ in float64, here and at inputs beside these, where no numbers are equal by chance."""
    noise = 1e-6 * np.random.default_rng(0).uniform(-1, 1, x.shape)
    return all(_differ(_answers(right, given), _answers(wrong, given)) for given in (x, x * (1 + noise) + noise))


def _answers(port: torch.nn.Module, x: Array) -> list[Array]:
    """The result, the gradients, and the statistics after the call."""
    tensors = {name: tensor.detach().clone().double() for name, tensor in port.state_dict().items()}
    trained = [name for name, _ in port.named_parameters()]
    given = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    for name in trained:
        tensors[name].requires_grad_()
    with torch.random.fork_rng(devices=[]):
        result = torch.func.functional_call(port, tensors, (given,))
    weights = torch.from_numpy(np.random.default_rng(1).normal(size=tuple(result.shape)))
    leaves = [given, *(tensors[name] for name in trained)]
    gradients = torch.autograd.grad((weights * result).sum(), leaves, allow_unused=True, materialize_grads=True)
    statistics = [tensor for name, tensor in tensors.items() if name not in trained]
    return [tensor.detach().numpy() for tensor in (result, *gradients, *statistics)]


def _differ(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Whether any array differs by more than rounding of the largest number in all."""
    largest = max(float(np.abs(array).max(initial=0.0)) for array in (*a, *b))
    return any(x.shape != y.shape or bool((np.abs(x - y) > 1e-10 * largest).any()) for x, y in zip(a, b, strict=True))
