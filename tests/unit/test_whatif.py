from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.answering.explain import decision, explained
from edge.budget.whatif import PastAnswer, demanded_answers, past_answers, replayed, what_if, what_if_recorded
from edge.cli.whatif import good_lines
from edge.core.errors import CallInProgress, CoordinatorUnavailable, NotFound, OutcomeUnknown, TooFewAnswers
from edge.core.types import Message
from edge.serve.agent_schemas import WhatIfView
from edge.state.answer_record import AnswerRequest
from edge.state.folder import StateFolder
from edge.state.reader import reading
from edge.testing.coordinator import ScriptedTerms
from tests.worlds.agent import HELP, World, asks_about_even_numbers

ODDS = st.one_of(st.none(), st.floats(-20, 20))


def past(log_odds: float | None, *, cloud: bool = False, judged: Any = None, charged: int = 100) -> PastAnswer:
    return PastAnswer(
        log_odds, cloud, cloud, charged if cloud else 0, 0.5, 2.0 if cloud else None, 2.5 if cloud else 0.5, judged, cloud
    )


def forty() -> list[PastAnswer]:
    """Log-odds -10 to +9.5; those above +4 asked."""
    return [past(-10.0 + 0.5 * number, cloud=number > 28) for number in range(40)]


def test_the_highest_log_odds_ask_and_cost_what_cloud_answers_did() -> None:
    result = what_if(forty(), [0.0, 0.1, 0.5, 1.0], "math")
    none, tenth, half, all_of_them = result.outlooks
    assert (result.answers, result.present.calls, result.present.spend_uusd) == (40, 11, 1100.0)
    assert (none.calls, none.spend_uusd, none.threshold, none.latency_p90_s) == (0, 0.0, None, 0.5)
    assert (tenth.calls, tenth.rate, tenth.threshold, tenth.spend_uusd) == (4, 0.1, 8.0, 400.0)
    assert (half.calls, half.spend_interval_uusd, half.latency_p50_s) == (20, (2000.0, 2000.0), 0.5)
    assert (all_of_them.calls, all_of_them.threshold, all_of_them.latency_p50_s) == (40, None, 2.5)


def test_differing_charges_widen_the_interval_around_the_same_mean() -> None:
    answers = [past(float(number), cloud=True, charged=50 + 100 * (number % 2)) for number in range(40)]
    outlook = replayed(answers, 0.25)
    assert outlook.spend_uusd == 1000.0
    assert outlook.spend_interval_uusd is not None
    low, high = outlook.spend_interval_uusd
    assert 0.0 < low < 1000.0 < high < 2000.0


def test_accuracy_is_estimated_only_where_enough_of_both_kinds_were_rated() -> None:
    few = replayed([past(1.0, judged="good") for _ in range(9)] + [past(-1.0)] * 20, 0.0)
    assert few.good_share is None
    assert "9 local answers were judged, 10 are needed" in few.notes[0]
    local = [past(-1.0, judged="good" if number % 2 else "bad") for number in range(20)]
    cloud = [past(5.0, cloud=True, judged="good") for _ in range(20)]
    assert replayed(local + cloud, 0.0).good_share == pytest.approx(0.5)
    mixed = replayed(local + cloud, 0.5)
    assert mixed.good_share == pytest.approx(0.75)
    assert mixed.good_interval is not None and mixed.good_interval[0] < 0.75 < mixed.good_interval[1]
    assert (mixed.judged_local, mixed.judged_cloud) == (20, 20)
    sent = [past(float(number), judged="good") for number in range(20)] + [past(-1.0)] * 20
    assert replayed(sent, 0.5).good_share is None, "of those that stay local too few were judged"


def test_cloud_only_answers_give_cost_and_latency() -> None:
    answers = [past(float(number)) for number in range(20)]
    demanded = [past(None, cloud=True, judged="good", charged=70)] * 10
    unknown, known = replayed(answers, 0.5), replayed(answers, 0.5, demanded)
    assert (unknown.spend_uusd, unknown.latency_p90_s) == (None, 0.5)
    assert any("how long the cloud takes" in note for note in unknown.notes)
    assert (known.spend_uusd, known.latency_p90_s, known.judged_cloud) == (700.0, 2.5, 10)
    assert not any("cost" in note or "how long" in note or "cloud answer" in note for note in known.notes)
    assert what_if(answers, [0.5], demanded=demanded).present.calls == 0
    assert not any("how long" in note for note in replayed(answers, 0.0).notes)


def test_too_few_answers_are_refused_with_advice() -> None:
    with pytest.raises(TooFewAnswers, match="19 recorded answers are too few") as caught:
        what_if([past(0.0)] * 19, [0.1])
    assert "edge-agent eval" in caught.value.hint


def test_answers_without_a_decision_cannot_ask_at_any_rate() -> None:
    outlook = replayed([past(None)] * 15 + [past(1.0)] * 5, 1.0)
    assert (outlook.calls, outlook.rate) == (5, 0.25)
    assert any("only 5 answers came to a place" in note for note in outlook.notes)


