"""The frameworks by name, and which of them a function runs in."""

import importlib
import pkgutil
from collections.abc import Mapping

import jax

import interop.frameworks
from interop.frameworks.base import Adapter, Arrays, Convertible, Function
from interop.frameworks.jax import Jax
from interop.frameworks.torch import Torch

# A class is known once its module is imported; the modules import no framework.
for _module in pkgutil.iter_modules(interop.frameworks.__path__, "interop.frameworks."):
    importlib.import_module(_module.name)

ADAPTERS: dict[str, type[Adapter]] = {adapter.name: adapter for adapter in Adapter.__subclasses__()}
"""Maps a name to the framework that need not be installed; each module here that holds one is imported."""

CONVERTIBLES: Mapping[str, type[Convertible]] = {"jax": Jax, "torch": Torch}
"""Maps a name to the framework whose functions `interop.compare` takes."""


def frameworks_of(name: str, function: Function, arguments: Arrays) -> list[Convertible]:
    """Try the function in each framework, JAX first, and return those that it runs in.

    Most run in one: torch refuses traced arrays, operators between the two included, and JAX refuses tensors.

    Raises:
      Exception: what the function raises, if that is the same in both, given arrays.
      TypeError: the function, which the message calls ``name``, runs in neither; the cause is what it raised in each.
    """
    running: list[Convertible] = []
    refusals: list[Exception] = []
    for convertible in CONVERTIBLES.values():
        framework = convertible()
        try:
            framework.attempt(function, arguments)
            running.append(framework)
        except Exception as error:  # of whichever type a library raises for arrays of another
            refusals.append(error)
    if running:
        return running
    in_jax, in_torch = refusals
    # By repr, as exceptions are never equal: the same words are those of the function itself.
    if arguments and repr(in_jax) == repr(in_torch):
        in_torch.add_note(f"{name} raised this with JAX arrays and with torch tensors.")
        raise in_torch
    reasons = [type(reason).__name__ + ": " + str(reason).partition("\n")[0] for reason in refusals]
    cure = "a function of one of them that returns arrays" if arguments else "arrays, such as numpy.float32(6.0)"
    hint = "".join(sorted({f" {hint}" for hint in map(hint_at_numpy, refusals) if hint}))
    raise TypeError(
        f"{name} takes neither JAX arrays ({reasons[0]}) nor torch tensors ({reasons[1]}); pass {cure}.{hint}"
    ) from ExceptionGroup(f"what {name} raised with JAX arrays, and with torch tensors", refusals)


def hint_at_numpy(error: Exception) -> str:
    """Say what to do about an error of a NumPy function inside one of a framework; empty for all further errors."""
    of_torch = ("Can't call numpy() on Tensor that requires grad", "__array_wrap__")
    of_numpy = any(words in str(error) for words in of_torch)
    if not (of_numpy or isinstance(error, jax.errors.TracerArrayConversionError)):
        return ""
    return (
        "A function of NumPy, such as np.maximum, has no gradient in either framework: call the framework's own, such "
        "as torch.maximum or jnp.maximum."
    )
