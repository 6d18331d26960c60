"""The former place of `interop.survey.matrix`, kept until 0.3 for code that imports from here."""

from interop.survey.matrix import *
from interop.survey.matrix import PACKAGES, UNMODIFIED, load

OURS, THEIRS, theirs = PACKAGES, UNMODIFIED, load
