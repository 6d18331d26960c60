"""The former place of `interop.comparison.models.judgements`, kept until 0.3 for code that imports from here."""

from interop.comparison.models.judgements import *
