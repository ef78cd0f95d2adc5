"""The remaining cloud budget, also of several tasks, and the source of an answer when it is exhausted or the cloud may not be asked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.agent import Agent
from edge.budget.dial import HelpDial
from edge.budget.known import budget_at_rest
from edge.budget.limits import BudgetLimits, set_limits
from edge.budget.overview import Held, Overview, TaskBudget
from edge.budget.quota import Circumstances, quota_of
from edge.cli.budget import budget_lines
from edge.cloud.client import KnownBudget
from edge.cloud.switch import PAUSED
from edge.core.errors import BudgetExhausted, CoordinatorError, CoordinatorUnavailable, UsageError
from edge.rpc.client import BudgetSnapshot
from edge.serve.agent_schemas import BudgetsView
from edge.serve.running_agent import note_of
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.state.folder import StateFolder
from edge.state.usage import OfTask, used_by_task
from edge.testing.coordinator import ScriptedTerms
from tests.worlds.agent import QUESTION, World, always_asks

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
        assert agent.status().quota == agent.access.quota()
        assert agent.access.quota().calls == 1
    assert len(world.client.calls) == 1


async def test_known_budget_outlives_the_agent_with_its_time(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=always_asks, terms=ScriptedTerms(calls_limit=5))
    async with world.agent() as agent:
        record = await answer(agent)
    world.clock.advance(100.0)
    for method in ("register", "watch_budget", "get_budget"):
        world.client.fail_next(method, CoordinatorUnavailable("nobody there"), times=1000)
    async with world.agent() as agent:
        quota = agent.access.quota()
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
            agent.access.pause_cloud(True)
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
        agent.access.pause_cloud(True)
    async with world.agent() as agent:
        assert agent.access.quota().state == "paused"
        await agent.learn(max_steps=2)
        assert world.client.calls == []
        assert [step.scores.masked > 0 for step in agent.components.state.steps()] == [True, True]
        agent.access.pause_cloud(False)
        await agent.learn(max_steps=1)
        assert world.client.calls != []
        assert agent.access.quota().state == "ok"


def task(name: str, calls: int, limit: int | None, *, at: float = 7.0, used: int = 0, away: str = "") -> TaskBudget:
    snapshot = HelpDial(None, name).snapshot()
    known = KnownBudget(BudgetSnapshot(1, 0.5, 0.3, calls, limit, 90, None, 1500, None), at)
    return TaskBudget(quota_of(name, known, snapshot, Circumstances(away=away)), snapshot, OfTask(used, 10 * used, 100 * used))


def overview(*tasks: TaskBudget) -> Overview:
    return Overview("agent", "math", None, False, "", 0, 0, tasks, Held(None, None, "", "the model decides"))


def test_device_use_is_reported_once_and_task_use_with_each_task() -> None:
    both = overview(task("math", 50, 60, used=47), task("code", 50, 60, used=3)).to_json()
    assert (both["device"]["calls"], both["device"]["calls_limit"], both["device"]["calls_left"]) == (50, 60, 10)
    assert [one["used"]["calls"] for one in both["tasks"]] == [47, 3]
    assert [line for line in budget_lines(BudgetsView.model_validate(both)) if "50 of" in line] == ["calls    50 of 60"]


def test_limit_of_a_task_is_shown_with_the_task() -> None:
    own = overview(task("math", 12, 20), task("code", 3, 5)).to_json()
    assert "calls_limit" not in own["device"] and own["device"]["tokens"] == 90
    lines = budget_lines(BudgetsView.model_validate(own))
    assert [lines[lines.index(f"task     {name}") + 1] for name in ("math", "code")] == ["calls    12 of 20", "calls    3 of 5"]


def test_use_of_a_task_is_counted_from_answers_and_learning(state: StateFolder) -> None:
    paid = {"task": "math", "call_state": "completed", "charged_uusd": 70, "cloud_tokens": 20}
    for number, record in enumerate([paid, paid, {**paid, "cached": True, "charged_uusd": 0}, {"task": "qa"}]):
        state.put_request(f"r{number}", float(number), record)
    with state.database as database:
        database.execute("INSERT INTO learning_spend VALUES ('k', '', 1.0, 'math', 5, 50, 1, 0)")
        database.execute("INSERT INTO learning_spend VALUES ('l', '', 1.0, 'code', 5, 50, 0, 0)")
    assert used_by_task(state) == {"math": OfTask(3, 45, 190), "qa": OfTask(), "code": OfTask(0, 5, 50)}


NOON = 1_790_000_000.0  # 2026-09-21


AT_REST = {
    "never reported": (None, BudgetLimits(20, period="month"), None, (3, 20, "month")),
    "no limit": (None, BudgetLimits(), None, None),
    "as reported": ((12, 20, "total", NOON), BudgetLimits(20), None, (12, 20, "total")),
    "a new month": ((12, 20, "month", NOON - 40 * 86_400.0), BudgetLimits(20, period="month"), None, (3, 20, "month")),
    "of another configuration": ((12, 20, "total", NOON), BudgetLimits(), None, (12, 20, "total")),
    "a new period": ((12, 20, "total", NOON), BudgetLimits(), {"calls_limit": 50, "period": "day"}, (0, 50, "day")),
    "set at rest": ((12, 20, "total", NOON), BudgetLimits(), {"calls_limit": 50}, (12, 50, "total")),
    "taken off": ((12, 20, "total", NOON), BudgetLimits(), {"calls_limit": None}, (5, None, "")),
    "of another coordinator": ((12, 20, "month", NOON), None, None, (12, 20, "month")),
}


@pytest.mark.parametrize(("reported", "configured", "set_here", "calls"), AT_REST.values(), ids=AT_REST)
def test_idle_folder_shows_the_limit_of_the_next_agent(
    state: StateFolder, reported: Any, configured: BudgetLimits | None, set_here: Any, calls: Any
) -> None:
    paid = {"task": "math", "call_state": "completed", "charged_uusd": 70, "cloud_tokens": 20}
    for number, days_ago in enumerate([0, 0, 3, 40, 41]):
        state.put_request(f"r{number}", NOON - 60.0 - days_ago * 86_400.0, paid)
    if set_here is not None:
        set_limits(state, set_here)
    known = None
    if reported is not None:
        used, limit, period, at = reported
        known = KnownBudget(BudgetSnapshot(1, 0.5, 0.3, used, limit, 90, None, 1500, None, calls_period=period), at)
    found = budget_at_rest(state, known, configured, NOON)
    budget = found and found.budget
    assert (budget and (budget.calls, budget.calls_limit, budget.calls_period)) == calls
