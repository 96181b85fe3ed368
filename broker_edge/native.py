"""The native module, which is the broker."""

from __future__ import annotations

import importlib
from typing import Any

from broker_edge.errors import StartError


def native() -> Any:
    """The native module, imported only when a broker is created, because a client does not need it."""
    try:
        _core = importlib.import_module("broker_edge._core")
    except ImportError as error:
        raise StartError(
            f"the native module of headwater is missing ({error}): install the wheel, or run `make build` in a checkout"
        ) from error
    return _core
