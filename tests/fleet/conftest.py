"""Tests of minutes on a cluster of machines: only `make test-fleet` collects them."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("HEADWATER_FLEET") else ["test_*.py"]
