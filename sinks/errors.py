"""The error of the sinks. There is only one, because a caller can only do one thing: show the message."""

from __future__ import annotations


class SinkError(Exception):
    """A table, or what should be written to it, is not as required; nothing was written."""
