"""Keys of tokens (JWT), and what a token is checked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from broker_edge.security.check import Check
from broker_edge.security.reading import Unreadable, read


def tokens(token: Mapping[str, Any]) -> Iterator[Check]:
    """Checks of `auth.token`; none where tokens are refused."""
    if not token["keys_file"]:
        return
    path = Path(token["keys_file"])
    for key, claim, who in (("issuer", "iss", "of any issuer"), ("audience", "aud", "for any other service")):
        if token[key]:
            yield Check("ok", "tokens", f"auth.token.{key}", f"`{claim}` has to be {token[key]}")
        else:
            found = f"`{claim}` is not checked: a token {who} with one of these keys is accepted"
            yield Check("warn", "tokens", f"auth.token.{key}", found, f"set auth.token.{key}")
    try:
        text = read(path)
    except Unreadable as error:
        yield Check("fail", "tokens", f"auth.token.keys_file {path}", str(error), "check the path and its permissions")
        return
    if "-----BEGIN" in text:
        found = "PEM keys have no id, so every key is tried and none can be retired by its id"
        yield Check("warn", "tokens", str(path), found, "use a JWKS whose keys have a `kid`")
        return
    try:
        keys = json.loads(text)["keys"]
        without = [number for number, key in enumerate(keys, 1) if not key.get("kid")]
    except (ValueError, KeyError, TypeError, AttributeError):
        yield Check("fail", "tokens", str(path), "it is neither a JWKS nor PEM", "write the JWKS of the issuer there")
        return
    for number in without:
        found = f"key {number} has no `kid`, so it is tried for every token"
        yield Check("warn", "tokens", str(path), found, "give each key a `kid`, and name it in the header of tokens")
    if not without:
        yield Check("ok", "tokens", str(path), f"{len(keys)} keys, each with a `kid`")
