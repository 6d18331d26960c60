"""The former place of `interop.frameworks`, kept until 0.3 for code that imports from here."""

from interop.frameworks.base import *
from interop.frameworks.jax import *
from interop.frameworks.registry import *
from interop.frameworks.torch import *
