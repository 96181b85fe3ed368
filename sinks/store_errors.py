"""What an object store answered, in one sentence.

deltalake reports a store that refuses or does not answer as an OSError whose text is a tree of causes with colours and
the answer's XML. This module reads that text only; it asks no store.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"https?://[^\s?]+")
_CODE = re.compile(r"<Code>([^<]+)</Code>\s*(?:<Message>([^<]*)</Message>)?")
_CAUSE = "↳"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REASON_CHARACTERS_MAX = 200


def store_sentence(error: BaseException) -> str | None:
    """The sentence for an error of a store, with address, cause and remedy; None for any other error."""
    text = _COLOUR.sub("", str(error))
    address = _ADDRESS.search(text)
    if not isinstance(error, OSError) or _CAUSE not in text or address is None:
        return None
    code = _CODE.search(text)
    reason = (
        ": ".join(filter(None, code.groups()))
        if code is not None
        else text.rpartition(_CAUSE)[2].strip().split("\n")[0]
    )
    return (
        f"the object store refused or did not answer {address[0]} ({reason[:_REASON_CHARACTERS_MAX].rstrip('.')}): "
        "check endpoint, bucket and credentials (storage.options, or AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on)"
    )
