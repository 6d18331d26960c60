"""The former place of `interop.survey.records`, kept until 0.3 for code that imports from here."""

from interop.survey.records import *
