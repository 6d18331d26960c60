"""A dict of a bounded size, for what can be computed anew."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dict that forgets its oldest entry for a new one once it is full.

    >>> squares = Bounded(2)
    >>> for n in (1, 2, 3):
    ...     squares[n] = n * n
    >>> squares
    {2: 4, 3: 9}
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self and len(self) >= self._size:
            del self[next(iter(self))]
        super().__setitem__(key, value)
