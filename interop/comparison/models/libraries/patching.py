"""Record calls of modules in libraries without hooks for it, by replacing ``__call__`` of their classes for a while."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from interop.comparison.models.layers import CallRecorder

Describe: TypeAlias = Callable[[Any], tuple[str, str] | None]


@contextlib.contextmanager
def recording(recorder: CallRecorder, classes: Iterable[type], describe: Describe) -> Iterator[None]:
    """Record calls of objects of the classes in the block.

    ``describe`` returns the path of such an object and its settings; None if it is not one of the model's.
    """
    defining = {next((base for base in cls.__mro__ if "__call__" in vars(base)), None) for cls in classes} - {None}
    originals = {base: vars(base)["__call__"] for base in defining}
    try:
        for base, original in originals.items():
            setattr(base, "__call__", _recorded(recorder, original, describe))  # noqa: B010  # mypy knows it as a method
        yield
    finally:
        for base, original in originals.items():
            setattr(base, "__call__", original)  # noqa: B010


def _recorded(recorder: CallRecorder, original: Callable[..., Any], describe: Describe) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        described = describe(self)
        if described is None or described[0] == recorder.innermost:  # the same module, by the method of its base class
            return original(self, *args, **kwargs)
        path, settings = described
        args, kwargs = recorder.enter(path, type(self).__name__, settings, (args, kwargs))
        return recorder.leave(original(self, *args, **kwargs))

    return call
