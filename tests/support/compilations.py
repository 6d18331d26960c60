"""How many programs XLA has compiled in this process, by JAX's own account."""

import jax

_compiled: list[float] = []


def _listen(event: str, seconds: float, **details: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(seconds)


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations() -> int:
    """Return how many programs were compiled since this module was imported."""
    return len(_compiled)
