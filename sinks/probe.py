"""Refuses a place that cannot be written or cannot commit safely, before the first row is written to it.

A Delta commit must fail if the version already exists, which needs a PUT with `If-None-Match: *`. Some stores accept
the header and ignore it: two writers then overwrite each other's commits, and rows are lost without an error. The probe
writes one new key twice, in a folder of its own that Delta's readers ignore.
"""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from broker_edge.errors import StoreRefusedError, TableStoreError
from sinks.store import CONNECT_S, RETRIES, RETRY_S, StoreAccess, is_remote
from sinks.store_errors import kind_of

if TYPE_CHECKING:
    from obstore.store import S3Config

FOLDER = "_headwater_probe"
_REASON_CHARACTERS_MAX = 500


@cache
def require_safe_commits(path: str, access: StoreAccess) -> None:
    """Raises StoreError if the store of `path`, the path of a table or of a folder of tables, does not answer, and
    StoreRefusedError if it is not usable. Asks once per path and process, in three requests; does nothing for local
    folders."""
    if not is_remote(path):
        return
    from obstore.exceptions import BaseError  # Only where a store is remote.

    try:
        is_safe = _second_put_fails(path, access)
    except (BaseError, OSError, ValueError) as error:
        # The library adds the store's XML, its own values and a trace after the first lines.
        text = " ".join(str(error).split("Debug source")[0].partition("<?xml")[0].split()).rstrip(": ")
        # Before it stands what it means in general, and the path once more.
        reason = text[max(0, text.find("Error performing")) :][:_REASON_CHARACTERS_MAX]
        raise kind_of(str(error))(
            f"cannot write to {path} ({reason}): check the bucket, its permissions and storage.options"
        ) from error
    if not is_safe:
        raise StoreRefusedError(
            f"the store of {path} has no conditional PUT (If-None-Match), so that concurrent commits would lose rows: "
            "use a store that has it"
        )


def require_writable(table: str) -> None:
    """Raises TableStoreError if this user may not write the table at this path. deltalake would panic in a thread of
    its own, and name the file but not what to do. Does nothing for object stores, and where there is no table."""
    if is_remote(table):
        return
    folder = Path(table.removeprefix("file://"))
    for one in (folder, folder / "_delta_log"):
        if one.is_dir() and not os.access(one, os.W_OK | os.X_OK):
            is_mounted_so = bool(os.statvfs(one).f_flag & os.ST_RDONLY)
            why = "its file system is mounted read-only" if is_mounted_so else "this user has no right to write there"
            raise TableStoreError(f"nothing was written: {one}: {why}")


def _second_put_fails(path: str, access: StoreAccess) -> bool:
    from obstore.exceptions import AlreadyExistsError
    from obstore.store import from_url

    options = access.object_store()
    store = from_url(
        path,
        config=cast("S3Config", {name: value for name, value in options.items() if name != "aws_allow_http"}),
        client_options={
            "allow_http": options.get("aws_allow_http") == "true",
            "connect_timeout": timedelta(seconds=CONNECT_S),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
    )
    key = f"{FOLDER}/{uuid.uuid4().hex}"
    store.put(key, b"first", mode="create")
    try:
        store.put(key, b"second", mode="create")
    except AlreadyExistsError:
        return True
    finally:
        store.delete(key)
    return False
