"""`scan`: finds source files, asks every question of every call, and gathers what is found."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from interop.scan import bounds, branches, calls, straight_through, wheres
from interop.scan.calls import Versions
from interop.scan.finding import LIKELIHOODS, Finding, Likelihood
from interop.scan.source import Source
from interop.survey.records import record_of, recorded


@dataclass(frozen=True)
class Scan:
    """What `scan` found; printed, it is a report of at most 100 columns."""

    findings: tuple[Finding, ...]
    """In the order of files and lines."""
    hidden: int
    """How many have a tie less likely than ``at_least``."""
    at_least: Likelihood
    files: int
    unread: tuple[str, ...]
    """Files that are no Python that can be parsed."""

    def __str__(self) -> str:
        return self.text(100)

    def text(self, width: int) -> str:
        """Write the report in lines of at most ``width`` columns."""
        number = len(self.findings)
        counts = Counter(finding.question for finding in self.findings)
        kinds = ", ".join(f"{count} {question}" for question, count in counts.most_common())
        first = f"{number} place{'s' * (number != 1)} in {self.files} file{'s' * (self.files != 1)}"
        lines = [first + (f": {kinds}" if kinds else "")]
        for finding in self.findings:
            lines.append(f"{finding.file}:{finding.line}: {finding.code}")
            lines += [f"    {finding.question}, tie {finding.tie}: {finding.what}", f"    cure: {finding.cure}"]
        if self.hidden:
            less = LIKELIHOODS[LIKELIHOODS.index(self.at_least) + 1 :]
            lines.append(f"{self.hidden} more where a tie is less likely: --at-least {' or '.join(less)}")
        lines += [f"not read: {file}" for file in self.unread]
        filled = (textwrap.wrap(line, width, subsequent_indent="      ", break_on_hyphens=False) for line in lines)
        return "\n".join(part for parts in filled for part in parts)

    def to_json(self) -> str:
        """Write all of it."""
        content = {
            "files": self.files,
            "hidden": self.hidden,
            "unread": self.unread,
            "findings": [finding._asdict() for finding in self.findings],
        }
        return json.dumps(content, indent=1) + "\n"


def scan(
    paths: Iterable[str | Path], *, before: str | None = None, after: str | None = None, at_least: Likelihood = "likely"
) -> Scan:
    """Find calls in source files whose gradient at a tie depends on a version, a spelling or a branch.

    Nothing is imported or run. Functions are known by the imports of a file; a method, as ``x.clamp(0, 6)``, is taken
    for one of torch, or of JAX if the file imports JAX alone. What differs between versions and spellings is read from
    the records of `changes`.

    Args:
      paths: files, and folders with files ``*.py``.
      before: a version of torch, as ``"2.13"``; calls that changed since are found, too.
      after: the version of torch to compare with, and whose spellings are compared; by default the newest recorded.
      at_least: how likely a tie has to be: ``"likely"``, ``"possible"`` or ``"rare"``.

    Returns:
      A `Scan`.

    Raises:
      FileNotFoundError: there is no such path.
      ValueError: there is no record of a version, or ``at_least`` is another word.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "codes.py").write_text("import torch\\ny = torch.clamp(x, -8, 7)\\n")
    ...     result = scan([folder], before="2.13", after="2.15")
    >>> [(finding.line, finding.question, finding.what) for finding in result.findings]
    [(2, 'version', 'clamp(x=0, min=0, max=6) by x, numbers: 1 → 0')]
    """
    if at_least not in LIKELIHOODS:
        raise ValueError(f"scan: at_least={at_least!r} is not one of {', '.join(LIKELIHOODS)}.")
    newest = {name: recorded()[name][-1] for name in ("torch", "jax")}
    of_torch = record_of("torch", after) if after else newest["torch"]
    versions = {
        "torch": Versions(of_torch, record_of("torch", before) if before else None),
        "jax": Versions(newest["jax"]),
    }
    findings: list[Finding] = []
    unread: list[str] = []
    files = list(_files(paths))
    for file in files:
        try:
            text = file.read_text("utf-8")
            if not any(framework in text for framework in versions):
                continue
            source = Source(text)
        except (SyntaxError, ValueError, RecursionError):
            unread.append(str(file))
            continue
        findings += _of_file(source, str(file), versions)
    chosen = LIKELIHOODS[: LIKELIHOODS.index(at_least) + 1]
    shown = [finding for finding in findings if finding.tie in chosen]
    return Scan(tuple(shown), len(findings) - len(shown), at_least, len(files), tuple(unread))


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path
        else:
            raise FileNotFoundError(f"scan: there is no {str(path)!r}.")


def _of_file(source: Source, file: str, versions: dict[str, Versions]) -> Sequence[Finding]:
    if not source.frameworks:
        return ()
    findings: list[Finding] = []
    for node in source.nodes:
        findings += straight_through.findings(source, node, file)
        if call := source.call(node):
            findings += calls.findings(source, call, versions, file)
            for question in (wheres, branches, bounds):
                findings += question.findings(source, call, file)
    return sorted(dict.fromkeys(findings), key=lambda finding: (finding.line, finding.question))
