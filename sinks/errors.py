"""Errors of the sinks: one base, because a caller can do the same about all of them, which is to read the sentence."""

from __future__ import annotations


class SinkError(Exception):
    """A table, or what was to be written into it, is not as it must be; nothing was written."""
