"""Which versions an advisory concerns: the ranges of OSV's records, and the requirements of RustSec's advisory-db."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from supply.audit import CLEAN, FOUND, UNCHECKED, main
from supply.shipped import Part

TODAY = date(2026, 11, 25)
RING = Part("cargo", "ring", "0.17.14", ("0" * 64,), "Apache-2.0 AND ISC", "required", "headwaterd")
YAML = Part("pypi", "pyyaml", "6.0.3", ("0" * 64,), "MIT", "optional", "spark")
JAR = Part("maven", "org.wildfly.openssl:wildfly-openssl", "2.2.5.Final", ("0" * 64,), None, "optional", "jobs on S3")


@pytest.fixture
def ignored(tmp_path: Path) -> Path:
    path = tmp_path / "ignored.toml"
    path.write_text("")
    return path


def audit(*words: str | Path, found: Part = RING) -> int:
    return main(list(map(str, words)), found=[found], today=TODAY)


@pytest.mark.parametrize(
    ("part", "events", "is_affected"),
    [
        (RING, [{"introduced": "0"}], True),
        (RING, [{"introduced": "0"}, {"fixed": "0.17.14"}], False),
        (RING, [{"introduced": "0.17.14"}], True),
        (RING, [{"introduced": "0.17.15"}], False),
        (RING, [{"introduced": "0"}, {"fixed": "0.9.0"}, {"introduced": "0.17.3"}], True),
        (RING, [{"introduced": "0.17.3"}, {"introduced": "0"}, {"fixed": "0.9.0"}], True),
        (RING, [{"introduced": "0"}, {"last_affected": "0.17.14"}], True),
        (RING, [{"introduced": "0"}, {"last_affected": "0.17.13"}], False),
        (YAML, [{"introduced": "0"}, {"fixed": "6.0.3rc1"}], False),
        (YAML, [{"introduced": "0"}, {"fixed": "6.0.3.post1"}], True),
        (JAR, [{"introduced": "0"}, {"fixed": "2.2.5"}], False),
        (JAR, [{"introduced": "0"}, {"fixed": "2.2.10.Final"}], True),
        # A version that cannot be compared counts as affected.
        (JAR, [{"introduced": "0"}, {"fixed": "2.2.5.CR1"}], True),
    ],
)
def test_ranges_are_read_as_the_schema_says(
    tmp_path: Path, ignored: Path, part: Part, events: list[dict[str, str]], is_affected: bool
) -> None:
    ecosystem = {"cargo": "crates.io", "pypi": "PyPI", "maven": "Maven"}[part.kind]
    ranges: list[dict[str, Any]] = [{"type": "SEMVER" if part is RING else "ECOSYSTEM", "events": events}]
    package = {"ecosystem": ecosystem, "name": part.name}
    (tmp_path / "X-1.json").write_text(json.dumps({"id": "X-1", "affected": [{"package": package, "ranges": ranges}]}))
    assert audit("--db", tmp_path, "--ignored", ignored, found=part) == (FOUND if is_affected else CLEAN)


RUSTSEC = """```toml
[advisory]
id = "RUSTSEC-2026-0001"
package = "ring"
date = "2026-01-01"
aliases = ["CVE-2026-1"]

[versions]
patched = {patched}
unaffected = {unaffected}
```

# A title

Text.
"""


@pytest.mark.parametrize(
    ("patched", "unaffected", "is_affected"),
    [
        ([], [], True),
        ([">= 0.17.14"], [], False),
        ([">= 0.17.15"], [], True),
        ([">= 0.17.15"], ["< 0.17.0"], True),
        ([">= 0.18"], ["<= 0.17"], False),
        ([">= 0.18"], ["<= 0.16"], True),
        (["^0.17.12"], [], False),
        (["^0.16.20", ">= 0.18.0"], [], True),
        (["0.17.14"], [], False),
        (["~0.17"], [], False),
        (["~0.17.15"], [], True),
        (["=0.17.14"], [], False),
        (["> 0.17"], [], True),
        (["> 0.16"], [], False),
        ([">= 0.17.3, < 0.17.14"], [], True),
        ([">= 0.17.3, < 0.17.15"], [], False),
        (["*"], [], False),
    ],
)
def test_the_main_branch_of_rustsec_is_read(
    tmp_path: Path, ignored: Path, patched: list[str], unaffected: list[str], is_affected: bool
) -> None:
    folder = tmp_path / "db" / "crates" / "ring"
    folder.mkdir(parents=True)
    text = RUSTSEC.format(patched=json.dumps(patched), unaffected=json.dumps(unaffected))
    (folder / "RUSTSEC-2026-0001.md").write_text(text)
    code = audit("--db", tmp_path / "db", "--ignored", ignored, found=RING)
    assert code == (FOUND if is_affected else CLEAN)


def test_an_advisory_of_rustsec_has_title_alias_and_fix(
    tmp_path: Path, ignored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "db" / "RUSTSEC-2026-0001.md"
    path.parent.mkdir()
    path.write_text(RUSTSEC.format(patched='[">= 1"]', unaffected="[]"))
    assert audit("--db", path.parent, "--ignored", ignored, found=RING) == FOUND
    line = "RUSTSEC-2026-0001\tcrates.io\tring\t0.17.14\tA title\tfixed in >= 1\n"
    assert capsys.readouterr().out == line
    ignored.write_text('[[ignore]]\nid = "CVE-2026-1"\nreason = "not called"\nuntil = 2027-01-01\n')
    assert audit("--db", path.parent, "--ignored", ignored, found=RING) == CLEAN
    path.write_text(path.read_text().replace("aliases", 'withdrawn = "2026-02-01"\naliases'))
    # It was the only one, so nothing is known of crates.
    assert audit("--db", path.parent, "--ignored", ignored, found=RING) == UNCHECKED
    path.write_text(RUSTSEC.format(patched='["when it is done"]', unaffected="[]"))
    assert audit("--db", path.parent, "--ignored", ignored, found=RING) == UNCHECKED
    assert "`when it is done` is not a requirement of Cargo" in capsys.readouterr().err
