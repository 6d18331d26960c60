"""The packages that a command needs; a mere install of jaxclamp has none of them."""

import importlib.util
import sys

_EXTRAS = {"matplotlib": "plot", "jinja2": "plot", "sklearn": "demo", "safetensors": "safetensors"}
"""Maps a package to the extra that has it, if that is not ``cli``."""


def extra_with(package: str) -> str:
    """Return the extra that has a package."""
    return _EXTRAS.get(package, "cli")


def require(*packages: str) -> None:
    """Exit with the cure if one of the packages is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            extra = extra_with(package)
            sys.exit(f"This needs {package}: pip install 'jaxclamp[{extra}]', or in a checkout '.[{extra}]'")
