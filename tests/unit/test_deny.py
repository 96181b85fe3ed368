"""The licences, sources and duplicates of the crates are those that deny.toml allows, as cargo-deny finds them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "broker_edge" / "core"
TOOL = ROOT / ".cache" / "tools" / "bin" / "cargo-deny"


def _denied(settings: Path) -> tuple[int, str]:
    assert TOOL.exists(), "cargo-deny is missing: run `make deny`, which fetches it"
    words = ["--locked", "--manifest-path", CORE / "Cargo.toml", "--config", settings, "--color", "never"]
    check = ["check", "-D", "warnings", "-D", "unmatched-skip", "licenses", "bans", "sources"]
    done = subprocess.run([TOOL, *words, *check], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_crates_have_allowed_licences_and_sources_and_no_duplicate_without_a_reason() -> None:
    code, said = _denied(CORE / "deny.toml")
    assert code == 0, said
    assert "bans ok, licenses ok, sources ok" in said


@pytest.mark.parametrize(
    ("allowed", "instead", "finding"),
    [
        pytest.param('"ISC", ', "", "error[rejected]", id="a licence that is not allowed"),
        pytest.param("rust-lang/crates.io-index", "elsewhere/index", "error[source-not-allowed]", id="a source"),
        pytest.param('crate = "getrandom@0.2.17"', 'crate = "getrandom@9"', "error[duplicate]", id="a duplicate"),
        pytest.param('"openssl-sys"', '"ring"', "error[banned]", id="a banned crate"),
        pytest.param('"MIT", ', '"MIT", "MPL-2.0", ', "license-not-encountered", id="a licence that no crate has"),
    ],
)
def test_control_what_deny_toml_does_not_allow_is_found(
    tmp_path: Path, allowed: str, instead: str, finding: str
) -> None:
    text = (CORE / "deny.toml").read_text()
    assert text.count(allowed) == 1
    (tmp_path / "deny.toml").write_text(text.replace(allowed, instead))
    code, said = _denied(tmp_path / "deny.toml")
    assert code != 0
    assert finding in said
