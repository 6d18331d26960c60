"""The former place of `interop.comparison.models`, kept until 0.3 for code that imports from here."""
