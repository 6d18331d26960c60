"""Source code read for gradients that are a choice, without running it: `scan`, with a file for each question."""

from interop.scan.finding import Finding as Finding
from interop.scan.scan import Scan as Scan
from interop.scan.scan import scan as scan
