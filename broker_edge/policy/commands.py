"""The signature of a command: the last field of the record, in a fixed form, over the exact bytes before it.

A device cuts the signature off and reads the bytes that were signed, so neither side needs a canonical form of
`params`. Which keys may sign, and what time it is, is decided elsewhere.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from broker_edge.artifacts.keys import SigningKey
from broker_edge.artifacts.manifest import Signature
from broker_edge.errors import RefusedError
from broker_edge.policy.signed import Signed

_TAIL = re.compile(
    rb',"signature":\{"algorithm":"ed25519","key_id":"([0-9a-f]{16})","expires_us":([0-9]{1,18}),'
    rb'"value":"([A-Za-z0-9+/]{86}==)"\}\}\Z'
)
_TAIL_BYTES_MAX = 256
_PREFIX = b"headwater command v1\n"


@dataclass(frozen=True, slots=True)
class SignedCommand:
    """`body` is the record without its signature: the bytes that were signed, and that count."""

    body: bytes
    expires_us: int
    signature: Signature

    @classmethod
    def of(cls, payload: bytes) -> SignedCommand | None:
        """None if the record has no signature in the fixed form."""
        # Only the end is searched, so that the cost does not depend on what the record contains.
        start = max(0, len(payload) - _TAIL_BYTES_MAX)
        found = _TAIL.search(payload, start)
        if found is None:
            return None
        id_, expires, value = found.groups()
        body = payload[: found.start()] + b"}"
        return cls(body, int(expires), Signature(id_.decode(), base64.b64decode(value)))

    def signed_bytes(self) -> bytes:
        return _message(self.body, self.expires_us)

    def signed(self) -> Signed:
        return Signed({}, (self.signature,))


def sign_command(payload: bytes, key: SigningKey, *, expires_us: int) -> bytes:
    """The record with the signature as its last field. Raises RefusedError for what is not an unsigned JSON object."""
    if not payload.startswith(b'{"') or not payload.endswith(b"}") or SignedCommand.of(payload) is not None:
        raise RefusedError("only an unsigned JSON object with at least one field can be signed as a command")
    signature = key.sign_bytes(_message(payload, expires_us))
    value = base64.b64encode(signature.value)
    tail = b',"signature":{"algorithm":"ed25519","key_id":"%s","expires_us":%d,"value":"%s"}}'
    return payload[:-1] + tail % (signature.key_id.encode(), expires_us, value)


def _message(body: bytes, expires_us: int) -> bytes:
    return _PREFIX + b"%d\n" % expires_us + body
