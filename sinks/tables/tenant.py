"""The column `tenant`, which every table has."""

from __future__ import annotations

from broker_edge.fields import Field

DEFAULT_TENANT = "default"

TENANT = Field("tenant", "string", "owner of the row; null means default")
