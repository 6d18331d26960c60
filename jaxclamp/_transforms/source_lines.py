"""Finds the line of the user's source, and the module, that an equation of a jaxpr comes from."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.extend.core import JaxprEqn
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._rules.differentiate import DERIVATIVE_SCOPE, OP_SCOPE, ROOT_SCOPE, VALUE_SCOPE
from jaxclamp._transforms.jaxprs import with_bodies

T = TypeVar("T")

_INSTALLED = tuple(path + os.sep for path in sysconfig.get_paths().values())  # of Python itself, too
SCOPES_OF_JAXCLAMP = (OP_SCOPE, ROOT_SCOPE, DERIVATIVE_SCOPE, VALUE_SCOPE)
_LIBRARIES = (str(Path(jax.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)


def place(eqn: JaxprEqn) -> tuple[str, int]:
    """Return the file and the line of ``eqn`` in the user's code; if there is none, that of the function it calls.

    No line of the user's calls the custom_vjp f in ``jax.jit(f)``.
    """
    lines = [(frame.file_name, frame.line_num) for frame in frames(eqn)]
    if body := eqn.params.get("call_jaxpr"):
        definition = re.search(r" at (.+):(\d+)$", body.jaxpr.debug_info.func_src_info or "")
        lines += [(definition[1], int(definition[2]))] if definition else []
    file, line = innermost(lines)
    return file, line or 0


def scopes(eqn: JaxprEqn) -> str:
    """Return the scopes around ``eqn``: of ``transpose(jvp(Net))/Block_0/jaxclamp.relu`` those are Net/Block_0."""
    stack = re.sub(r"\b(?:jvp|transpose|vmap)\(|\)", "", str(eqn.source_info.name_stack))
    return "/".join(scope for scope in stack.split("/") if scope and not scope.startswith(SCOPES_OF_JAXCLAMP))


def innermost(lines: Iterable[tuple[str, T]], *libraries: str) -> tuple[str, T | None]:
    """Return the first line of the user's code, or else of a package that is not one of ``libraries``, nor JAX.

    A line is the name of its file, and what the caller says of it.

    >>> installed = sysconfig.get_paths()["purelib"]
    >>> innermost([(jax.__file__, 1), (f"{installed}/flax/linen.py", 2), ("/home/me/train.py", 3)])
    ('/home/me/train.py', 3)
    """
    passed_over = (*_LIBRARIES, *libraries)
    of_package = None
    for line in lines:
        if not line[0].startswith(passed_over):
            if not line[0].startswith(_INSTALLED):
                return line
            of_package = of_package or line
    return of_package or ("unknown", None)


def frames(eqn: JaxprEqn) -> list[Any]:
    """Return the lines of Python that led to ``eqn``, the innermost first."""
    traceback = eqn.source_info.traceback
    return list(traceback.frames) if traceback else []


def located(eqn: JaxprEqn) -> JaxprEqn:
    """Prefix the name stack of ``eqn`` to the equations of its body; give its traceback to those of libraries alone.

    JAX traces a library function that is an inner jit once, for all calls. So its equations do not name the caller.
    """
    outer = eqn.source_info

    def moved(inner: JaxprEqn) -> JaxprEqn:
        source_info = inner.source_info.replace(name_stack=outer.name_stack + inner.source_info.name_stack)
        if not is_of_derivative(inner) and all(f.file_name.startswith(_INSTALLED + _LIBRARIES) for f in frames(inner)):
            source_info = source_info.replace(traceback=outer.traceback)
        return inner.replace(source_info=source_info)

    return with_bodies(eqn, lambda body: with_parts(body, eqns=list(map(moved, body.eqns))))


def is_transposed(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` is part of a reverse pass."""
    return "transpose(" in str(eqn.source_info.name_stack)


def is_of_derivative(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` is part of the derivative of an op of jaxclamp."""
    return eqn.primitive is not p.custom_jvp_call_p and DERIVATIVE_SCOPE in str(eqn.source_info.name_stack)
