"""Import paths of the previous release: they give the same objects, and warn once with the new path."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import subprocess
import sys

import pytest

from broker_edge.errors import HeadwaterError
from broker_edge.fields import FieldTable
from broker_edge.moved import MOVED, OF_MODULES_THAT_STAYED, new_names

OLD_NAMES = (
    ("broker_edge.cli", "main", "headwater_cli"),
    ("broker_edge.torture.hurts.bits", "Bits", "broker_edge.torture.faults.bits"),
    ("pipelines.action_rows", "action_of", "actions.rows"),
    ("pipelines.action_rows", "arrow_of", "sinks.rows"),
    ("pipelines.action_store", "DeltalakeStore", "actions.store"),
    ("pipelines.action_store", "EngineFencedError", "broker_edge.errors"),
    ("pipelines.actions", "ActionJob", "actions.job"),
    ("pipelines.engine", "Action", "actions.engine"),
    ("pipelines.engine.tick", "tick", "actions.engine.tick"),
    ("pipelines.errors", "SettingsError", "broker_edge.errors"),
    ("pipelines.errors", "own_error", "pipelines.spark.errors"),
    ("pipelines.fleet_desk", "FleetDesk", "actions.fleet_desk"),
    ("pipelines.ingest_tables", "TablePlace", "pipelines.settings.places"),
    ("pipelines.session", "spark_session", "pipelines.spark.session"),
    ("pipelines.tables", "create_by_path", "sinks.tables"),
    ("pipelines.ingest_tables", "INGEST_GAPS", "sinks.tables"),
    ("sinks.errors", "SinkError", "broker_edge.errors"),
    ("sources.errors", "UnavailableError", "broker_edge.errors"),
    ("sources.flight", "LogServer", "sources.log_server"),
)


@pytest.mark.parametrize(("old", "name", "new"), OLD_NAMES)
def test_a_name_under_its_old_path_is_the_same_object(old: str, name: str, new: str) -> None:
    assert getattr(importlib.import_module(old), name) is getattr(importlib.import_module(new), name)


def test_a_name_that_changed_is_found_under_its_old_name() -> None:
    errors = importlib.import_module("sources.errors")
    assert errors.SourceError is HeadwaterError
    assert importlib.import_module("pipelines.tables").Table is FieldTable
    faults = importlib.import_module("broker_edge.torture.faults").FAULTS
    assert importlib.import_module("broker_edge.torture.hurts").HURTS is faults
    with pytest.warns(DeprecationWarning, match=r"sources\.SourceError is now broker_edge\.errors\.HeadwaterError"):
        assert importlib.import_module("sources").SourceError is HeadwaterError


@pytest.mark.parametrize("old", OF_MODULES_THAT_STAYED)
def test_a_name_that_left_its_module_is_found_there(old: str) -> None:
    module, _, name = old.rpartition(".")
    home, _, now = OF_MODULES_THAT_STAYED[old].rpartition(".")
    with pytest.warns(DeprecationWarning, match="the next release removes"):
        assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(home), now)
    with pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module(module).nothing


@pytest.mark.parametrize(
    "code",
    [
        "import broker_edge as b; b.broker, b.client, b.credentials, b.errors.FullError, b.stream, b.tls, b.values.Row",
        "import sources; sources.errors.SourceError, sources.flight.LogServer",
        "import sinks; sinks.bronze.write_bronze, sinks.table.Table, sinks.errors.SinkError",
        "import pipelines; pipelines.errors.SettingsError",
        "from sources import *; SourceError, LagListener",
        "from sinks import *; SinkError, Table, WriteHow",
    ],
)
def test_one_import_of_a_package_gives_what_it_gave(code: str) -> None:
    """In a new process, where nothing else has imported the modules."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("package", ["broker_edge", "sources", "sinks", "pipelines"])
def test_type_checkers_do_not_see_getattr(package: str) -> None:
    """They would accept every name of the package."""
    tree = ast.parse(inspect.getsource(importlib.import_module(package)))
    assert "__getattr__" not in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize("old", MOVED)
def test_every_old_path_leads_somewhere(old: str) -> None:
    for new in MOVED[old]:
        assert importlib.util.find_spec(new) is not None, new
    assert importlib.util.find_spec(old) is not None


def test_an_old_path_is_said_to_be_old_and_the_new_one_is_not() -> None:
    code = "import warnings; warnings.simplefilter('error'); import pipelines.engine.tick"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "DeprecationWarning: pipelines.engine is now actions.engine; the next release removes" in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", code.replace("pipelines.engine", "actions.engine")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_that_moved_runs_under_its_old_path() -> None:
    command = [sys.executable, "-m", "pipelines.jars", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m pipelines.spark.jars")
    assert "pipelines.jars is now pipelines.spark.jars" in done.stderr


def test_what_did_not_move_keeps_its_path_and_what_never_was_is_not_found() -> None:
    assert new_names("pipelines.telemetry") == new_names("pipelines.enginex") == ()
    assert importlib.util.find_spec("pipelines.enginex") is None
    with pytest.raises(ModuleNotFoundError, match=r"pipelines\.engine\.nothing"):
        importlib.import_module("pipelines.engine.nothing")
    with pytest.raises(ImportError, match="nothing"):
        exec("from pipelines.errors import nothing")
