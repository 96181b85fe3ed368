"""Properties of any rollout in any history, see `support.rollout_history`."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollout_history import History, rollouts

from actions.engine import ActionPhase, Rollout


@settings(max_examples=40, deadline=None)
@given(rollouts(), st.integers(0, 2**32))
def test_any_history_keeps_counts_finality_limits_and_keys(rollout: Rollout, seed: int) -> None:
    History(rollout, seed).run(40)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**32))
def test_rate_is_kept_for_any_minute_in_any_history(rate: int, retries: int, seed: int) -> None:
    history = History(Rollout(rate_per_minute=rate, retries=retries, retry_backoff_s=0), seed, rows_lost=False)
    history.run(60)
    history.check_rate(rate)


def test_control_an_engine_that_forgets_what_it_sent_breaks_the_rate() -> None:
    """Negative control of the rate: without the sent commands stored in the rows, the check fails."""
    history = History(Rollout(rate_per_minute=1, max_in_flight=9), 1, killed=False)
    for _ in range(20):
        history.step()
        state = history.engine.state
        rows = {id_: replace(row, sent={}) for id_, row in state.actions.items()}
        targets = {id_: replace(target, sent_us=None) for id_, target in state.targets["a1"].items()}
        history.engine.state = replace(state, actions=rows, targets={"a1": targets})
    try:
        history.check_rate(1)
    except AssertionError:
        return
    raise AssertionError("the check of the rate cannot fail")


def test_action_that_has_ended_stays_ended_until_somebody_retries() -> None:
    history = History(Rollout(), 7, killed=False)
    history.engine.tick()
    history.engine.cancel()
    history.engine.tick()
    history.engine.ask("force", by="bob")
    history.engine.tick()
    history.engine.tick()
    assert history.engine.state.actions["a1"].phase is ActionPhase.ENDED
