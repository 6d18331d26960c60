"""The conventions by which tied operands share a gradient."""

from typing import Literal, TypeAlias, get_args

Convention: TypeAlias = Literal["min_norm", "inclusive", "exclusive", "balanced"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


def check_convention(name: str, ties: object) -> None:
    """Raise a ValueError of the function of that name, which lists the `CONVENTIONS`, if ``ties`` is none of them."""
    if ties not in CONVENTIONS:
        of_version = "; as_of takes a version" if str(ties).startswith(("torch", "jax")) else ""
        raise ValueError(
            f"{name}: ties={ties!r} is not a convention; choose one of {', '.join(map(repr, CONVENTIONS))}{of_version}."
        )
