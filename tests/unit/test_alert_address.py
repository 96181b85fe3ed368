"""The address to which alerts are posted is a secret: a reference to it is enough, and nothing shows it."""

from __future__ import annotations

import pytest

from broker_edge.errors import SettingsError
from pipelines.jobs.alerts import Alert, AlertKind, Webhook
from pipelines.jobs.posting import address_of
from pipelines.settings import JobsSettings


def test_the_address_of_alerts_is_in_no_log_no_error_and_no_print_of_the_settings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows the address of a chat's webhook can post to it."""
    hook = Webhook("http://127.0.0.1:1/hush")
    hook.send(Alert(AlertKind.LAG, "a", "b"))
    hook.close()
    assert "alert could not be posted" in caplog.text
    with pytest.raises(SettingsError) as refused:
        Webhook("chat.example.com/hush")
    monkeypatch.setenv("HOOK", "https://chat.example.com/hush")
    settings = JobsSettings(webhook="env:HOOK")
    assert address_of(settings.webhook or "", what="jobs.webhook") == "https://chat.example.com/hush"
    with pytest.raises(ValueError, match="write an http:// or https:// address, or a reference to it"):
        JobsSettings(webhook="ftp://somewhere/hush")
    assert "hush" not in caplog.text + str(refused.value) + repr(JobsSettings(webhook="https://chat.example.com/hush"))
