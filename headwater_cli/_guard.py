"""The options that give a device of the command line a guard: `--root`, `--product`, `--hardware`, `--floor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater_cli.signing import load_root

if TYPE_CHECKING:
    from broker_edge.device import GuardSettings
    from broker_edge.policy import Floor

RootOption = Annotated[
    Path | None,
    typer.Option("--root", metavar="FILE.json", help="Key list; the device then accepts only what it allows."),
]
ProductOption = Annotated[str | None, typer.Option("--product", help="Its product; with --root.")]
HardwareOption = Annotated[
    list[str] | None,
    typer.Option("--hardware", metavar="ID", help="Its hardware; with --root. Repeated: devices take turns."),
]
FloorOption = Annotated[
    str | None, typer.Option("--floor", metavar="ORDER:VERSION", help="Oldest version it accepts: semver:1.2.0.")
]


def guards_of(
    root: Path | None, product: str | None, hardware: list[str] | None, floor: str | None, *, other_trust: bool
) -> tuple[GuardSettings, ...]:
    """A guard for each hardware; empty without `--root`. Usage errors for options that do not fit together."""
    from broker_edge.device import GuardSettings

    if root is None:
        if product or hardware or floor:
            raise typer.BadParameter("--product, --hardware and --floor go with --root FILE.json")
        return ()
    if not product or not hardware:
        raise typer.BadParameter("--root needs --product and --hardware: what the device is")
    if other_trust:
        raise typer.BadParameter("give --root, or --trust and --allow-unsigned: a key list replaces single keys")
    lowest, found = None if floor is None else _floor(floor), load_root(root)
    return tuple(GuardSettings(found, product, one, lowest) for one in hardware)


def _floor(text: str) -> Floor:
    from broker_edge.policy import Floor, PolicyError, VersionOrder

    order, _, version = text.partition(":")
    try:
        return Floor(VersionOrder(order), version)
    except (ValueError, PolicyError) as error:
        raise typer.BadParameter(f"--floor is ORDER:VERSION such as semver:1.2.0 or pep440:1.2, not {text}") from error
