"""What holds for all tests: the same examples in every run, no look at the clock, and eight devices to shard over."""

import gc
import os
from collections.abc import Iterator

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")

collect_ignore = ["typed_use.py"]  # it is for mypy, and has errors on purpose


def pytest_configure(config: pytest.Config) -> None:
    """What XLA has compiled is kept in pytest's own cache, for the other process and for the next run.

    It is found by all that goes into the compiler, so that a changed op is compiled anew. Processes that tests start
    get it by their environment.
    """
    cache = getattr(config, "cache", None)  # there is none with -p no:cacheprovider
    settings = {
        "jax_compilation_cache_dir": str(cache.mkdir("xla")) if cache else None,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        if value is not None:
            jax.config.update(name, value)
            os.environ[name.upper()] = str(value)


def pytest_collection_finish() -> None:
    """The garbage collector need not look through the modules of torch and JAX again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_end_with_their_module() -> Iterator[None]:
    """Else those of all tests add up to gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def strictest_settings() -> Iterator[None]:
    """JAX's strictest settings, under which valid use raises nothing."""
    gc.collect()
    gc.freeze()  # to find leaks, JAX looks through all that is not frozen, after each trace
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.debug_nans(True),
        jax.checking_leaks(),
    ):
        yield
