"""Writes one HTML page that needs no network: the parity matrix, pictures of ops, versions, how to reproduce it all."""

import importlib.metadata
import importlib.resources
import io
import platform
import re
from collections.abc import Iterable, Mapping, Sequence

import jinja2
import matplotlib
from markupsafe import Markup, escape

from interop.frameworks.registry import ADAPTERS
from interop.survey.matrix import Row
from interop.survey.show.plot import figure
from interop.survey.show.render import AGREES, CAPTION, DISAGREES, Tally, cells_of, tallies
from jaxclamp import Op

_VERSIONS = ("jaxclamp", "jax", "jaxlib", "torch", "numpy", "ml_dtypes")
# So that a page of the same numbers is the same text, whenever it is written.
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def picture(op: Op, rows: Iterable[Row]) -> str:
    """Draw ``op`` as an SVG element that takes its black from the page and shares no id with a second one."""
    # With a salt the ids are the same in each run; with fonttype none text stays text.
    with matplotlib.rc_context({"svg.hashsalt": op.name, "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        file = io.StringIO()
        figure(op, rows).savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = file.getvalue()
    # Within a page no XML declaration may stand, and no id twice.
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg[svg.index("<svg") :])
    for k, clip in enumerate(re.findall(r'<clipPath id="(\w+)"', svg)):  # Matplotlib makes these of memory addresses
        svg = svg.replace(clip, f"{op.name}-clip-{k}")
    return svg.replace("#000000", "currentColor")


def page(rows: Sequence[Row], pictures: Mapping[str, str], options: str = "") -> str:
    """Write the report.

    Args:
      rows: of the parity matrix.
      pictures: the SVG of each op, by name.
      options: those of the command line that chose the rows.
    """
    summary = tallies(rows)
    cards: dict[tuple[str, str], list[Tally]] = {}
    for tally in summary:
        cards.setdefault((tally.framework, tally.version), []).append(tally)
    headings, lines = cells_of(rows, summary)
    source = importlib.resources.files("interop.survey.show").joinpath("report.html.jinja").read_text("utf-8")
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # A browser may wrap such a text behind an underscore too, and never within a word.
    template.filters["wrapping"] = lambda text: escape(text).replace("_", Markup("_<wbr>"))
    return template.from_string(source).render(
        headings=headings,
        lines=lines,
        cards=cards,
        dtypes=list(dict.fromkeys(row.dtype for row in rows)),
        pictures=pictures,
        options=options,
        extras="plot,frameworks" if ADAPTERS.keys() & {tally.framework for tally in summary} else "plot",
        caption=CAPTION,
        AGREES=AGREES,
        DISAGREES=DISAGREES,
        versions={"Python": platform.python_version()} | {name: importlib.metadata.version(name) for name in _VERSIONS},
    )
