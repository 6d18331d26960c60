"""Which layer is to blame, worked by hand: pairs of layers of which only the judgements are known."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import pytest

from interop.comparison.models.cause import Cause, LayerPair, cause_of
from interop.comparison.models.judgements import Judged, Judgement
from interop.comparison.models.layers import Layer, What


class Called(NamedTuple):
    """A layer of both models, what of it differs, and the layers that it calls."""

    name: str
    differing: Mapping[str, Judgement | None]
    """Maps ``inputs``, ``outputs``, ``state`` and so on to judgements, None if there are none; ``d inputs`` and so on
    are gradients."""
    calls: tuple["Called", ...] = ()


VALUES: tuple[What, ...] = ("inputs", "outputs", "parameters", "state")
GRADIENTS: tuple[What, ...] = ("inputs", "outputs", "parameters")


def judged(called: Called) -> Iterable[Judged]:
    for is_gradient, parts in ((False, VALUES), (True, GRADIENTS)):
        for what in parts:
            finding = called.differing.get(f"d {what}" if is_gradient else what, "agrees")
            if finding is not None:
                yield Judged(what, "0", is_gradient, 0.0, 0.0, finding)


def pairs_of(called: Called, parent: int | None = None, begin: int = 0) -> list[LayerPair]:
    layer = Layer(called.name, begin, called.name, called.name, parent)
    pairs = [LayerPair(layer, layer, (begin, begin), parent, tuple(judged(called)), 0.0)]
    for inner in called.calls:
        pairs += pairs_of(inner, begin, begin + len(pairs))
    layer.end = begin + len(pairs)
    return pairs


def blamed(model: Called) -> tuple[str, str | None, str | None] | None:
    """The layer to blame, and the ones before and behind the code of its own."""
    pairs = pairs_of(model)
    layers = [pair.first for pair in pairs]
    cause = cause_of(pairs, (layers, layers))
    return None if cause is None else names(cause)


def names(cause: Cause) -> tuple[str, str | None, str | None]:
    return cause.layer.name, cause.after and cause.after.name, cause.before and cause.before.name


DIFFERS: Mapping[str, Judgement] = {"inputs": "port", "outputs": "port"}


def test_they_agree() -> None:
    assert blamed(Called("model", {}, (Called("a", {}), Called("b", {"outputs": "rounding"})))) is None


@pytest.mark.parametrize(
    ("calls", "cause"),
    [
        ((Called("a", {}), Called("b", {"outputs": "port"}), Called("c", DIFFERS)), ("b", None, None)),
        ((Called("a", {}), Called("b", DIFFERS)), ("model", "a", "b")),
        ((Called("a", {}),), ("model", "a", None)),
        # A layer is to blame, though the next one, of another branch, gets equal inputs.
        ((Called("a", {"outputs": "port"}), Called("b", {})), ("a", None, None)),
        # So is the code of a layer with others in it.
        ((Called("a", {"outputs": "port"}, (Called("b", {}),)), Called("c", {})), ("a", "b", None)),
        # So is the code behind all in a layer: the inputs of the model, which ends later, are none that agree again.
        ((Called("a", {"outputs": "port"}, (Called("b", {}),)), Called("c", DIFFERS)), ("a", "b", None)),
        # So it is before a layer of whose inputs none are compared.
        (
            (Called("a", {"outputs": "port"}, (Called("b", {}),)), Called("c", {"inputs": None, "outputs": "port"})),
            ("a", "b", None),
        ),
        # So is the code of a layer before one that gets other inputs.
        ((Called("a", {"outputs": "port"}, (Called("b", {}), Called("c", DIFFERS))), Called("d", {})), ("a", "b", "c")),
        # The first that gets another input counts, whatever the next ones get.
        ((Called("a", {}), Called("b", DIFFERS), Called("c", {}), Called("d", DIFFERS)), ("model", "a", "b")),
        # What b returns is not compared, as where the other model ends it elsewhere: what lies behind it is to blame.
        ((Called("a", {}), Called("b", {"outputs": None}), Called("c", DIFFERS), Called("d", {})), ("model", "b", "c")),
    ],
)
def test_values(calls: tuple[Called, ...], cause: tuple[str, str | None, str | None]) -> None:
    assert blamed(Called("model", {"outputs": "port"}, calls)) == cause


def test_what_differs_there() -> None:
    """Before a layer it is what enters that; behind the last layer, what the model returns."""
    for calls, what in ((Called("a", {}), Called("b", DIFFERS)), "inputs"), ((Called("a", {}),), "outputs"):
        pairs = pairs_of(Called("model", {"outputs": "port"}, calls))
        layers = [pair.first for pair in pairs]
        cause = cause_of(pairs, (layers, layers))
        assert cause is not None
        assert [part.what for part in cause.parts] == [what]


def test_a_difference_that_is_lost() -> None:
    """The model multiplies the outputs of b by 0: the code before b is to blame all the same."""
    assert blamed(Called("model", {}, (Called("a", {}), Called("b", DIFFERS)))) == ("model", "a", "b")


def test_no_layer_whose_inputs_agree() -> None:
    """The inputs of the model differ already, as where it is called in another way: the first results are named."""
    assert blamed(Called("model", DIFFERS, (Called("a", DIFFERS), Called("b", DIFFERS)))) == ("a", None, None)


def test_other_parameters_come_first() -> None:
    first = Called("a", {"outputs": "port"})
    assert blamed(Called("model", {"outputs": "port"}, (first, Called("b", {"parameters": "port"})))) == (
        "b",
        None,
        None,
    )


GRADIENT: Mapping[str, Judgement] = {"d inputs": "port", "d outputs": "port"}


def test_gradients_are_followed_from_the_end() -> None:
    differing = Called("b", {"d inputs": "port"})
    assert blamed(Called("model", {"d inputs": "port"}, (Called("a", GRADIENT), differing, Called("c", {})))) == (
        "b",
        None,
        None,
    )
    calls = (Called("a", GRADIENT), Called("b", GRADIENT), Called("c", {}))
    assert blamed(Called("model", {"d inputs": "port"}, calls)) == ("model", "b", "c")
    calls = (Called("a", {"d inputs": "port"}, (Called("b", {}),)), Called("c", {}))
    assert blamed(Called("model", {"d inputs": "port"}, calls)) == ("a", None, "b")
    # Nor are gradients compared at an end that is drawn elsewhere.
    calls = (Called("a", {}), Called("b", {"d outputs": None, "d inputs": "port"}), Called("c", {}))
    assert blamed(Called("model", {"d inputs": "port"}, calls)) == ("b", None, None)
    learning = Called("model", {}, (Called("a", {}), Called("b", {"d parameters": "port"})))
    assert blamed(learning) == ("b", None, None)


def test_ties_do_not_hide_a_bug() -> None:
    """Neither of the backward pass before them, nor of the statistics."""
    tied: Mapping[str, Judgement] = {"d inputs": "ties"}
    calls = (Called("a", {"d inputs": "port", "d outputs": "ties"}), Called("b", tied))
    assert blamed(Called("model", {"d inputs": "port"}, calls)) == ("a", None, None)
    norm = Called("norm", {"state": "port", "d outputs": "ties"})
    assert blamed(Called("model", {}, (norm, Called("b", tied)))) == ("norm", None, None)
    assert blamed(Called("model", {}, (Called("norm", {"d outputs": "ties"}), Called("b", tied)))) == ("b", None, None)


def test_statistics_do_not_hide_a_bug() -> None:
    norm = Called("norm", {"state": "port"})
    assert blamed(Called("model", {"outputs": "port"}, (norm, Called("b", {"outputs": "port"})))) == ("b", None, None)
    assert blamed(Called("model", {}, (norm, Called("b", {"d inputs": "port"})))) == ("b", None, None)
    assert blamed(Called("model", {}, (norm, Called("b", {})))) == ("norm", None, None)


def test_the_gravest_finding_is_that_of_the_cause() -> None:
    """Ties change gradients alone: a value that differs is a bug, or random."""
    (pair,) = pairs_of(Called("model", {"outputs": "random", "d inputs": "ties"}))
    parts = {j.what + str(j.is_gradient): j for j in pair.judged}
    value, gradient = parts["outputsFalse"], parts["inputsTrue"]
    assert Cause(pair, (value,)).finding == "random"
    assert Cause(pair, (gradient,)).finding == "ties"
    assert Cause(pair, (gradient, replace(gradient, finding="near ties"))).finding == "ties"
    assert Cause(pair, (gradient, replace(gradient, finding="port"))).finding == "port"
    assert Cause(pair, (replace(value, finding="ties"),)).finding == "port"
