"""Texts from outside in SQL for deltalake."""

from __future__ import annotations


def literal(text: str) -> str:
    """A text as a literal of DataFusion's SQL, in which a backslash is an ordinary character."""
    return "'" + text.replace("'", "''") + "'"
