"""`scan`: finds source files, asks every question of every call, and gathers what is found."""

import ast
import json
import os
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from interop._terminal import WIDTH
from interop.scan import bounds, branches, calls, straight_through, wheres
from interop.scan.calls import Versions
from interop.scan.finding import LIKELIHOODS, Finding, Likelihood, Question
from interop.scan.source import Source
from interop.survey.records import record_of, recorded

_Fate: TypeAlias = Literal["open", "pinned", "ignored"]
_DECIDED_BY: dict[str, tuple[Question, ...]] = {
    **dict.fromkeys(("as_of", "min_norm"), ("version", "spelling")),
    **dict.fromkeys(("along", "grad", "value_and_grad"), ("version", "spelling", "where", "branch")),
}
"""Maps a function of this project to the questions that have an answer under it."""
_WHERE = {"torch.where", "jax.numpy.where", "jax.lax.select"}


@dataclass(frozen=True)
class Scan:
    """What `scan` found; printed, it is a report of at most 100 columns."""

    findings: tuple[Finding, ...]
    """In the order of files and lines."""
    hidden: int
    """How many have a tie less likely than ``at_least``."""
    pinned: int
    """How many would be found, but that a block, a decorator or a transformation of this project decides there."""
    ignored: int
    """How many would be found, but for a comment ``# jaxclamp: ignore``."""
    at_least: Likelihood
    files: int
    unread: tuple[str, ...]
    """Notebooks, and files that cannot be opened or that Python does not parse."""

    def __str__(self) -> str:
        return self.text(WIDTH)

    def text(self, width: int) -> str:
        """Write the report in lines of at most ``width`` columns."""
        number = len(self.findings)
        counts = Counter(finding.question for finding in self.findings)
        kinds = ", ".join(f"{count} {question}" for question, count in counts.most_common())
        first = f"{number} place{'s' * (number != 1)} in {self.files} file{'s' * (self.files != 1)}"
        shown = LIKELIHOODS[: LIKELIHOODS.index(self.at_least) + 1]
        # Beside places that are hidden, "0 places" alone would read as if nothing changed.
        first += f" where a tie is {' or '.join(shown)}" if self.hidden else ""
        lines = [first + (f": {kinds}" if kinds else "")]
        for finding in self.findings:
            lines.append(f"{finding.file}:{finding.line}: {finding.code}")
            lines += [f"    {finding.question}, tie {finding.tie}: {finding.what}", f"    cure: {finding.cure}"]
        if self.hidden:
            less = LIKELIHOODS[len(shown) :]
            lines.append(f"{self.hidden} more where a tie is less likely: --at-least {' or '.join(less)}")
        if self.pinned:
            lines.append(f"{self.pinned} pinned by a block, a decorator or a call of jaxclamp or interop")
        if self.ignored:
            lines.append(f"{self.ignored} ignored by a comment # jaxclamp: ignore")
        lines += [f"not read: {file}" for file in self.unread]
        if number:
            lines.append("To accept a place: a comment # jaxclamp: ignore on its line.")
        filled = (textwrap.wrap(line, width, subsequent_indent="      ", break_on_hyphens=False) for line in lines)
        return "\n".join(part for parts in filled for part in parts)

    def to_json(self) -> str:
        """Write all of it."""
        content = {name: getattr(self, name) for name in ("files", "hidden", "pinned", "ignored", "unread")}
        return json.dumps({**content, "findings": [finding._asdict() for finding in self.findings]}, indent=1) + "\n"


