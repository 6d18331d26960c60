"""Draw every op into docs/_gallery, for the page gallery.md."""

from pathlib import Path

from interop.parity import matrix
from interop.parity.plot import COLOURS, figure
from jaxclamp import OPS

FOLDER = Path(__file__).parent / "_gallery"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, op in OPS.items():
        figure(op, matrix([op], ["float32"], list(COLOURS))).savefig(FOLDER / f"{name}.svg")
    (FOLDER / "drawn").touch()
