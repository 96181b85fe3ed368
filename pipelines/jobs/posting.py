"""Posts JSON to the address of a receiver: alerts of jobs, announcements of actions. Neither logs nor repeats."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from typing import Any

from broker_edge.credentials import REFERENCE, resolve
from broker_edge.errors import SettingsError

POST_S = 5.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without the body, and look accepted."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def is_address(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def address_of(given: str, *, what: str) -> str:
    """The address that a setting is, or to which it refers. Raises ConfigError, which does not repeat it: whoever knows
    such an address can post to it."""
    if not is_address(given) and not REFERENCE.fullmatch(given):
        raise SettingsError(f"{what} must be an http:// or https:// address, or a reference to it: file:PATH, env:NAME")
    url = given if is_address(given) else resolve(given, what=what)
    if not is_address(url):
        raise SettingsError(f"{what} refers to a text that is not an http:// or https:// address")
    return url


def post(url: str, body: bytes, *, timeout_s: float = POST_S) -> None:
    """Raises OSError or ValueError unless the receiver answers with 2xx. `timeout_s` is how long it may be silent."""
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"}, method="POST")
    try:
        with _opener.open(request, timeout=timeout_s):
            pass
    except HTTPException as error:
        # Its text may repeat the address, which may contain a token.
        raise OSError(f"no valid HTTP answer ({type(error).__name__})") from None
