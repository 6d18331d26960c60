"""Wraps the private names of JAX that the bridge cannot do without: one function for each, with the reason.

No other module of interop or jaxclamp has private names of JAX: `tests/project/test_structure.py` holds that.
"""

from jax._src import xla_bridge


def has_started() -> bool:
    """Return whether XLA's threads run, which do not survive a fork; no public name says so."""
    return bool(xla_bridge.backends_are_initialized())
