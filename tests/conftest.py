"""What holds for all tests: the same examples in every run, no look at the clock, and eight devices to shard over."""

import collections
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import jax
import pytest
from jax._src.interpreters import mlir

from tests.support.imports import TESTS, needs_torch

jax.config.update("jax_num_cpu_devices", 8)
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")

# For programs that run once, XLA has a way to emit loops that compiles faster. JAX 0.11.2 took it away, with its flag.
if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") and jax.__version_info__ < (0, 11, 2):
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"

LEFT_OUT = [] if importlib.util.find_spec("torch") else [file for file in TESTS.rglob("*.py") if needs_torch(file)]
collect_ignore = [TESTS / "project" / "typed_use.py", *LEFT_OUT]  # the first is for mypy, and has errors on purpose

# JAX makes a context of MLIR for each program. That takes 5 ms, longer than all else that lowers a small one. Here the
# programs of a module share theirs. JAX has no setting for that, and the name is private; without it tests take longer.
new_context = functools.cache(mlir.make_ir_context) if hasattr(mlir, "make_ir_context") else None
if new_context:
    mlir.make_ir_context = new_context


def pytest_report_header() -> str | None:
    return f"torch is not installed: {len(LEFT_OUT)} modules of tests need it, and are left out" if LEFT_OUT else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="of each module the tests K, K + N, K + 2 N, ..., counted from 0")


@pytest.hookimpl(trylast=True)  # of what is left by -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of other parts. Docstrings of the packages, and what is marked each_jax, are in every part."""
    if not config.option.part:
        return
    part, parts = map(int, config.option.part.split("/"))
    positions: collections.Counter[Path] = collections.Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_shared = TESTS in item.path.parents and not item.get_closest_marker("each_jax")
        (left_out if is_shared and positions[item.path] % parts != part else kept).append(item)
        positions[item.path] += 1
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """What XLA has compiled is kept in pytest's own cache, for the other process and for the next run.

    It is found by all that goes into the compiler, so that a changed op is compiled anew. Processes that tests start
    get it by their environment.
    """
    if config.option.markexpr == "not thorough":
        # As a whole it is thorough, and it imports all tests of torch.
        collect_ignore.append(TESTS / "torch" / "test_opinfo.py")
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
    if new_context:
        new_context.cache_clear()


@pytest.fixture(autouse=True)
def no_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of pytest-xdist set one, of 80 columns, and the command line keeps to it."""
    monkeypatch.delenv("COLUMNS", raising=False)


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


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def float32() -> Iterator[None]:
    """JAX's 64-bit mode is off, whatever the environment says."""
    with jax.enable_x64(False):
        yield


@pytest.fixture
def seeded() -> Iterator[None]:
    """Torch draws the same random numbers in each test; on the CPU it goes on afterwards as if it had drawn none."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def load() -> Callable[[str], ModuleType]:
    """Imports an example by its name."""

    @functools.cache
    def example(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, TESTS.parent / "examples" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return example
