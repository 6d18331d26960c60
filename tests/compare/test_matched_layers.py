"""Which layer of one model is which of the other, worked by hand: of calls only paths and classes are known."""

from typing import NamedTuple

import pytest

from interop.comparison.models.layers import Layer
from interop.comparison.models.matched_layers import matched_layers


class Called(NamedTuple):
    """A call of a module: its path, its class, and what it calls."""

    path: str
    kind: str = "Dense"
    calls: tuple["Called", ...] = ()


def layers_of(called: Called, parent: int | None = None, begin: int = 0) -> list[Layer]:
    layer = Layer(called.path, begin, called.kind, called.kind, parent)
    layers = [layer]
    for inner in called.calls:
        layers += layers_of(inner, begin, begin + len(layers))
    layer.end = begin + len(layers)
    return layers


def matched(first: tuple[Called, ...], second: tuple[Called, ...], *owners: tuple[str, str]) -> list[tuple[str, str]]:
    """The paths of the layers that are the same, but for the models themselves."""
    layers = [layers_of(Called("", "Model", calls)) for calls in (first, second)]
    models, *others = matched_layers(layers[0], layers[1], owners)
    assert models == (0, 0)
    return [(layers[0][i].path, layers[1][j].path) for i, j in others]


TWO = Called("a"), Called("b")
OWNERS = ("a", "x"), ("b", "y")


def test_parameters_tell() -> None:
    assert matched((Called("a"), Called("act", "GELU"), Called("b")), (Called("x"), Called("y")), *OWNERS) == [
        ("a", "x"),
        ("b", "y"),
    ]
    # In another order, too.
    assert matched(TWO, (Called("y"), Called("x")), *OWNERS) == [("a", "x"), ("b", "y")]


def test_a_module_that_is_never_called() -> None:
    """What is around it uses its parameters."""
    assert matched(TWO, (Called("x"), Called("y")), ("a.norm", "x"), ("b", "y.inner.norm")) == [("a", "x"), ("b", "y")]


def test_a_module_that_is_called_several_times() -> None:
    twice = Called("a"), Called("a"), Called("b")
    assert matched(twice, (Called("x"), Called("x"), Called("y")), *OWNERS) == [("a", "x"), ("a", "x"), ("b", "y")]
    assert matched(twice, (Called("x"), Called("y")), *OWNERS) == [("b", "y")]  # nothing tells which call is left out


def test_of_layers_around_each_other_the_innermost_are_the_same() -> None:
    wrapped = Called("wrapper", "Wrapper", (Called("wrapper.a"),)), Called("b")
    assert matched(wrapped, (Called("x"), Called("y")), ("wrapper.a", "x"), ("b", "y")) == [
        ("wrapper.a", "x"),
        ("b", "y"),
    ]
    # The second model is itself the layer that the first one wraps: the models stay a pair.
    assert matched((Called("a"),), (), ("a", "")) == []
    assert matched((), (Called("x"),), ("", "x")) == []


@pytest.mark.parametrize(
    ("first", "second", "are_same"),
    [
        ("Dropout", "Dropout", True),
        ("MaxPool", "MaxPool2d", True),
        ("MaxPool", "MaxPooling2D", True),
        ("AvgPool", "AveragePooling2D", True),
        ("LogSoftmax", "Softmax", False),
        ("ReLU6", "ReLU", False),
        ("LeakyReLU", "ReLU", False),
        ("Rope", "Rope", False),  # of no family
    ],
)
def test_classes_of_one_family_are_the_same_in_a_gap(first: str, second: str, are_same: bool) -> None:
    between = (Called("a"), Called("f", first), Called("b")), (Called("x"), Called("s", second), Called("y"))
    assert (("f", "s") in matched(*between, *OWNERS)) == are_same


def test_in_another_gap_they_are_others() -> None:
    f, s = Called("f", "Dropout"), Called("s", "Dropout")
    assert ("f", "s") not in matched((Called("a"), f, Called("b")), (Called("x"), Called("y"), s), *OWNERS)
    # Within a layer that has a counterpart is another gap than behind it.
    around = Called("a", "Block", (f,)), Called("b")
    assert ("f", "s") not in matched(around, (Called("x"), s, Called("y")), *OWNERS)
    assert ("f", "s") in matched(around, (Called("x", "Block", (s,)), Called("y")), *OWNERS)
    # Within one that has none counts as where that is.
    around = Called("a"), Called("wrapper", "Wrapper", (f,)), Called("b")
    assert ("f", "s") in matched(around, (Called("x"), s, Called("y")), *OWNERS)


def test_one_more_of_a_family_leaves_all_alone() -> None:
    dropouts = Called("f", "Dropout"), Called("g", "Dropout")
    s, t = Called("s", "Dropout"), Called("t", "Dropout")
    assert matched((Called("a"), *dropouts, Called("b")), (Called("x"), s, Called("y")), *OWNERS) == [*OWNERS]
    assert matched((Called("a"), *dropouts, Called("b")), (Called("x"), s, t, Called("y")), *OWNERS) == [
        ("a", "x"),
        ("f", "s"),
        ("g", "t"),
        ("b", "y"),
    ]
