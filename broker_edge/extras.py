"""The extras of the wheel: which of them has a package that is not installed, and the command that installs it.

The base install is the broker, MQTT and the command line. What needs more asks here, so that every command and every
public module says the same sentence in place of a traceback. pyproject.toml lists the same extras; a test compares
them. Nothing here imports what it asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from broker_edge.errors import MissingExtraError

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "client": {"pyarrow": "pyarrow"},
    "device": {"gmqtt": "gmqtt", "websockets": "websockets"},
    "spark": {
        "pyarrow": "pyarrow",
        "pyspark": "pyspark",
        "delta": "delta-spark",
        "deltalake": "deltalake",
        "obstore": "obstore",
        "pandas": "pandas",
        "yaml": "PyYAML",
        "pydantic": "pydantic",
        "cbor2": "cbor2",
    },
    "connect": {
        "grpc": "grpcio",
        "grpc_status": "grpcio-status",
        "google.rpc": "googleapis-common-protos",
        "zstandard": "zstandard",
    },
    "console": {"starlette": "starlette", "uvicorn": "uvicorn"},
    "quality": {"great_expectations": "great-expectations"},
    "notebooks": {
        "vega_datasets": "vega-datasets",
        "duckdb": "duckdb",
        "polars": "polars",
        "matplotlib": "matplotlib",
        "nbclient": "nbclient",
        "ipykernel": "ipykernel",
    },
}
"""Module to distribution, by extra."""


def require(what: str, *modules: str) -> None:
    """Raises MissingExtraError if any of these modules is not installed; `what` begins its sentence: "the demo"."""
    absent = [name for name in modules if not is_installed(name)]
    if absent:
        raise _missing(what, absent)


def is_installed(module: str) -> bool:
    """Whether there is such a module; it is not imported."""
    from importlib.util import find_spec  # The command line starts without it.

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # Not even the package that it is in.


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Around imports: a module that is not installed and belongs to an extra becomes a MissingExtraError."""
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        found = of_import(error, what)
        if found is None:
            raise
        raise found from None


def of_import(error: ModuleNotFoundError, what: str = "this") -> MissingExtraError | None:
    """What to say about a failed import; None if the module belongs to no extra."""
    parts = (error.name or "").split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    known = next((name for name in names if any(name in modules for modules in EXTRAS.values())), None)
    return None if known is None else _missing(what, [known])


def _missing(what: str, modules: Iterable[str]) -> MissingExtraError:
    extras, packages = [], []
    for name in modules:
        extra = next(extra for extra, known in EXTRAS.items() if name in known)
        packages.append(EXTRAS[extra][name])
        if extra not in extras:
            extras.append(extra)
    wanted = [one for one in extras if not any(EXTRAS[one].keys() < EXTRAS[other].keys() for other in extras)]
    first, last = ", ".join(packages[:-1]), packages[-1]
    named, verb = (f"{first} and {last}", "are") if first else (last, "is")
    return MissingExtraError(
        f"{what} needs {named}, which {verb} not installed: pip install 'headwater[{','.join(wanted)}]'"
    )
