"""The files of the console: nothing from another host, nothing that runs text, and foreign code as it was published."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from support.doc_blocks import ROOT

UI = ROOT / "broker_edge" / "ui"
VENDOR = UI / "vendor"
OWN = sorted(path for path in UI.rglob("*") if path.suffix in {".html", ".js", ".css"} and VENDOR not in path.parents)

# Names of XML, which nobody fetches.
_NAMESPACE = "http://www.w3.org/"
_IMPORTED = re.compile(
    r"""(?:^import (?:[^"']+ from )?|^export [^"']+ from |\bimport\()["']([^"']+)["']""", re.MULTILINE
)


def named(path: Path) -> str:
    return str(path.relative_to(UI))


@pytest.mark.parametrize("path", OWN, ids=named)
def test_nothing_comes_from_another_host_and_no_text_becomes_code_or_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace(_NAMESPACE, "")
    for forbidden in ("://", "innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySet", "eval(", "new Function"):
        assert forbidden not in text, f"{named(path)}: {forbidden}"
    assert "document.write" not in text


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix == ".js"], ids=named)
def test_what_a_module_imports_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in _IMPORTED.findall(text):
        assert target.startswith("."), f"{named(path)} imports {target}: browsers need a path"
        assert (path.parent / target).resolve().is_file(), f"{named(path)} imports {target}, which does not exist"


def test_the_first_page_loads_all_of_its_modules_at_once() -> None:
    index = (UI / "index.html").read_text(encoding="utf-8")
    for target in re.findall(r'(?:href|src)="(ui/[^"]+)"', index):
        assert (UI / target.removeprefix("ui/")).is_file(), target
    assert re.search(r" style=|<style| on[a-z]+=|<script>", index) is None


def test_vendored_files_are_those_that_were_published() -> None:
    sums = dict(reversed(line.split(maxsplit=1)) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.suffix in {".js", ".css"}}
    assert files <= set(sums), "a file of others has no digest"
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, f"{name} was changed"
    about = (VENDOR / "README.md").read_text()
    for name in files:
        assert name in about, f"vendor/README.md does not say what {name} is"
