"""Modules of torch.nn."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from interop._bridge.arrays import lend, tensor_over
from interop._torch.private_api import flattened, unflattened, version_of
from interop._transforms.min_norm import min_norm as under_min_norm
from interop._transforms.ties import ties
from interop.comparison.models.layers import Answer, Key, Layer, Point, Tape
from interop.comparison.models.model import Call, Model, Orders, Run, cast, ordered_total
from interop.comparison.models.parameters import Layout, Parameter
from interop.frameworks.base import Array
from interop.frameworks.reseed import redrawn_in_torch
from jaxclamp import TieReport

_FUSED = ("in_proj_weight", "in_proj_bias")
_PARTS = ("query", "key", "value")


class Torch(Model):
    channels_last = False
    version = f"torch {torch.__version__.partition('+')[0]}"

    def __init__(self, model: torch.nn.Module, call: Call | None, inputs: Sequence[Any]) -> None:
        super().__init__(model, call, inputs)
        self._names = {module: name for name, module in model.named_modules()}

    @functools.cached_property
    def parameters(self) -> Sequence[Parameter]:
        trained = {name for name, _ in self.model.named_parameters()}
        arrays = {name: _to_host(tensor) for name, tensor in self._tensors().items()}
        return [
            Parameter(name, Layout.same(array.shape), array.dtype, whole in trained, np.array(array))
            for whole, array in arrays.items()
            for name, array in _parts(whole, array)
        ]

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, and the buffers that a state_dict has, but for counts."""
        saved = self.model.state_dict().keys()
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in saved}
        found = {**dict(self.model.named_parameters()), **buffers}
        return {name: tensor.detach() for name, tensor in found.items() if tensor.is_floating_point()}

    @functools.cached_property
    def layers(self) -> Sequence[Layer]:
        crossings = _Crossings({})
        with torch.no_grad():
            self._run(crossings, {p.name: tensor_over(np.array(p.value)) for p in self.parameters}, self.inputs)
        return crossings.filled()

    def _run(
        self, tape: Tape, values: Mapping[str, torch.Tensor], inputs: Sequence[Any], redrawn: bool = False
    ) -> tuple[Any, Any]:
        """The result, and the parameters and buffers after it."""
        changed = self._changed(values)
        given = [tensor_over(np.array(leaf)) if isinstance(leaf, np.ndarray) else leaf for leaf in inputs]
        called = _Called(self.model, self.call)
        handles = [module.register_forward_pre_hook(self._enter(tape), with_kwargs=True) for module in self._names]
        handles += [module.register_forward_hook(self._leave(tape)) for module in self._names]
        given = tape.enter("", self.name, self.name, given)
        try:
            with torch.random.fork_rng(devices=[]):
                call = redrawn_in_torch(torch.func.functional_call) if redrawn else torch.func.functional_call
                result = call(called, changed, tuple(given))
        finally:
            for handle in handles:
                handle.remove()
        return tape.leave(result), {name.removeprefix("model."): tensor for name, tensor in changed.items()}

    def _changed(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the call has in the place of the parameters and buffers of the model, which stay as they are."""
        whole = {name: _joined(name, values) for name in self._tensors()}
        others = {name: buffer.clone() for name, buffer in self.model.named_buffers() if name not in whole}
        return {f"model.{name}": tensor for name, tensor in (whole | others).items()}

    def _enter(self, tape: Tape) -> Any:
        def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            path = self._names[module]
            if path == "":  # the model itself, which is on the tape with the inputs that it was given
                return None
            settings = repr(module) if not list(module.children()) else type(module).__name__
            return tape.enter(path, type(module).__name__, settings, (args, kwargs))

        return enter

    def _leave(self, tape: Tape) -> Any:
        def leave(module: torch.nn.Module, args: Any, result: Any) -> Any:
            return tape.leave(result) if self._names[module] else None

        return leave

    @property
    def draws(self) -> bool:
        return True  # a module does not say what it draws

    def answer(self, values: Mapping[str, Array], orders: Orders | None, run: Run) -> Answer:
        crossings = _Crossings(run.nudges)
        trained = [p.name for p in self.parameters if p.trained]
        tensors = {name: tensor_over(np.array(cast(value, run.dtype))) for name, value in values.items()}
        for name in trained:
            tensors[name].requires_grad_()
        inputs = [tensor_over(np.array(g)) if isinstance(g, np.ndarray) else g for g in self._inputs_in(run.dtype)]
        floats = {i: g for i, g in enumerate(t for t in inputs if isinstance(t, torch.Tensor)) if g.is_floating_point()}
        for tensor in floats.values():
            tensor.requires_grad_()
        call = under_min_norm()(self._run) if run.min_norm else self._run
        with torch.enable_grad():
            clones = [g.clone() if isinstance(g, torch.Tensor) else g for g in inputs]
            result, state = call(crossings, tensors, clones, run.redrawn)
            results = [
                leaf
                for leaf in _flattened(result)[0]
                if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
            ]
            total = torch.zeros((), requires_grad=True) + ordered_total(results, orders)
        chosen = [*floats.values(), *(tensors[name] for name in trained)]
        found = torch.autograd.grad(total, chosen, allow_unused=True, materialize_grads=True)
        gradients = [_to_host(g).copy() for g in found]
        untrained = [p.name for p in self.parameters if not p.trained]
        return Answer(
            crossings.filled(),
            [_to_host(leaf) for leaf in results],
            dict(zip(floats, gradients, strict=False)),
            dict(zip(trained, gradients[len(floats) :], strict=True)),
            {name: _to_host(state[name]) for name in untrained},
        )

    def ties(self, values: Mapping[str, Array]) -> TieReport:
        tensors = {name: tensor_over(np.array(value)) for name, value in values.items()}
        given = [tensor_over(np.array(leaf)) if isinstance(leaf, np.ndarray) else leaf for leaf in self.inputs]
        with torch.no_grad(), torch.random.fork_rng(devices=[]), ties() as counted:
            torch.func.functional_call(_Called(self.model, self.call), self._changed(tensors), tuple(given))
        return counted.report


class _Called(torch.nn.Module):
    """The model, called as the caller says."""

    def __init__(self, model: torch.nn.Module, call: Call) -> None:
        super().__init__()
        self.model = model
        self._call = call
        self.training = model.training

    def forward(self, *inputs: Any) -> Any:
        return self._call(self.model, *inputs)


class _Crossings(Tape):
    """The arrays that cross the boundaries of one run, and their gradients as they come back."""

    def __init__(self, nudges: Mapping[Key, Array]) -> None:
        super().__init__(self._mark, _flattened, _unflattened)
        self._nudges = nudges
        self._values: dict[Key, Any] = {}
        self._gradients: dict[Key, torch.Tensor] = {}
        self._seen = WeakIdKeyDictionary()
        """By tensor that crossed a boundary, its value then: the model may overwrite it."""
        self._taken: dict[int, list[tuple[torch.Tensor, torch.Tensor, int]]] = defaultdict(list)
        """By running layer, the tensors that it was given, what it has in their place, and the versions of these."""
        self._overwritten = WeakIdKeyDictionary()
        """By tensor that a layer had in the place of another and has overwritten, that other."""

    def leave(self, result: Any) -> Any:
        """As of any tape; what the module has overwritten is overwritten for those around it too."""
        for given, passed, version in self._taken.pop(self.running, []):
            if version_of(passed) != version:
                given.copy_(passed)
                self._overwritten[passed] = given
        return super().leave(result)

    def _mark(self, key: Key, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or (leaf.dtype == torch.bool and key.side == "inputs"):
            return None
        if key in self._nudges:
            leaf = leaf + torch.from_numpy(self._nudges[key]).to(leaf.dtype)
        value = self._seen.get(leaf)
        if value is None or not torch.equal(value, leaf):
            value = leaf.detach().clone()  # the tensor itself may be overwritten later
        self._values[key] = value
        if key.side == "outputs" and leaf in self._overwritten:
            passed: torch.Tensor = self._overwritten[leaf]  # the caller has the same tensor by two names
        else:
            passed = leaf.clone()  # of its own, so that the gradient is that of what crosses here
        if key.side == "inputs":
            self._taken[key.layer].append((leaf, passed, version_of(passed)))
        if passed.requires_grad and passed.is_floating_point():
            passed.register_hook(lambda gradient: self._gradients.__setitem__(key, gradient))
        self._seen[passed] = value
        return passed

    def filled(self) -> list[Layer]:
        for key in sorted(self._values):
            value = self._values[key]
            gradient = self._gradients.get(key)
            array = _to_host(value)
            if gradient is not None:
                point = Point(array, _to_host(gradient))
            else:
                point = Point(array, np.zeros_like(array) if value.is_floating_point() else None)
            getattr(self.layers[key.layer], key.side).append(point)
        return self.layers


def _flattened(tree: Any) -> tuple[list[Any], tuple[Any, list[int]]]:
    """The leaves in the order in which JAX has them, and what puts them back."""
    leaves, structure = flattened(tree)
    order, _ = flattened(_sorted(unflattened(structure, range(len(leaves)))))
    return [leaves[i] for i in order], (structure, order)


def _unflattened(structure: tuple[Any, list[int]], leaves: Sequence[Any]) -> Any:
    return unflattened(structure[0], [leaves[i] for i in np.argsort(structure[1])])


def _sorted(tree: Any) -> Any:
    """The tree with its dicts in the order of their keys."""
    if type(tree) is dict:
        try:
            keys = sorted(tree)
        except TypeError:  # JAX has no such trees
            keys = list(tree)
        return {key: _sorted(tree[key]) for key in keys}
    if type(tree) in (list, tuple):
        return type(tree)(map(_sorted, tree))
    return type(tree)(*map(_sorted, tree)) if hasattr(tree, "_fields") else tree


def _to_host(tensor: torch.Tensor) -> Array:
    array: Array = np.asarray(lend(tensor.detach().resolve_conj().resolve_neg()))
    return array


def _parts(name: str, array: Array) -> list[tuple[str, Array]]:
    """The parameters in one of torch: of attention, the three projections that are one array."""
    owner, _, last = name.rpartition(".")
    if last not in _FUSED:
        return [(name, array)]
    role = last.removeprefix("in_proj_")
    return [
        (f"{owner}.{part}.{role}".lstrip("."), third) for part, third in zip(_PARTS, np.split(array, 3), strict=True)
    ]


def _joined(name: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    owner, _, last = name.rpartition(".")
    if last not in _FUSED:
        return values[name]
    role = last.removeprefix("in_proj_")
    return torch.cat([values[f"{owner}.{part}.{role}".lstrip(".")] for part in _PARTS])


MODEL = Torch
