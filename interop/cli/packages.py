"""The packages that a command needs, of which a mere install of jaxclamp has none."""

import importlib.util
import sys


def require(*packages: str) -> None:
    """Exit with the cure if one of the packages is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            sys.exit(f"The command line needs {package}: pip install 'jaxclamp[cli]', or in a checkout '.[cli]'")
