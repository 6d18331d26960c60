"""The packages that a command needs; a mere install of jaxclamp has none of them."""

import importlib.util
import sys

_EXTRAS = {"matplotlib": "plot", "jinja2": "plot", "safetensors": "safetensors"}
"""Maps a package to the extra that has it, if that is not ``cli``."""


def require(*packages: str) -> None:
    """Exit with the cure, and status 2, if one of the packages is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            extra = _EXTRAS.get(package, "cli")
            cure = f"pip install 'jaxclamp[{extra}]', or in a checkout '.[{extra}]'"
            print(f"This needs {package}: {cure}", file=sys.stderr)
            sys.exit(2)
