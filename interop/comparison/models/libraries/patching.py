"""Record calls of modules: through a library's interceptor, or by replacing ``__call__`` of its classes for a while."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from interop.comparison.models.layers import CallRecorder

Describe: TypeAlias = Callable[[Any], tuple[str, Mapping[str, Any]] | None]
"""Returns the path of a module and its fields; None if it is not one of the model's."""

_HIDDEN = {"name", "parent", "dtype", "param_dtype", "training"}
"""Fields that do not tell what a module computes."""


@contextlib.contextmanager
def recording(recorder: CallRecorder, classes: Iterable[type], describe: Describe) -> Iterator[None]:
    """Record calls of objects of the classes in the block."""
    # Equinox, nnx and Keras have no interceptor.
    # A class that inherits its method is patched where that is defined, and each class once.
    defining = {next((base for base in cls.__mro__ if "__call__" in vars(base)), None) for cls in classes} - {None}
    with contextlib.ExitStack() as patched:
        for base in defining:
            original = vars(base)["__call__"]
            patched.callback(setattr, base, "__call__", original)
            setattr(base, "__call__", _recorded(recorder, original, describe))  # noqa: B010  # a method for mypy
        yield


def interceptor(recorder: CallRecorder, describe: Describe) -> Callable[..., Any]:
    """Return what Flax linen and Haiku call in the place of each method, to record ``__call__``."""

    def intercept(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return method(*args, **kwargs)
        return _call(recorder, context.module, describe, method, args, kwargs)

    return intercept


def _recorded(recorder: CallRecorder, original: Callable[..., Any], describe: Describe) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _call(recorder, self, describe, functools.partial(original, self), args, kwargs)

    return call


def _call(
    recorder: CallRecorder, module: Any, describe: Describe, method: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    described = describe(module)
    if described is None or described[0] == recorder.innermost:  # the same module, by the method of its base class
        return method(*args, **kwargs)
    path, fields = described
    args, kwargs = recorder.enter(path, module, settings_of(type(module).__name__, fields), (args, kwargs))
    result = None
    try:
        result = method(*args, **kwargs)
    finally:  # also where the method raises, as the module around it may catch that and go on
        result = recorder.leave(result)
    return result


def settings_of(kind: str, fields: Mapping[str, Any]) -> str:
    """Return a call of the class with those of its fields that are numbers or words, or tuples of them."""
    arguments = [
        f"{name}={value!r}"
        for name, value in fields.items()
        if not name.startswith("_") and name not in _HIDDEN
        if _is_plain(value)
    ]
    return f"{kind}({', '.join(arguments)})"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
