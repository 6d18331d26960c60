"""Write the generated parts of the documentation: the table of all ops, in docs/ops.md."""

import re
from pathlib import Path

from interop.parity.overview import overview

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- ops: .*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """What each page with a generated part has to say."""
    table, file = overview(), ROOT / "docs" / "ops.md"
    return {file: BLOCK.sub(lambda match: match[1] + table + match[3], file.read_text("utf-8"))}


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, "utf-8")