def scan(
    paths: Iterable[str | Path], *, before: str | None = None, after: str | None = None, at_least: Likelihood = "likely"
) -> Scan:
    """Find calls in source files whose gradient at a tie depends on a version, a spelling or a branch.

    Nothing is imported or run. Functions are known by the imports of a file; a method, as ``x.clamp(0, 6)``, is taken
    for one of torch, or of JAX if the file imports JAX alone. What differs between versions and spellings is read from
    the records of `changes`. A place that is pinned, as in a block ``with interop.as_of(...)``, is only counted, and so
    is one with a comment ``# jaxclamp: ignore`` on a line of the call.

    Args:
      paths: files, and folders with files ``*.py``; of these hidden ones and virtual environments are left out.
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
    >>> (finding,) = result.findings
    >>> print(finding.line, finding.question, finding.what, sep="\\n")
    2
    version
    clamp: on a tie the gradient by x was 1 in torch 2.13.0 and is 0 in torch 2.15.0, recorded at x=0, min=0, max=6
    """
    if at_least not in LIKELIHOODS:
        raise ValueError(f"scan: at_least={at_least!r} is not one of {', '.join(LIKELIHOODS)}.")
    newest = {name: recorded()[name][-1] for name in ("torch", "jax")}
    of_torch = record_of("torch", after) if after else newest["torch"]
    versions = {
        "torch": Versions(of_torch, record_of("torch", before) if before else None),
        "jax": Versions(newest["jax"]),
    }
    findings: dict[_Fate, list[Finding]] = {"open": [], "pinned": [], "ignored": []}
    unread: list[str] = []
    files = list(_files(paths))
    for file in files:
        try:
            if file.suffix == ".ipynb":
                raise ValueError("a notebook is a dict to Python, in which there is no call")
            with tokenize.open(file) as opened:  # decoded as Python does, by a comment on its encoding too
                text = opened.read()
            # Before a file is parsed, which takes half of the time of a scan: most import neither.
            if not any(framework in text for framework in versions):
                continue
            fates = _of_file(Source(text, str(file)), versions)
        # ValueError is of notebooks and of bytes that are not UTF-8, RecursionError of a sum of thousands of terms,
        # nested that deep, MemoryError of what overflows the parser's own stack, as thousands of minus signs.
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            unread.append(str(file))
            continue
        for finding, fate in fates:
            findings[fate].append(finding)
    chosen = LIKELIHOODS[: LIKELIHOODS.index(at_least) + 1]
    likely = {fate: [finding for finding in of_fate if finding.tie in chosen] for fate, of_fate in findings.items()}
    return Scan(
        findings=tuple(likely["open"]),
        hidden=len(findings["open"]) - len(likely["open"]),
        pinned=len(likely["pinned"]),
        ignored=len(likely["ignored"]),
        at_least=at_least,
        files=len(files),
        unread=tuple(unread),
    )


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(_files_below(path))
        elif path.exists():
            yield path
        else:
            raise FileNotFoundError(f"scan: there is no {str(path)!r}.")


def _files_below(path: Path) -> Iterator[Path]:
    """Yield the files ``*.py`` in a folder and those in it, but for hidden folders and virtual environments."""
    for folder, folders, names in os.walk(path):
        folders[:] = [
            name for name in folders if not (name.startswith(".") or Path(folder, name, "pyvenv.cfg").exists())
        ]
        files = (Path(folder, name) for name in names if name.endswith(".py"))
        yield from (file for file in files if file.is_file())  # a broken link is none


def _of_file(source: Source, versions: dict[str, Versions]) -> list[tuple[Finding, _Fate]]:
    """Return what is found in a file, in the order of its lines, and whether it is to be shown."""
    fates: list[tuple[Finding, _Fate]] = []
    for node in source.nodes:
        findings = list(straight_through.findings(source, node))
        if isinstance(node, ast.Call | ast.BinOp) and source.has_gradient(node):
            findings += bounds.findings(source, node)
            if call := source.call(node):
                findings += calls.findings(source, call, versions)
                if call.name in _WHERE and len(call.operands) == 3:
                    findings += wheres.findings(source, call)
                    findings += branches.findings(source, call)
        for finding in findings:
            is_ignored = not source.ignored.isdisjoint(range(finding.line, finding.last_line + 1))
            is_pinned = any(finding.question in _DECIDED_BY.get(pin, ()) for pin in source.pins(node))
            fates.append((finding, "ignored" if is_ignored else "pinned" if is_pinned else "open"))
    return sorted(fates, key=lambda pair: (pair[0].line, pair[0].question))
