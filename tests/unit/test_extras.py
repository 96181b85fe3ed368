"""The extras of the wheel: the code knows those of pyproject.toml, and an absent package is one sentence, no traceback.

A package is absent here as far as an import goes: `sys.modules` says so in a process of its own. `tests/packaging`
tries the same with the wheel alone.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from broker_edge.errors import MissingExtraError, SetupError
from broker_edge.extras import EXTRAS, is_installed, needed, require
from headwater_cli._nouns import NOUNS

ROOT = Path(__file__).parents[2]
# typer needs pydantic, too, so it is always there.
OPTIONAL = tuple(module for modules in EXTRAS.values() for module in modules if module != "pydantic")


def without(*modules: str, code: str, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and all output of `code`, where importing these modules fails."""
    blocked = f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout.strip()


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {
        extra: {canonicalize_name(Requirement(text).name) for text in texts}
        for extra, texts in project["optional-dependencies"].items()
        if extra != "dev"
    }
    assert {extra: {canonicalize_name(name) for name in modules.values()} for extra, modules in EXTRAS.items()} == asked


def test_each_module_belongs_to_its_distribution() -> None:
    there = packages_distributions()
    for modules in EXTRAS.values():
        for module, distribution in modules.items():
            owners = {canonicalize_name(name) for name in there[module.partition(".")[0]]}
            assert canonicalize_name(distribution) in owners, module


@pytest.mark.parametrize(
    ("modules", "sentence"),
    [
        (("pyarrow",), "it needs pyarrow, which is not installed: pip install 'headwater[client]'"),
        (("gmqtt",), "it needs gmqtt, which is not installed: pip install 'headwater[device]'"),
        (
            ("great_expectations",),
            "it needs great-expectations, which is not installed: pip install 'headwater[quality]'",
        ),
        (
            ("google.rpc",),
            "it needs googleapis-common-protos, which is not installed: pip install 'headwater[connect]'",
        ),
        (
            ("pyarrow", "delta", "yaml"),
            "it needs pyarrow, delta-spark and PyYAML, which are not installed: pip install 'headwater[spark]'",
        ),
        (
            ("pyspark", "vega_datasets"),
            "it needs pyspark and vega-datasets, which are not installed: pip install 'headwater[spark,notebooks]'",
        ),
    ],
)
def test_a_sentence_names_the_packages_and_the_command(
    modules: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        require("it", *modules)
    assert str(caught.value) == sentence


def test_what_is_installed_is_not_asked_for_and_not_imported() -> None:
    require("it", *OPTIONAL)
    code = "from broker_edge.extras import require\nrequire('it', 'pyspark')\nprint('pyspark' in sys.modules)"
    assert without(code=code) == (0, "False")


def test_the_error_is_one_of_ours_and_a_failed_import_and_survives_a_process() -> None:
    error = pickle.loads(pickle.dumps(MissingExtraError("the sentence")))
    assert isinstance(error, SetupError)
    assert isinstance(error, ImportError)
    assert str(error) == "the sentence"


def test_other_failed_imports_stay_what_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
        with needed("it"):
            __import__("no_such_module")
    assert not isinstance(caught.value, MissingExtraError)
    assert not is_installed("no_such_module.inside")


STATEMENTS = {
    "from broker_edge import Client": "client",
    "from broker_edge import RecordStream": "client",
    "import broker_edge.client": "client",
    "from broker_edge.artifacts import ArtifactStore": "client",
    "from sources import register": "spark",
    "from pipelines.spark.session import spark_session": "spark",
}


def test_a_name_that_needs_an_extra_says_which() -> None:
    code = f"""
for statement in {tuple(STATEMENTS)!r}:
    try:
        exec(statement)
        print()
    except ImportError as error:
        print(error)
"""
    _, said = without(*OPTIONAL, code=code)
    for line, (statement, extra) in zip(said.splitlines(), STATEMENTS.items(), strict=True):
        assert line.endswith(f"is not installed: pip install 'headwater[{extra}]'"), statement


def test_the_rest_needs_no_extra() -> None:
    code = "from broker_edge import Broker, Credentials, Row\nimport broker_edge.admin, broker_edge.policy"
    assert without(*OPTIONAL, code=code) == (0, "")


def test_a_device_needs_its_own_extra_only() -> None:
    others = [module for module in OPTIONAL if module not in EXTRAS["device"]]
    assert without(*others, code="from broker_edge.device import Agent, Fleet, Updater") == (0, "")


# In one process: each of them would take longer to start than to answer.
_COMMANDS = """
import io, json
from contextlib import redirect_stderr, redirect_stdout
from headwater_cli import main
for words in json.loads(sys.argv[1]):
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(said):
        code = main(words)
    print(json.dumps([code, said.getvalue()]))
"""


def commands_without(*modules: str, commands: list[list[str]]) -> list[tuple[int, str]]:
    """Exit code and all output of each."""
    _, said = without(*modules, code=_COMMANDS, arguments=(json.dumps(commands),))
    return [(code, text) for code, text in map(json.loads, said.splitlines())]


def test_a_command_says_which_extra_it_needs() -> None:
    commands = {
        "tail a --no-follow": "client",
        "topics": "client",
        "offsets": "client",
        "groups list": "client",
        "artifacts list": "client",
        "torture": "client",
        "demo": "spark,device,notebooks",
        "jobs run telemetry": "spark",
        "spark pack": "spark",
        "setup spark": "spark",
        "actions list": "spark",
        "rollout example": "spark",
        "devices list": "spark",
        "devices simulate 1": "device",
        "artifacts withdraw fw 1": "spark",
    }
    answers = commands_without(*OPTIONAL, commands=[text.split() for text in commands])
    for (text, extras), (code, said) in zip(commands.items(), answers, strict=True):
        assert said.startswith("headwater: "), (text, said)
        assert said.endswith(f"not installed: pip install 'headwater[{extras}]'\n"), (text, said)
        assert said.count("\n") == 1, (text, said)
        assert code == 5, text


def test_every_command_but_torture_shows_its_help_without_extras() -> None:
    # The help of two others is that of native code, which writes past the process's own streams.
    nouns = [noun for noun in NOUNS if noun not in ("torture", "broker", "bench")]
    for noun, (code, said) in zip(
        nouns, commands_without(*OPTIONAL, commands=[[noun, "--help"] for noun in nouns]), strict=True
    ):
        assert code == 0, (noun, said)
        assert "not installed" not in said


def test_checks_of_strangers_go_on_without_the_flight_client() -> None:
    code = """
from broker_edge.security.doors import Door
from broker_edge.security.outside import _flight
(found,) = _flight(Door("flight", "127.0.0.1", 1, has_tls=False, is_beyond=False), 1.0)
print(found.state, found.found, found.remedy, sep="|")
"""
    wanted = "the Flight client needs pyarrow, which is not installed|pip install 'headwater[client]'"
    assert without("pyarrow", code=code) == (0, f"warn|calls of strangers were not tried: {wanted}")
