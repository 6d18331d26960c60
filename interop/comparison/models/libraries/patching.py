"""Calls of modules seen by those libraries that have no hook for it: ``__call__`` of their classes, for a while."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from interop.comparison.models.layers import Tape

Describe: TypeAlias = Callable[[Any], tuple[str, str] | None]


@contextlib.contextmanager
def seen_by(tape: Tape, classes: Iterable[type], describe: Describe) -> Iterator[None]:
    """A block in which calls of objects of the classes are noted.

    ``describe`` gives the path of such an object and its settings; None if it is not one of the model's.
    """
    homes = {next(base for base in cls.__mro__ if "__call__" in vars(base)) for cls in classes if callable_class(cls)}
    originals = {home: vars(home)["__call__"] for home in homes}
    try:
        for home, original in originals.items():
            setattr(home, "__call__", _noted(tape, original, describe))  # noqa: B010  # mypy knows it as a method
        yield
    finally:
        for home, original in originals.items():
            setattr(home, "__call__", original)  # noqa: B010


def callable_class(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)


def _noted(tape: Tape, original: Callable[..., Any], describe: Describe) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        described = describe(self)
        if described is None or described[0] == tape.innermost:  # the same module, by the method of its base class
            return original(self, *args, **kwargs)
        path, settings = described
        args, kwargs = tape.enter(path, type(self).__name__, settings, (args, kwargs))
        return tape.leave(original(self, *args, **kwargs))

    return call
