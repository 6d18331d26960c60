"""The numbers that a direction is made of where a caller names none, the same in JAX and in torch, on every device.

A direction need not be random, it must only miss the edges between pieces. So the numbers 0, 1, 2, ... are mixed by
the last steps of MurmurHash3, which map no two of them to one. A first array of three elements gets::

    seed     mixed(2) = 821347078
    numbers  mixed(seed + 0), mixed(seed + 1), mixed(seed + 2), from 0 to 2^32
    entries  0.42, -0.57, -0.65: these times 2^-31, minus 1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mixed(number: Any, in_32_bits: Callable[[Any], Any]) -> Any:
    """Return a number below 2^32 for each one, mixed one to one; of integers, or of arrays of any framework.

    ``in_32_bits`` returns an integer or array modulo 2^32.
    """
    # The numbers are those of MurmurHash3's last steps. Its last shift is followed by no factor: hence the 1.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        number = in_32_bits((number ^ (number >> shift)) * in_32_bits(factor))
    return number


def seeds(count: int) -> list[int]:
    """Return where the numbers of each of several arrays begin."""
    # From 2 on: so a single number moves up, and the gradient of an absolute value at 0 is 1. From 1 on it would be -1.
    return [mixed(place + 2, lambda number: number & 0xFFFFFFFF) for place in range(count)]
