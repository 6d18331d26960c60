"""Writes down what is made at run time: the stubs of interop for type checkers, and the names on the command line.

``python -m tools.stubs`` writes them.
"""

import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import interop
from interop import IN_PLACE_OPS, TORCH_OPS
from interop._transforms.modules import MODULES
from interop.comparison.leaves import Allowed
from interop.frameworks.registry import CONVERTIBLES
from interop.native import NATIVE
from interop.survey import matrix
from interop.survey.show import render
from jaxclamp import OPS, Convention
from jaxclamp._shared.tie_cases import DTYPES

_FOLDER = Path(interop.__file__).parent
_HEAD = "# Written by `make tables`.\n"


def stubs() -> dict[Path, str]:
    """Map each file to its text."""
    return {
        _FOLDER / "__init__.pyi": _of_interop(),
        _FOLDER / "native" / "__init__.pyi": _of_native(),
        _FOLDER / "nn.pyi": _of_nn(),
        _FOLDER / "cli" / "names.py": _names(),
    }


def _of_interop() -> str:
    ops = TORCH_OPS | IN_PLACE_OPS
    by_module: dict[str, list[str]] = defaultdict(list)
    for name in interop.__all__:
        if name not in ops and callable(thing := getattr(interop, name)):
            by_module[thing.__module__].append(name)
    imports = [f"from {module} import {', '.join(names)}" for module, names in by_module.items()]
    aliases = {name: op.__name__ for name, op in ops.items() if name != op.__name__}
    functions = [_function(op) for name, op in ops.items() if name not in aliases]
    return "\n".join(
        [
            _HEAD,
            "from collections.abc import Callable, Sequence",
            "from typing import Any, Literal, overload",
            "",
            "import torch",
            "",
            "from interop import native, nn",
            *sorted(imports),
            "from jaxclamp import Convention",
            "",
            "__version__: str",
            _tuple("__all__", sorted(interop.__all__)),
            "",
            "TORCH_OPS: dict[str, Callable[..., Any]]",
            "IN_PLACE_OPS: dict[str, Callable[..., Any]]",
            "",
            *functions,
            "",
            *(f"{alias} = {name}" for alias, name in aliases.items()),
            "",
        ]
    )


def _function(op: Callable[..., Any]) -> str:
    signature = inspect.signature(op)
    if "return_indices" not in signature.parameters:
        return _definition(op.__name__, signature.parameters.values(), signature.return_annotation)
    alone, pair = get_args(signature.return_annotation)
    overloads = []
    for flag, result in ((False, alone), (True, pair)):
        parameters = [_flag(p, flag) if p.name == "return_indices" else p for p in signature.parameters.values()]
        overloads += ["@overload", _definition(op.__name__, sorted(parameters, key=lambda p: p.kind), result)]
    return "\n".join(overloads)


def _flag(parameter: inspect.Parameter, value: bool) -> inspect.Parameter:
    """Annotate the parameter with this value, which is either the default or passed by name."""
    if value:  # True is never the default, and behind parameters with one it can be passed by its name alone
        parameter = parameter.replace(kind=parameter.KEYWORD_ONLY, default=parameter.empty)
    return parameter.replace(annotation=f"Literal[{value}]")


_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _definition(name: str, parameters: Iterable[inspect.Parameter], result: Any) -> str:
    written: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in written):
            written.append("*")
        # With the quotes of ruff, which formats the stubs too.
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        written.append(f"{_STARS.get(parameter.kind, '')}{parameter.name}: {_type(parameter.annotation)}{default}")
    return f"def {name}({', '.join(written)}) -> {_type(result)}: ..."


def _type(annotation: Any) -> str:
    if annotation == Convention:
        return "Convention"
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"(?<![\w.])Tensor\b", "torch.Tensor", text)  # some modules have it by this name
    return text.replace("collections.abc.", "").replace("'", '"')


def _of_native() -> str:
    aliases = {name: function.__name__ for name, function in NATIVE.items() if name != function.__name__}
    signatures = {name: inspect.signature(function) for name, function in NATIVE.items() if name not in aliases}
    return "\n".join(
        [
            _HEAD,
            "from collections.abc import Callable, Sequence",
            "from typing import Any",
            "",
            "import torch",
            "",
            "from interop.native.reductions import Pair, Sizes",
            "from interop.native.selection import Bound, Out",
            "from jaxclamp import Convention",
            "",
            "NATIVE: dict[str, Callable[..., Any]]",
            "RIGHT_IN_TORCH: set[Callable[..., Any]]",
            "",
            *(
                _definition(name, signature.parameters.values(), signature.return_annotation)
                for name, signature in signatures.items()
            ),
            "",
            *(f"{alias} = {name}" for alias, name in aliases.items()),
            "",
        ]
    )


def _of_nn() -> str:
    modules = [f"class {name}(_WithTies, torch.nn.{name}):{_call_of(module)}" for name, module in MODULES.items()]
    return "\n".join(
        [
            _HEAD,
            "from typing import Any",
            "",
            "import torch",
            "",
            "from interop._transforms.modules import Conversion as Conversion",
            "from interop._transforms.modules import convert as convert",
            "from jaxclamp import Convention",
            "",
            "class _WithTies:",
            "    ties: Convention | str | None",
            "    def __init__(self, *args: Any, ties: Convention | str | None = None, **kwargs: Any) -> None: ...",
            "",
            *modules,
            "",
        ]
    )


def _call_of(module: type) -> str:
    """Define ``__call__``, which torch types as Any, as torch's own ``forward`` of that module.

    That of a max pool says no result, as it may return a pair.
    """
    # Behind the class itself and what is mixed in, the third of its classes is torch's.
    forward = inspect.signature(module.__mro__[2].forward)  # type: ignore[attr-defined]
    if forward.return_annotation is forward.empty:
        return " ..."
    _, *parameters = forward.parameters.values()
    definition = _definition("__call__", parameters, forward.return_annotation)
    return "\n    " + definition.replace("(", "(self, ", 1)


def _names() -> str:
    names = {
        "OPS": OPS,
        "DTYPES": DTYPES,
        "FRAMEWORKS": matrix.FRAMEWORKS,
        "FORMATS": ("table", *render.FORMATS),
        "CONVERTIBLES": CONVERTIBLES,
        "ALLOWED": get_args(Allowed),
    }
    head = '"""What can be named on the command line, which finds a mistyped name before it imports JAX and torch."""'
    return "\n".join([head, "", _HEAD, *(_tuple(name, list(values)) for name, values in names.items()), ""])


def _tuple(name: str, values: list[str]) -> str:
    """Write an assignment on one line, or in lines that are full."""
    quoted = ", ".join(map('"{}"'.format, values))
    words = textwrap.fill(quoted, 120, initial_indent="    ", subsequent_indent="    ")
    line = f"{name} = ({quoted})"
    return line if len(line) <= 120 else f"{name} = (\n{words},\n)"


if __name__ == "__main__":
    for file, text in stubs().items():
        file.write_text(text, "utf-8")
