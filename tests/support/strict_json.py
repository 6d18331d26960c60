"""JSON as its standard has it."""

import json
from typing import Any, NoReturn


def strictly(text: str) -> Any:
    """Read JSON without the NaN and Infinity that Python adds to it."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