@given(st.lists(ODDS, min_size=20, max_size=60), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_rate_never_means_fewer_calls_and_never_more_than_the_rate(
    odds: list[float | None], one: float, other: float
) -> None:
    answers = [past(value, cloud=number % 3 == 0) for number, value in enumerate(odds)]
    low, high = (replayed(answers, rate) for rate in sorted((one, other)))
    assert low.calls <= high.calls <= round(max(one, other) * len(odds))
    assert low.spend_uusd is not None and high.spend_uusd is not None and low.spend_uusd <= high.spend_uusd
    assert low.latency_p50_s <= high.latency_p50_s and high.latency_p50_s <= high.latency_p90_s


async def test_recorded_answers_hold_all_that_a_replay_needs(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=asks_about_even_numbers, terms=ScriptedTerms(price_uusd_per_call=70))
    async with world.agent() as agent:
        for number in range(24):
            task = "code" if number >= 22 else None
            message = Message("user", f"What is {number} + 1?")
            await agent.answerer.answer(AnswerRequest((message,), id=f"a{number}", task=task))
        await agent.answerer.answer(AnswerRequest((Message("user", "What is 4 + 1?"),), mode="cloud-only"))
    with StateFolder(tmp_path / "state") as state, state.database as database:
        database.execute("INSERT INTO feedback (request_id, at, verdict, correction) VALUES ('a0', 1.0, 'good', '')")
    with reading(tmp_path / "state") as state:
        assert state is not None
        assert len(past_answers(state)) == 24
        answers = past_answers(state, "chat")
        [demanded] = demanded_answers(state, "chat")
        assert (demanded.charged_uusd, demanded.from_cloud, demanded.cloud_s is None) == (70, True, False)
        assert demanded_answers(state, "code") == []
        assert what_if_recorded(state, [0.5], "chat").answers == 22
    result = what_if(answers, [0.5, 0.1], "chat")
    assert (result.answers, result.present.calls, result.present.spend_uusd, result.present.rate) == (22, 11, 770.0, 0.5)
    assert [(outlook.calls, outlook.spend_uusd) for outlook in result.outlooks] == [(11, 770.0), (2, 140.0)]
    assert sum(answer.judged == "good" for answer in answers) == 1
    assert result.outlooks[1].target_rate == 0.1


RECORD: dict[str, Any] = {
    "mode": "auto", "source": "cloud", "reason": "the model asked for help", "local_text": HELP, "help_log_odds": -2.0, "help_bias": 2.5,
    "target_rate": 0.15, "call_key": "run-one", "charged_uusd": 70, "cloud_tokens": 12, "cloud_model": "m", "call_state": "completed",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("-2.00", "+2.50", "+0.50", "it asked, and the cloud answered")),
        ({"target_rate": None, "help_bias": 0.0}, ("no dial was set; it asked",)),
        ({"source": "local", "reason": "answered on this device"}, ("it did not ask",)),
        ({"source": "local-fallback", "reason": "the model asked for help, but the budget"}, ("the budget",)),
        ({"help_log_odds": None, "source": "local", "reason": "answered on this device"}, ("no place where",)),
        ({"mode": "cloud-only", "reason": "mode cloud-only"}, ("mode cloud-only",)),
    ],
)
def test_decision_is_reported_with_log_odds_bias_and_outcome(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    assert all(word in decision({**RECORD, **changes}) for word in words)


@pytest.mark.parametrize(
    ("error", "reported_by", "state"),
    [
        (NotFound("no such call"), "coordinator", "unknown"),
        (CallInProgress("running"), "coordinator", "running"),
        (OutcomeUnknown("charged 211"), "coordinator", "in_doubt"),
        (CoordinatorUnavailable("upstream", reason="UPSTREAM_FAILED"), "coordinator", "failed"),
        (CoordinatorUnavailable("nobody there"), "record", "completed"),
    ],
)
async def test_ledger_entry_comes_from_the_coordinator_or_else_the_records(
    error: Exception, reported_by: str, state: str
) -> None:
    async def get_call(key: str) -> Any:
        raise error

    ledger = (await explained(RECORD, get_call))["ledger"]
    assert (ledger["reported_by"], ledger["state"], ledger["charged_uusd"], ledger["call_key"]) == (
        reported_by,
        state,
        70,
        "run-one",
    )
    assert str(error) in ledger["note"]


async def test_without_a_call_there_is_no_entry_and_without_a_coordinator_the_record_states_it() -> None:
    assert (await explained({**RECORD, "call_key": ""}, None))["ledger"] is None
    ledger = (await explained(RECORD, None, "the embedded coordinator is not running"))["ledger"]
    assert (ledger["reported_by"], ledger["note"]) == ("record", "the embedded coordinator is not running")


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        (0.7, "70.0 % are expected to be good from 20.0 % asked, for certain (95 %) from "),
        (0.99, "99.0 % are expected to be good from 49.0 % asked, at no rate for certain"),
        (0.0, "0.0 % are expected to be good from 0.0 % asked, for certain (95 %) from 0.0 %"),
    ],
)
def test_the_least_rate_that_keeps_a_share_good(wanted: float, line: str) -> None:
    """Half of a hundred are wrong, those with the highest log-odds; the cloud was right in forty others."""
    local = [past(number / 10, judged="bad" if number >= 50 else "good") for number in range(100)]
    demanded = [past(None, cloud=True, judged="good") for _ in range(40)]
    rates = [number / 100 for number in range(101)]
    outlooks = WhatIfView.model_validate(what_if(local, rates, demanded=demanded)).outlooks
    assert good_lines(outlooks, wanted)[0].startswith(line)


def test_what_no_rate_reaches_and_what_is_not_known_is_said() -> None:
    bad = [past(float(number), judged="bad") for number in range(40)]
    demanded = [past(None, cloud=True, judged="good" if number else "bad") for number in range(20)]
    outlooks = WhatIfView.model_validate(what_if(bad, [0.0, 0.5, 1.0], demanded=demanded)).outlooks
    assert good_lines(outlooks, 0.99) == ["no rate keeps 99.0 % good: at most 95.0 % are expected, at 100.0 %"]
    unjudged = WhatIfView.model_validate(what_if(forty(), [0.5])).outlooks
    assert "is not known" in good_lines(unjudged, 0.9)[0]
