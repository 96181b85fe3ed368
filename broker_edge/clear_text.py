"""A warning before a password or a token leaves this machine without TLS.

It refuses nothing, because a tunnel may protect the connection, and it opens none.
"""

from __future__ import annotations

import ipaddress
import logging
from functools import cache

_LOGGER = logging.getLogger(__name__)


@cache
def warn_in_clear(address: str, host: str, scheme: str) -> None:
    """Warns that `address` has no TLS, once per address and process, unless `host` is this machine. `scheme` is the one
    to use."""
    if not is_loopback(host):
        _LOGGER.warning(
            "%s has no TLS: others on the network can read the password or token; write %s://", address, scheme
        )


def is_loopback(host: str) -> bool:
    """Whether a name or an address always stands for this machine. No name is resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        name = host.rstrip(".").lower()
        return name == "localhost" or name.endswith(".localhost")
