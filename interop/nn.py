"""The modules of torch.nn with the gradients of jaxclamp: their arguments and `ties`, their state and printed form."""

from interop._transforms.modules import MODULES, Conversion, convert

__all__ = ["Conversion", "convert", *MODULES]

globals().update(MODULES)
