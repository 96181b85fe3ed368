"""`python -m pipelines.quality`."""

import sys

from pipelines.quality import main

sys.exit(main())
