"""pyarrow, for the modules that speak Flight: the base install does without it, and a missing one is one sentence."""

from __future__ import annotations

from broker_edge.extras import needed

with needed("the Flight client"):
    import pyarrow as pa
    from pyarrow import flight

__all__ = ["flight", "pa"]
