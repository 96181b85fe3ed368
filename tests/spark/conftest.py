"""Everything here runs for seconds, too short for the optimizing compiler and a parallel collector to pay off."""

from __future__ import annotations

import os

from pipelines.spark.java import SHORT_RUN_JVM

# In the environment, so that jobs started by tests have it too.
os.environ.setdefault("JAVA_TOOL_OPTIONS", SHORT_RUN_JVM)
