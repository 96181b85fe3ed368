"""A local Spark session and what it needs: Java, the Delta jars, workers that start fast, an orderly end.

Importing this package imports nothing: Spark's worker daemon is one of its modules, and forks.
"""
