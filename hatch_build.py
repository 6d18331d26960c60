"""The description on a package index: README without links and pictures that lead into the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!https?:)[^)]*\)")


def description(readme: str) -> str:
    """Leave out pictures of the repository, and of links into it all but their text."""
    return _LINK.sub(r"\1", _PICTURE.sub("", readme))


class Description(MetadataHookInterface):
    """Called by hatchling, as pyproject.toml says."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = description((Path(self.root) / "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
