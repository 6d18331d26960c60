"""The former place of `interop.comparison.models.mapping`, kept until 0.3 for code that imports from here."""

from interop.comparison.models.mapping import *
