"""The remaining cloud budget, and the source of an answer when it is exhausted or the cloud may not be asked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.agent import Agent
from edge.budget.dial import HelpDial
from edge.budget.quota import Circumstances, quota_of
from edge.cloud.client import KnownBudget
from edge.cloud.switch import PAUSED
from edge.core.errors import BudgetExhausted, CoordinatorError, CoordinatorUnavailable, UsageError
from edge.rpc.client import BudgetSnapshot
from edge.serve.running_agent import note_of
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.testing.coordinator import ScriptedTerms
from tests.unit.agent_world import QUESTION, World, always_asks

OFF = "the cloud is switched off by EDGE_AGENT_NO_CLOUD"
NO_LIMITS = BudgetSnapshot(1, 0.5, 0.3, 4, None, 90, None, 1500, None)


def budget(calls: int = 4, calls_limit: int | None = 20, **more: Any) -> KnownBudget:
    fields = {**{name: getattr(NO_LIMITS, name) for name in NO_LIMITS.__slots__}, "calls": calls, "calls_limit": calls_limit}
    return KnownBudget(BudgetSnapshot(**{**fields, **more}), 7.0)


@pytest.mark.parametrize(
    ("known", "now", "state", "words"),
    [
        (budget(), Circumstances(), "ok", "4 of 20 calls"),
        (KnownBudget(NO_LIMITS, 7.0), Circumstances(), "ok", "4 calls (unlimited)"),
        (budget(19), Circumstances(), "low", "little is left"),
        (budget(20), Circumstances(), "used_up", "used up; answers come from this device"),
        (budget(spend_limit_uusd=1500), Circumstances(), "used_up", "0.0015 USD of 0.0015 USD"),
        (None, Circumstances(refused="device calls 3 of 3"), "used_up", "device calls 3 of 3"),
        (budget(), Circumstances(PAUSED, paused=True), "paused", "budget resume"),
        (budget(), Circumstances(OFF), "switched_off", "EDGE_AGENT_NO_CLOUD"),
        (budget(20), Circumstances(away="nobody there"), "offline", "nobody there"),
        (None, Circumstances(), "unknown", "not reported the budget yet"),
    ],
)
def test_quota_state_and_its_line(known: KnownBudget | None, now: Circumstances, state: str, words: str) -> None:
    quota = quota_of("math", known, HelpDial(0.15, "math").snapshot(), now)
    assert (quota.state, quota.target_rate, quota.as_of) == (state, 0.15, 7.0 if known else None)
    assert words in quota.line and "\n" not in quota.line


@given(st.integers(0, 50), st.one_of(st.none(), st.integers(0, 50)), st.booleans(), st.booleans())
def test_remaining_quota_is_never_negative_and_zero_is_never_ok(used: int, limit: int | None, away: bool, off: bool) -> None:
    now = Circumstances(OFF if off else "", away="gone" if away else "")
    quota = quota_of("math", budget(used, limit), None, now)
    assert quota.calls_left == (None if limit is None else max(0, limit - used))
    assert quota.state not in ("ok", "low") or quota.calls_left != 0
    assert (quota.state == "switched_off") == off


async def answer(agent: Agent, mode: Any = None) -> AnswerRecord:
    return await agent.answerer.answer(AnswerRequest(QUESTION, mode=mode))


async def test_with_an_exhausted_budget_answers_continue_and_the_caller_is_informed(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=always_asks, terms=ScriptedTerms(calls_limit=1))
    async with world.agent() as agent:
        first, second, third = [await answer(agent) for _ in range(3)]
        assert [record.source for record in (first, second, third)] == ["cloud", "local-fallback", "local-fallback"]
        assert [record.final for record in (first, second, third)] == ["5", "3", "3"]
        for record in (first, second, third):
            assert record.quota is not None and record.quota["calls_left"] == 0 and record.quota["state"] == "used_up"
            assert note_of(record).to_json()["quota"] == record.quota
        assert [record.call_state for record in (first, second, third)] == ["completed", "refused", "refused"]
        assert agent.status().quota == agent.budgets.quota()
        assert agent.budgets.quota().calls == 1
    assert len(world.client.calls) == 1


async def test_known_budget_outlives_the_agent_with_its_time(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=always_asks, terms=ScriptedTerms(calls_limit=5))
    async with world.agent() as agent:
        record = await answer(agent)
    world.clock.advance(100.0)
    for method in ("register", "watch_budget", "get_budget"):
        world.client.fail_next(method, CoordinatorUnavailable("nobody there"), times=1000)
    async with world.agent() as agent:
        quota = agent.budgets.quota()
        assert (quota.state, quota.calls, quota.calls_left) == ("offline", 1, 4)
        assert quota.as_of == record.created_at < world.clock.now()


MODES = ("auto", "prefer-local", "local-only", "cloud-only")
TROUBLE: dict[str, CoordinatorError | None] = {
    "": None,
    "offline": CoordinatorUnavailable("nobody there"),
    "refused": BudgetExhausted("device calls 3 of 3"),
}
_SWITCH = (("", OFF), (False, True))


def expected(mode: str, off: str, paused: bool, trouble: str) -> tuple[str, str]:
    """Source and a part of the reason; the scripted model always asks, and its answer without asking is well formed."""
    reason = off or (PAUSED if paused else "")
    if mode == "cloud-only":
        return ("refusal", reason) if reason else ("failure", "") if trouble else ("cloud", "mode cloud-only")
    if reason or mode != "auto":
        return ("local", reason or f"mode {mode}")
    words = {"": "the model asked for help", "offline": "cannot be reached (nobody there)", "refused": "the budget is used up"}
    return ("local-fallback" if trouble else "cloud", words[trouble])


@pytest.mark.parametrize(("mode", "off", "paused", "trouble"), list(itertools.product(MODES, *_SWITCH, TROUBLE)))
async def test_mode_kill_switch_pause_and_disruption_together_decide_the_source(
    tmp_path: Path, mode: str, off: str, paused: bool, trouble: str
) -> None:
    world = World(tmp_path / "state", script=always_asks, switched_off=off)
    source, words = expected(mode, off, paused, trouble)
    async with world.agent() as agent:
        if paused:
            agent.budgets.pause_cloud(True)
        if error := TROUBLE[trouble]:
            world.client.fail_next("stream_complete", error, times=9)
        if source in ("refusal", "failure"):
            with pytest.raises(UsageError if source == "refusal" else CoordinatorError, match=words.partition("(")[0] or "."):
                await answer(agent, mode)
            assert (world.client.calls, agent.components.state.requests(9)) == ([], [])
            return
        record = await answer(agent, mode)
        assert (record.source, words in record.reason) == (source, True), record.reason
        assert record.final == ("5" if source == "cloud" else "3")
        assert (record.local_text == "") is (mode == "cloud-only")
        assert record.quota is not None
        state = "switched_off" if off else "paused" if paused else record.quota["state"]
        assert record.quota["state"] == state
        if source == "local-fallback":
            assert state == ("offline" if trouble == "offline" else "used_up")
    assert len(world.client.calls) == (source == "cloud")


async def test_a_pause_outlives_the_agent_and_stops_learning_from_asking_too(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    async with world.agent() as agent:
        agent.budgets.pause_cloud(True)
    async with world.agent() as agent:
        assert agent.budgets.quota().state == "paused"
        await agent.learn(max_steps=2)
        assert world.client.calls == []
        assert [step.scores.masked > 0 for step in agent.steps()] == [True, True]
        agent.budgets.pause_cloud(False)
        await agent.learn(max_steps=1)
        assert world.client.calls != []
        assert agent.budgets.quota().state == "ok"
