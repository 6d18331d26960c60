"""The spellings of an op in other libraries: calls written as strings, resolved when they are used, not before."""

import ast
import functools
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Counterpart:
    """A call such as ``"jax.lax:clamp(min, x, max)"``, with the parameter names of the op whose counterpart it is."""

    text: str

    @property
    def framework(self) -> str:
        """The top-level package, ``"jax"`` here."""
        return self.text.partition(":")[0].partition(".")[0]

    @property
    def name(self) -> str:
        """The dotted name, ``"jax.lax.clamp"`` here."""
        return self.text.partition("(")[0].replace(":", ".")

    @property
    def function(self) -> Callable[..., Any]:
        """The function that is called; reading this imports its library."""
        return pkgutil.resolve_name(self.text.partition("(")[0])

    @property
    def parameters(self) -> Mapping[str, str]:
        """Maps the parameters of the op that the call has, in its order, to its keywords, or to themselves.

        >>> Counterpart("torch:amax(x, dim=axis)").parameters
        {'x': 'x', 'axis': 'dim'}
        """
        positional, keywords = self._arguments
        return {**{name: name for name in positional}, **{name: key for key, name in keywords.items()}}

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Call it with the op's arguments by name; one that is missing, or None, stays at the default."""
        positional, keywords = self._arguments
        args = [arguments.get(name) for name in positional]
        while args and args[-1] is None:
            args.pop()
        keyword_args = {key: arguments[name] for key, name in keywords.items() if arguments.get(name) is not None}
        return self.function(*args, **keyword_args)

    @functools.cached_property
    def _arguments(self) -> tuple[list[str], dict[str, str]]:
        """The positional and the keyword arguments of the call."""
        # In place of the name, which with its colon is no expression, stands an f.
        call = ast.parse(f"f({self.text.partition('(')[2]}", mode="eval").body
        assert isinstance(call, ast.Call)
        keywords = {str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords}
        return [ast.unparse(argument) for argument in call.args], keywords
