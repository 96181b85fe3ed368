"""`python -m pipelines.silver`."""

import sys

from pipelines.silver import main

sys.exit(main())
