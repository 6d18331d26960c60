"""The former place of `interop.comparison.models.report`, kept until 0.3 for code that imports from here."""

from interop.comparison.models.report import *
