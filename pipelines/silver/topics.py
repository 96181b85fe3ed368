"""MQTT topic filters as regular expressions, for engines that cannot match topics in another way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from broker_edge.errors import SettingsError


def topic_pattern(topic_filter: str) -> str:
    """A pattern for the whole topic that works in both Java and Python.

    MQTT 5, section 4.7: `+` matches one level, `#` the rest and its parent, and a leading wildcard never matches a `$`
    topic.
    """
    levels = topic_filter.split("/")
    if not topic_filter or "#" in levels[:-1] or any(len(one) > 1 and set(one) & {"+", "#"} for one in levels):
        raise SettingsError(
            f"{topic_filter!r} is not an MQTT topic filter: + and # stand for whole levels, # comes last"
        )
    parts = ["[^/]*" if level == "+" else re.escape(level) for level in levels]
    if levels[-1] == "#":
        before = "/".join(parts[:-1])
        body = f"{before}(?:/.*)?" if before else ".*"
    else:
        body = "/".join(parts)
    guard = r"(?!\$)" if levels[0] in ("+", "#") else ""
    return rf"(?s)\A{guard}{body}\z"


def open_level(topic_filters: Sequence[str]) -> int | None:
    """The first level, from 0, at which each of the filters has a `+`."""
    found = [{at for at, level in enumerate(one.split("/")) if level == "+"} for one in topic_filters]
    return min(set.intersection(*found), default=None)
