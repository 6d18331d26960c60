"""The former place of `interop.comparison.models.compare_models`, kept until 0.3 for code that imports from here."""

from interop.comparison.models.compare_models import *
