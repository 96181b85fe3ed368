"""Which files of a broker other users of its machine may read or change."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from broker_edge.security.check import Check

_OF_OTHERS = 0o077
_OF_STRANGERS = 0o037
"""A group may read a secret, for example that of the broker, as the broker itself accepts."""
_TO_WRITE = 0o022
_FILES_MAX = 10_000
_TLS_LISTENERS = ("mqtts", "wss", "flight", "admin")


def modes(settings: Mapping[str, Any], folder: Path | None) -> Iterator[Check]:
    """One check for each file or folder that is too open, or one `ok` for all of them."""
    found = list(_too_open(settings, folder))
    yield from found or [Check("ok", "file modes", "settings", "secrets are for the owner of the broker alone")]


def _too_open(settings: Mapping[str, Any], folder: Path | None) -> Iterator[Check]:
    data = Path(settings["data_dir"])
    rights, secrets = dict(_rights(settings)), dict(_secrets(settings))
    for path, what in {data: "data_dir", **secrets, **rights}.items():
        if isinstance(seen := _seen(path), str):
            remedy = "run it as the user and in the working folder of the broker, after its start"
            yield Check("warn", "file modes", f"{what} {path}", f"not looked at ({seen})", remedy)
    if (mode := _mode(data)) is not None and mode & _OF_OTHERS:
        found = f"mode {mode:03o}: other users of this machine may read records and sessions"
        yield Check("fail", "file modes", f"data_dir {data}", found, f"chmod -R go= {data}")
    beside = {path: "beside the settings" for path in _keys_below(folder) if path not in secrets}
    for path, what in (secrets | beside).items():
        if (mode := _mode(path)) is not None and mode & _OF_STRANGERS:
            found = f"mode {mode:03o}: other users of this machine may use it"
            yield Check("fail", "file modes", f"{what} {path}", found, f"chmod 600 {path}")
    for parent in sorted({path.parent for path in (*secrets, *rights)}):
        seen = _seen(parent)
        if isinstance(seen, int) and seen & stat.S_IWOTH and not seen & stat.S_ISVTX:
            found = f"mode {seen & 0o777:03o}: everybody on this machine may replace the files in it"
            yield Check("fail", "file modes", f"folder {parent}", found, f"chmod o-w {parent}")
    for path, what in rights.items():
        if (mode := _mode(path)) is not None and mode & _TO_WRITE:
            found = f"mode {mode:03o}: other users of this machine may give themselves rights"
            yield Check("fail", "file modes", f"{what} {path}", found, f"chmod go-w {path}")


def _mode(path: Path) -> int | None:
    """None for what cannot be looked at."""
    found = _seen(path)
    return found & 0o777 if isinstance(found, int) else None


def _seen(path: Path) -> int | str:
    """The mode with its special bits, or why there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return error.strerror or str(error)


def _secrets(settings: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if file := settings["auth"]["password_file"]:
        yield Path(file), "auth.password_file"
    for name in _TLS_LISTENERS:
        if file := settings["listeners"][name]["tls"]["key"]:
            yield Path(file), f"listeners.{name}.tls.key"


def _rights(settings: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Files that others may read, and that decide who gets in."""
    for key, file in (
        ("auth.acl_file", settings["auth"]["acl_file"]),
        ("auth.token.keys_file", settings["auth"]["token"]["keys_file"]),
    ):
        if file:
            yield Path(file), key
    for name in _TLS_LISTENERS:
        for part in ("cert", "client_ca", "crl"):
            if file := settings["listeners"][name]["tls"][part]:
                yield Path(file), f"listeners.{name}.tls.{part}"


def _keys_below(folder: Path | None) -> Iterator[Path]:
    """Keys and passwords in the folder of the settings and those directly in it, as `headwater init` writes them."""
    if folder is None:
        return
    found = (
        path
        for pattern in ("*.key", "*.password", "*/*.key", "*/*.password", "secrets/devices")
        for path in folder.glob(pattern)
    )
    yield from sorted(itertools.islice(found, _FILES_MAX))
