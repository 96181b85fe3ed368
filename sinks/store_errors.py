"""What an object store answered, as one of our errors with one sentence.

deltalake and obstore report a store that refuses or does not answer by a text: a tree of causes with colours and the
answer's XML. An error of ours, or of Spark, may quote it. This module reads such texts only; it asks no store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker_edge.errors import StoreError, StoreRefusedError

_ADDRESS = re.compile(r"https?://[^\s?]+")
_CODE = re.compile(r"<Code>([^<]+)</Code>\s*(?:<Message>([^<]*)</Message>)?")
_REFUSED = re.compile(r"\b4(?!08|09|12|29)[0-9]{2} [A-Z]")
"""A status of HTTP that repeating does not change. 409 and 412 are about other writers."""
_PASSING = frozenset({"ExpiredToken", "RequestTimeout", "RequestTimeTooSkewed"})
"""Codes of S3 with such a status that a later attempt may not get: a restart reads secrets again, and the clock of a
machine that has just started is set soon."""
_CAUSE = "↳"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REASON_CHARACTERS_MAX = 200
_REMEDY = "check endpoint, bucket and credentials (storage.options, or AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on)"


def store_error(error: BaseException) -> StoreError | None:
    """The trouble of a store that `error` is, or that caused it, with address, cause and remedy; None for any other
    error. A missing file of a table is another one."""
    for one in _causes(error):
        if isinstance(one, StoreError):
            return one
        found = _read(str(one))
        if found is not None:
            return found
    return None


def kind_of(text: str) -> type[StoreError]:
    """StoreRefusedError for an answer that stays the same until somebody changes something. `text` is all of it."""
    code = _CODE.search(text)
    is_final = _REFUSED.search(text) is not None and (code is None or code[1] not in _PASSING)
    return StoreRefusedError if is_final else StoreError


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def _read(quoted: str) -> StoreError | None:
    if _CAUSE not in quoted:
        return None
    text = _COLOUR.sub("", quoted)
    address, code = _ADDRESS.search(text), _CODE.search(text)
    if address is None or (code is not None and code[1] == "NoSuchKey"):
        return None
    reason = (
        ": ".join(filter(None, code.groups()))
        if code is not None
        else text.rpartition(_CAUSE)[2].strip().split("\n")[0]
    )
    what = f"the object store refused or did not answer {address[0]}"
    return kind_of(text)(f"{what} ({reason[:_REASON_CHARACTERS_MAX].rstrip('.')}): {_REMEDY}")
