"""jaxclamp's ops and gradients for PyTorch, any JAX function as a torch function, and the comparison of frameworks."""

import importlib
import importlib.util

if importlib.util.find_spec("torch") is None:  # here alone can a missing torch be explained
    raise ModuleNotFoundError(
        "interop needs PyTorch: pip install 'jaxclamp[torch]', or in a checkout '.[torch]'; "
        "the command line needs 'jaxclamp[cli]'.",
        name="torch",
    )

# Torch and JAX take seconds to import, and the command line answers without them. What type checkers see is the stub.
_WHEN_USED = {
    **dict.fromkeys(["jax_to_torch", "torch_to_jax"], "_bridge.arrays"),
    **dict.fromkeys(["IN_PLACE_OPS", "TORCH_OPS"], "_bridge.ops"),
    "wrap_for_torch": "_bridge.wrap",
    "as_of": "_transforms.as_of",
    "min_norm": "_transforms.min_norm",
    "influence": "_transforms.influence",
    "ties": "_transforms.ties",
    "sum_over_ranks": "_transforms.ranks",
    "along": "_programs.along",
    **dict.fromkeys(["directional_derivative", "grad", "grad_and_value", "subdifferential"], "_programs.gradients"),
    "gradcheck": "_checks.gradcheck",
    **dict.fromkeys(["Changes", "changes"], "survey.changes"),
    "audit": "_audit.audit",
    **dict.fromkeys(["Audit", "ChangedLine", "Effect"], "_audit.report"),
    "Comparison": "comparison.comparison",
    "compare": "comparison.compare",
    "Probe": "comparison.probe",
    **dict.fromkeys(["Recording", "record"], "comparison.recording"),
    "compare_models": "comparison.models.compare_models",
    "ModelComparison": "comparison.models.report",
}
_MODULES = ("native", "nn")


def __getattr__(name):
    if name == "__version__":
        return importlib.import_module("jaxclamp").__version__
    if name == "__all__":
        return sorted([*_MODULES, *_WHEN_USED, *_ops()])
    if name in _MODULES:
        return importlib.import_module(f"interop.{name}")
    if name in _WHEN_USED:
        globals()[name] = getattr(importlib.import_module(f"interop.{_WHEN_USED[name]}"), name)
    # Python and its tools ask for names such as __wrapped__, for which JAX need not be imported.
    elif not name.startswith("_") and name in _ops():
        globals()[name] = _ops()[name]
    else:
        raise AttributeError(f"module 'interop' has no attribute {name!r}")
    return globals()[name]


def _ops():
    ops = importlib.import_module("interop._bridge.ops")
    return ops.TORCH_OPS | ops.IN_PLACE_OPS


def __dir__():
    return sorted({*__getattr__("__all__"), *(name for name in globals() if name.startswith("__")), "__version__"})
