"""Keeps old import paths working for one release, with a DeprecationWarning that names the new path.

A module imported by its old path is the new module itself, so classes stay identical; `python -m` with an old path runs
the new module. Importing `broker_edge` installs this, and every other package imports `broker_edge`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    # Each process of ours imports this module, and these would take longer than all the rest of it.
    Loader = MetaPathFinder = object

MOVED: Mapping[str, tuple[str, ...]] = {
    "broker_edge.cli": ("headwater_cli",),
    "broker_edge.torture.hurts": ("broker_edge.torture.faults",),
    "pipelines.action_rows": ("actions.rows", "sinks.rows"),
    "pipelines.action_store": ("actions.store", "broker_edge.errors"),
    "pipelines.engine": ("actions.engine",),
    "pipelines.errors": ("broker_edge.errors", "pipelines.spark.errors"),
    "pipelines.event_log": ("actions.event_log",),
    "pipelines.fleet_desk": ("actions.fleet_desk",),
    "pipelines.halving": ("actions.halving",),
    "pipelines.ingest_tables": ("pipelines.settings.places", "sinks.tables"),
    "pipelines.jars": ("pipelines.spark.jars",),
    "pipelines.java": ("pipelines.spark.java",),
    "pipelines.job": ("pipelines.jobs.process",),
    "pipelines.job_options": ("pipelines.settings.job_options",),
    "pipelines.jobs.catalogue": ("pipelines.catalogue",),
    "pipelines.jobs.command": ("pipelines.run_jobs",),
    "pipelines.json_fields": ("actions.engine.json_fields",),
    "pipelines.jvm_end": ("pipelines.spark.jvm_end",),
    "pipelines.quality.rules": ("pipelines.silver.rules",),
    "pipelines.session": ("pipelines.spark.session",),
    "pipelines.sql_text": ("sinks.sql_text",),
    "pipelines.status_batch": ("actions.status_batch",),
    "pipelines.status_rows": ("actions.status_rows",),
    "pipelines.table_query": ("sinks.table_query",),
    "pipelines.tables": ("sinks.tables",),
    "pipelines.uplink_status": ("actions.uplink_status",),
    "pipelines.worker_daemon": ("pipelines.spark.worker_daemon",),
    "pipelines.worker_python": ("pipelines.spark.worker_python",),
    "pipelines.yaml_file": ("pipelines.settings.yaml_file",),
    "sinks.errors": ("broker_edge.errors",),
    "sources.errors": ("broker_edge.errors",),
    "sources.flight": ("sources.log_server",),
}
"""Old module to new ones; if there are several, each name is searched in this order. The submodules of a moved package
moved with it."""

RENAMED: Mapping[str, str] = {
    "broker_edge.torture.hurts.HURTS": "FAULTS",
    "pipelines.tables.Column": "Field",
    "pipelines.tables.Table": "FieldTable",
    "sources.errors.SourceError": "HeadwaterError",
}
"""Old name in a module that moved to its name in the new one."""

OF_MODULES_THAT_STAYED: Mapping[str, str] = {
    "broker_edge.errors.from_flight": "broker_edge.flight.from_flight",
    "broker_edge.torture.Fault": "broker_edge.torture.report.Finding",
    "pipelines.actions.Publisher": "actions.job.Publisher",
    "pipelines.jobs.run": "pipelines.run_jobs.run",
    "sources.SourceError": "broker_edge.errors.HeadwaterError",
}
"""Old name in a module that kept its path to where the object is now. Each of these modules has a
`__getattr__`."""

_ROOTS = frozenset(old.partition(".")[0] for old in MOVED)


def install() -> None:
    """Makes the old paths importable. Repeated calls are harmless."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First, because below a moved package the default finder would load each file again under its old name.
        sys.meta_path.insert(0, _Finder())


def new_names(old: str) -> tuple[str, ...]:
    """The modules that now contain what `old` contained; empty if the path did not move."""
    parent, below = old, ""
    while parent:
        if parent in MOVED:
            return tuple(f"{new}{below}" for new in MOVED[parent])
        parent, _, last = parent.rpartition(".")
        below = f".{last}{below}"
    return ()


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _ROOTS:
            return None
        news = new_names(fullname)
        if not news:
            return None
        from importlib.util import find_spec

        return ModuleSpec(fullname, _Loader(news)) if find_spec(news[0]) is not None else None


class _Loader(Loader):
    def __init__(self, news: tuple[str, ...]) -> None:
        self._news = news

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _warn(module.__name__, self._news)
        modules = [importlib.import_module(new) for new in self._news]
        if len(modules) == 1 and not any(old.rpartition(".")[0] == module.__name__ for old in RENAMED):
            sys.modules[module.__name__] = modules[0]
            return

        def of_one(name: str) -> Any:
            name = RENAMED.get(f"{module.__name__}.{name}", name)
            for one in modules:
                if hasattr(one, name):
                    return getattr(one, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__dict__["__getattr__"] = of_one
        if len(modules) == 1 and hasattr(modules[0], "__path__"):
            module.__path__ = modules[0].__path__

    def get_code(self, fullname: str) -> CodeType:
        """The code that `python -m` runs. It warns itself, because Python shows such warnings only of the program."""
        warn = f"import warnings; warnings.warn({_sentence(fullname, self._news[:1])!r}, DeprecationWarning)"
        run = f"import runpy; runpy.run_module({self._news[0]!r}, run_name='__main__', alter_sys=True)"
        return compile(f"{warn}\n{run}", fullname, "exec")


def old_names(module: str) -> Callable[[str], object]:
    """The `__getattr__` of a module from which names of `OF_MODULES_THAT_STAYED` moved."""

    def of_one(name: str) -> object:
        new = OF_MODULES_THAT_STAYED.get(f"{module}.{name}")
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", (new,))
        home, _, last = new.rpartition(".")
        return getattr(importlib.import_module(home), last)

    return of_one


def _warn(old: str, news: tuple[str, ...]) -> None:
    warnings.warn(_sentence(old, news), DeprecationWarning, stacklevel=3)


def _sentence(old: str, news: tuple[str, ...]) -> str:
    return f"{old} is now {' and '.join(news)}; the next release removes the old path"
