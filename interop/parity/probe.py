"""The former place of `interop.comparison.probe`, kept until 0.3 for code that imports from here."""

from interop.comparison.probe import *
