"""`python -m headwater_cli` is `headwater`."""

from __future__ import annotations

import sys

from headwater_cli import main

sys.exit(main())
