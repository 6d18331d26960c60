"""The former place of `interop.survey.show.render`, kept until 0.3 for code that imports from here."""

from interop.survey.show.render import *
