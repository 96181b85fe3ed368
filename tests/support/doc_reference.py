"""The pages of `docs/reference`, made from the declarations in the code, so that none of them can be out of date.

Each function returns a whole page. `HEADWATER_WRITE_DOCS=1` makes the tests write the pages instead of comparing them.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer

from broker_edge.fields import RECORD
from headwater_cli import app
from sinks import tables
from sinks.tables.views import VIEWS
from support.doc_blocks import ROOT, read

WIDTH = 120
_MADE = "<!-- Made by `make reference`; a test fails when this page is out of date. -->"
_KIND = {"boolean": "true or false", "integer": "whole number", "string": "text", "array": "list", "number": "number"}
TABLE_FAMILIES = (
    ("Records", (RECORD, tables.BRONZE, tables.SILVER)),
    ("Beside silver", (tables.QUARANTINE, tables.QUARANTINE_ARCHIVE, tables.INGEST_GAPS, tables.DQ_RESULTS)),
    (
        "Actions",
        (
            tables.ACTIONS,
            tables.SELECTORS,
            tables.ACTION_REQUESTS,
            tables.ACTION_TARGETS,
            tables.ACTION_STATE,
            tables.ACTION_EVENTS,
            tables.ACTION_EVENTS_ARCHIVE,
            tables.ACTION_TARGETS_ARCHIVE,
            tables.ACTION_REQUESTS_ARCHIVE,
            tables.ACTION_JOURNAL,
            tables.BROKER_LOGS,
        ),
    ),
    ("Devices", (tables.DEVICES, tables.DEVICE_STATE, tables.ARTIFACTS)),
)
_SIZES = re.compile(r"\bTiB\b")
_TIMES = re.compile(r"\bms\b")


def check(page: str, text: str) -> None:
    """The page is `text`; with HEADWATER_WRITE_DOCS it becomes that."""
    path = ROOT / "docs" / "reference" / page
    if os.environ.get("HEADWATER_WRITE_DOCS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    is_current = path.exists() and path.read_text(encoding="utf-8") == text
    assert is_current, f"docs/reference/{page} is out of date: run `make reference` and commit the page"


def broker_settings() -> str:
    """From conf/broker.schema.json, which the broker prints and a test of it compares."""
    schema = json.loads(read("conf/broker.schema.json"))
    parts = [
        "# Settings of the broker",
        _MADE,
        _wrapped(
            "A setting is a key of the YAML file, `--set KEY=VALUE`, or an environment variable: `log.sync` is "
            "`HEADWATER_LOG__SYNC`. The command line overrides the environment, the environment the file. A size is in "
            "bytes or has a unit (`KiB`, `MiB`, `GiB`, `TiB`, `KB`, `MB`, `GB`); a time has `ms`, `s`, `m`, `h` or "
            "`d`. [conf/broker.yaml](../../conf/broker.yaml) has all of them with their defaults; "
            "`headwaterd --check` checks a file."
        ),
    ]
    rows: dict[str, list[str]] = {}
    for key, given in _leaves(schema):
        group = key.partition(".")[0] if "." in key else "(top)"
        rows.setdefault(group, []).append(
            f"| `{key}` | {_default(given)} | {_limits(given)} | {_cell(given.get('description', ''))} |"
        )
    for group, lines in rows.items():
        title = "Top level" if group == "(top)" else f"`{group}`"
        parts += [f"## {title}", "\n".join(["| key | default | value | meaning |", "|---|---|---|---|", *lines])]
    return _page(parts)


def _leaves(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, given in schema.get("properties", {}).items():
        if "properties" in given:
            yield from _leaves(given, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", given


def _default(given: Mapping[str, Any]) -> str:
    value = given.get("default")
    return "" if value is None or value == [] else f"`{_plain(value)}`"


def _limits(given: Mapping[str, Any]) -> str:
    if "enum" in given:
        return ", ".join(f"`{_plain(value)}`" for value in given["enum"] if value is not None)
    kinds = given.get("type", "string")
    kind = next(kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null")
    pattern = given.get("pattern", "")
    word = "size" if _SIZES.search(pattern) else "time" if _TIMES.search(pattern) else _KIND.get(kind, kind)
    low, high = given.get("x-minimum", given.get("minimum")), given.get("x-maximum", given.get("maximum"))
    if low is None and high is None:
        return word
    return f"{word}, {low if low is not None else '…'} to {high if high is not None else '…'}"


def job_settings() -> str:
    """From conf/pipelines.yaml: its keys, defaults and comments."""
    parts = [
        "# Settings of the jobs",
        _MADE,
        _wrapped(
            "Keys of the file that `--config` names; options of a job override it. "
            "[conf/pipelines.yaml](../../conf/pipelines.yaml) is this page as a file."
        ),
    ]
    group, rows, said = "", [], ""
    sections: list[tuple[str, str, list[str]]] = []
    for line in read("conf/pipelines.yaml").splitlines():
        match = re.match(r"^( *)([a-z_]+):(.*?)(?:\s+# ?(.*))?$", line)
        if match is None:
            # A comment may go on below; it belongs to the line above.
            if rows and line.lstrip().startswith("#"):
                rows[-1] = rows[-1].removesuffix(" |") + " " + _cell(line.lstrip(" #")) + " |"
            continue
        indent, name, value, comment = match[1], match[2], match[3].strip(), match[4] or ""
        if not indent and not value:
            group, said, rows = name, comment, []
            sections.append((group, said, rows))
            continue
        if not indent:
            group, said, rows = "", "", next((rows for name, _, rows in sections if not name), [])
            if not rows:
                sections.append(("", "", rows))
        key = f"{group}.{name}" if group else name
        shown = "" if value == "null" else f"`{value}`"
        rows.append(f"| `{key}` | {shown} | {_cell(comment)} |")
    for name, said, rows in sections:
        title = f"`{name}`" if name else "Top level"
        parts.append(f"## {title}")
        if said:
            parts.append(_wrapped(said[:1].upper() + said[1:].rstrip(".") + "."))
        parts.append("\n".join(["| key | default | meaning |", "|---|---|---|", *rows]))
    return _page(parts)


def table_columns() -> str:
    """From the field tables: the records of the broker, and the Delta tables and views of `sinks.tables`."""
    parts = [
        "# Tables",
        _MADE,
        _wrapped(
            "Types are those of Spark SQL; times are in UTC. *null* says whether the writer may leave a column empty. "
            "Delta declares every column nullable, because a table of an older version has rows without the columns "
            "that came later. [tables.md](../tables.md) and [actions.md](../actions.md) say where the tables are."
        ),
    ]
    for title, family in TABLE_FAMILIES:
        parts.append(f"## {title}")
        for table in family:
            facts = [f"Written by {table.written_by}."]
            if table.key:
                facts.append(f"Unique: {_names(table.key)}.")
            if table.partitioned_by:
                facts.append(f"Partitioned by {_names(table.partitioned_by)}.")
            parts += [f"### `{table.name}`", _wrapped(table.meaning), _wrapped(" ".join(facts))]
            parts.append(
                "\n".join(["| column | type | null | meaning |", "|---|---|---|---|", *map(_column, table.fields)])
            )
    parts += [
        "## Views",
        "[tables.md](../tables.md#views) says where they are. A column has its type in the table; `text` is a string.",
    ]
    for view in VIEWS:
        rows = [f"| `{column.name.strip('`')}` | {_cell(column.meaning)} |" for column in view.columns]
        over = _names(table.name for table in view.over)
        parts += [f"### `{view.name}`", _wrapped(view.meaning), _wrapped(f"Over {over}.")]
        parts.append("\n".join(["| column | meaning |", "|---|---|", *rows]))
    return _page(parts)


def _column(field: tables.Field) -> str:
    null = "yes" if field.nullable else "no"
    return f"| `{field.name}` | {_cell(field.type)} | {null} | {_cell(field.meaning)} |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def commands() -> str:
    """From the declarations of the `headwater` command."""
    root = typer.main.get_command(app)
    parts = [
        "# Commands",
        _MADE,
        _wrapped(
            "Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 usage, 3 cannot connect, "
            "or the object store does not answer or refuses, 4 refused, 5 invalid settings, 124 timed out, 130 "
            "interrupted. `headwater broker` takes the arguments of `headwaterd`; `headwaterd --help` lists them."
        ),
        "## `headwater`",
        *_command(root, "headwater"),
    ]
    for path, command in _below(root, "headwater"):
        parts += [f"## `{path}`", *_command(command, path)]
    return _page(parts)


def _below(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in getattr(group, "commands", {}).items():
        yield f"{path} {name}", command
        yield from _below(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    # As the root has them: a command keeps the option that it made first.
    names = ["-h", "--help"]
    with command.make_context(path, [], resilient_parsing=True, help_option_names=names) as context:
        said = re.sub(r"\s+", " ", (command.help or "").replace("\b", "")).strip()
        if said:
            yield _wrapped(said)
        below = getattr(command, "commands", {})
        if below:
            return
        if path == "headwater bench":
            yield f"```text\n{bench_usage()}```"
            return
        rows = []
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is None or "--help" in parameter.opts:
                continue
            name, help_ = record
            rows.append(f"| `{_cell(name)}` | {_cell(help_)} |")
        if rows:
            yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def bench_usage() -> str:
    """What `headwater bench --help` prints, from the source of the native code. A test compares both."""
    found = re.search(
        r'pub const USAGE: &str = "\\\n(.*?)";', read("broker_edge/core/bench/src/arguments.rs"), re.DOTALL
    )
    assert found is not None, "the usage is a constant of that file"
    return found[1]


def metrics(exposition: str) -> str:
    """From the answer of `/metrics` of a running broker."""
    kinds: dict[str, str] = {}
    said: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    for line in exposition.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            kinds[name] = kind
        elif line.startswith("# HELP "):
            _, _, name, text = line.split(" ", 3)
            said[name] = text
        elif line and not line.startswith("#"):
            sample, _, rest = line.partition("{")
            found = re.findall(r'(\w+)="', rest.rpartition("}")[0]) if rest else []
            labels.setdefault(sample.split(" ")[0], set()).update(found)
    rows = []
    for name, kind in sorted(kinds.items()):
        found = {label for sample, given in labels.items() if sample.startswith(name) for label in given} - {"le"}
        own = ", ".join(f"`{label}`" for label in sorted(found))
        rows.append(f"| `{name}` | {kind} | {own} | {_cell(said.get(name, ''))} |")
    return _page(
        [
            "# Metrics",
            _MADE,
            _wrapped(
                "What `GET /metrics` of a broker with all listeners answers, by name; those whose labels have no value "
                "yet show none. [operating.md](../operating.md#health-and-metrics) says which to watch. A histogram "
                "has `_bucket`, `_sum` and `_count`."
            ),
            "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]),
        ]
    )


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"
