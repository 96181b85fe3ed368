"""The pages of docs/reference are what the code declares. `make reference` writes them."""

from __future__ import annotations

import pytest
from support import doc_reference


def test_settings_of_the_broker_are_those_of_its_schema() -> None:
    doc_reference.check("settings.md", doc_reference.broker_settings())


def test_settings_of_the_jobs_are_those_of_their_file() -> None:
    doc_reference.check("job-settings.md", doc_reference.job_settings())


def test_columns_are_those_of_the_tables() -> None:
    doc_reference.check("tables.md", doc_reference.table_columns())


def test_commands_are_those_of_headwater() -> None:
    doc_reference.check("cli.md", doc_reference.commands())


def test_a_page_that_is_out_of_date_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_WRITE_DOCS", raising=False)
    with pytest.raises(AssertionError, match="run `make reference`"):
        doc_reference.check("settings.md", doc_reference.broker_settings() + "more\n")
