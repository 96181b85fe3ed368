"""Shared by tests: fakes of the broker's Flight service and ways to run the real one."""
