"""The daily budget of learning: counted before a call is sent, separately from people's questions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.budget.daily import PRICE_DAYS, DailyBudget, DailyLimits
from edge.cloud.group_calls import GroupCalls
from edge.cloud.unconfirmed import ARRIVES_WITHIN_S
from edge.core.clock import local_day
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable
from edge.core.types import Message, Sampling, TokenUsage
from edge.rpc.client import CloudCall, CloudCompletion
from edge.state.answer_record import AnswerRequest
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.state.usage import used_today
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient
from tests.worlds.agent import HELP, Crash, World, local_answer, used_by

DAY_S = 86_400.0


def call(number: int) -> CloudCall:
    return CloudCall(f"{number:032x}", "math", 0, f"{number}:x", 1, (Message("user", "?"),), 8)


class PaidClient(ScriptedCoordinatorClient):
    """Answers every call at the next prepared price; None: it fails."""

    def __init__(self, *prices: int | None) -> None:
        super().__init__()
        self.prices = list(prices)
        self.asked: list[str] = []

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        self.asked.append(call.call_key)
        price = self.prices.pop(0) if len(self.prices) > 1 else self.prices[0]
        await asyncio.sleep(0)
        if price is None:
            raise CoordinatorUnavailable("failed")
        return CloudCompletion(call.call_key, "x", TokenUsage(3, 4), price, False, "m")


def limited(client: ScriptedCoordinatorClient, budget: DailyBudget) -> GroupCalls:
    return GroupCalls(client, 5.0, limit=budget)


async def asked(asking: GroupCalls, calls: Sequence[CloudCall]) -> list[bool]:
    """Which of the concurrent calls were answered."""
    outcomes = await asyncio.gather(*(asking.ask(one) for one in calls))
    return [outcome.completion is not None for outcome in outcomes]


async def test_calls_of_a_day_end_at_the_limit_and_begin_again_at_midnight(state: StateFolder) -> None:
    clock, paid = ManualClock(), PaidClient(5)
    asking = limited(paid, DailyBudget(state, clock, DailyLimits(calls=2)))
    assert await asked(asking, [call(1), call(2), call(3)]) == [True, True, False]
    outcome = await asking.ask(call(4))
    assert outcome.unsent and not outcome.refused
    assert "today's calls 2 of 2" in outcome.reason
    clock.advance(DAY_S)
    assert await asked(asking, [call(4)]) == [True]
    assert len(paid.asked) == 3


async def test_repeated_call_is_counted_once_even_when_the_day_is_used_up(state: StateFolder) -> None:
    budget = DailyBudget(state, ManualClock(), DailyLimits(calls=1))
    asking = limited(PaidClient(5), budget)
    assert await asked(asking, [call(1)]) == [True]
    assert await asked(asking, [call(1), call(2)]) == [True, False]
    assert (budget.today().calls, budget.today().spend_uusd, budget.today().tokens) == (1, 5, 7)


async def test_call_is_on_disk_before_it_is_sent(state: StateFolder) -> None:
    budget = DailyBudget(state, ManualClock(), DailyLimits(calls=1))

    class CrashingClient(PaidClient):
        async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
            assert (budget.today().calls, budget.today().open_calls) == (1, 1)
            raise Crash

    with pytest.raises(Crash):
        await limited(CrashingClient(1), budget).ask(call(1))
    again = DailyBudget(state, ManualClock(), DailyLimits(calls=1))
    with pytest.raises(BudgetExhausted):
        await again.admit(call(2))
    await again.admit(call(1))


async def test_call_refused_by_the_ledger_is_not_counted(state: StateFolder) -> None:
    class Refuses(PaidClient):
        async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
            raise BudgetExhausted("the step's calls are used up")

    budget = DailyBudget(state, ManualClock(), DailyLimits(calls=1))
    assert (await limited(Refuses(1), budget).ask(call(1))).refused
    assert budget.today().calls == 0


@settings(max_examples=60, deadline=None)
@given(prices=st.lists(st.integers(0, 20), min_size=1, max_size=30), limit=st.integers(0, 60), at_once=st.integers(1, 6))
async def test_law_daily_spend_exceeds_its_limit_by_at_most_one_call_or_pending_overruns(
    tmp_path_factory: pytest.TempPathFactory, prices: list[int], limit: int, at_once: int
) -> None:
    with StateFolder(tmp_path_factory.mktemp("budget")) as state:
        budget = DailyBudget(state, ManualClock(), DailyLimits(spend_uusd=limit))
        asking, calls = limited(PaidClient(*prices), budget), [call(number) for number in range(len(prices))]
        for first in range(0, len(calls), at_once):
            await asked(asking, calls[first : first + at_once])
            dearer = at_once * (max(prices) - min(prices))
            assert budget.today().spend_uusd <= limit + max(dearer, max(prices) if limit else 0)


async def test_learning_continues_without_the_cloud_and_people_are_still_helped(tmp_path: Path) -> None:
    def script(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        return HELP if seed % 2 == 0 or sampling.temperature == 0 else local_answer(1)

    world = World(tmp_path, script=script, daily_limits=DailyLimits(calls=2))
    async with world.agent() as agent:
        await agent.learn()
        steps = agent.components.state.steps()
        answer = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 1?"),)))
    assert [step.cloud.cloud_calls for step in steps] == [2, 0, 0, 0]
    assert steps[1].scores.masked > 0 and steps[1].scores.refused == 0
    assert steps[0].update.groups_trained == 2
    assert answer.source == "cloud"
    [notice] = world.events(Notice)
    assert "goes on without the cloud" in notice.text


async def test_refusal_by_the_daily_budget_moves_no_weight(tmp_path: Path) -> None:
    """The responses that asked are left out, as those whose call failed: the same update as with a cloud that is away."""
    updates = []
    for own in (True, False):
        world = World(tmp_path / str(own), daily_limits=DailyLimits(calls=0 if own else None))
        if not own:
            world.client.fail_next("complete", CoordinatorUnavailable("nobody there", reason="UPSTREAM"), times=1000)
        await world.learn(max_steps=2)
        updates.append(world.learners[0].updates)
    assert updates[0] == updates[1]


async def test_a_cloud_that_answers_no_call_is_reported_once_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.client.fail_next("complete", CoordinatorUnavailable("nobody there", reason="UPSTREAM_FAILED"), times=1000)
    await world.learn(max_steps=3)
    [notice] = world.events(Notice)
    assert "nobody there" in notice.text and "address" in notice.text


async def test_unreachable_coordinator_uses_up_the_calls_of_the_day(tmp_path: Path) -> None:
    world = World(tmp_path, daily_limits=DailyLimits(calls=3))
    for method in ("complete", "get_call"):
        world.client.fail_next(method, CoordinatorUnavailable("gone"), times=1000)
    async with world.agent() as agent:
        await agent.learn()
        assert used_by(agent).open_calls == 3, "execution is unknown: fail closed"


class Ledger:
    """The results of `end_of`: the outcome of each call by its key, or unreachable."""

    def __init__(self) -> None:
        self.ends: dict[str, dict[str, object]] = {}
        self.asked: list[str] = []

    async def end_of(self, key: str) -> dict[str, object]:
        self.asked.append(key)
        if key not in self.ends:
            raise CoordinatorUnavailable("nobody there")
        return self.ends[key]


async def test_charged_calls_without_an_answer_use_up_the_daily_budget(state: StateFolder) -> None:
    paid, ledger = PaidClient(None), Ledger()
    ledger.ends = {call(number).call_key: {"call_state": "in_doubt", "charged_uusd": 200} for number in range(9)}
    budget = DailyBudget(state, ManualClock(), DailyLimits(spend_uusd=500), end_of=ledger.end_of)
    assert not any(await asked(limited(paid, budget), [call(number) for number in range(9)]))
    assert len(paid.asked) == 2
    assert (budget.today().spend_uusd, budget.today().open_calls) == (400, 0)


async def test_without_a_price_an_unconfirmed_call_blocks_others(state: StateFolder) -> None:
    paid, ledger = PaidClient(None), Ledger()
    budget = DailyBudget(state, ManualClock(), DailyLimits(spend_uusd=500), end_of=ledger.end_of)
    asking = limited(paid, budget)
    await asked(asking, [call(1), call(2)])
    assert paid.asked == [call(1).call_key]
    assert (await asking.ask(call(3))).unsent
    ledger.ends[call(1).call_key] = {"call_state": "completed", "charged_uusd": 30, "cloud_tokens": 7}
    paid.prices = [20]
    assert await asked(asking, [call(3)]) == [True]
    assert (budget.today().spend_uusd, budget.today().tokens, budget.today().open_calls) == (50, 14, 0)


async def test_repeated_call_is_not_dropped_while_its_old_outcome_is_checked(state: StateFolder) -> None:
    """A crash has left two calls that never arrived. While the first lookup runs, the second call is repeated."""
    clock, asked_for, made = ManualClock(), asyncio.Event(), asyncio.Event()
    with state.database as database:
        for number in (1, 2):
            row = (call(number).call_key, local_day(clock.now()), clock.now(), "math")
            database.execute("INSERT INTO learning_spend VALUES (?, ?, ?, ?, 0, 0, 0, 0)", row)
    slow = True

    async def end_of(key: str) -> dict[str, object]:
        nonlocal slow
        if slow and key == call(2).call_key:
            slow = False
            asked_for.set()
            await made.wait()
        return {"call_state": "never_arrived", "charged_uusd": 0}

    class Slow(PaidClient):
        async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
            made.set()
            await asyncio.sleep(0)
            return await super().complete(call, deadline_s)

    asking = limited(Slow(7), DailyBudget(state, clock, DailyLimits(calls=9), end_of=end_of))
    first = asyncio.create_task(asking.ask(call(1)))
    await asked_for.wait()
    await asyncio.gather(first, asking.ask(call(2)))
    today = DailyBudget(state, clock, DailyLimits()).today()
    assert (today.calls, today.spend_uusd, today.open_calls) == (2, 14, 0)


async def test_single_call_above_the_daily_limit_does_not_end_help_for_learning_forever(state: StateFolder) -> None:
    clock, paid = ManualClock(), PaidClient(5000, 10)
    asking = limited(paid, DailyBudget(state, clock, DailyLimits(spend_uusd=4000)))
    assert await asked(asking, [call(0)]) == [True]
    clock.advance(DAY_S)
    assert "a call may cost 0.005 USD" in (await asking.ask(call(1))).reason
    clock.advance((PRICE_DAYS - 1) * DAY_S)
    assert await asked(asking, [call(2), call(3)]) == [True, True]


async def test_an_unsettled_call_counts_at_the_maximum_cost(state: StateFolder) -> None:
    paid, ledger = PaidClient(100, None), Ledger()
    asking = limited(paid, DailyBudget(state, ManualClock(), DailyLimits(spend_uusd=350), end_of=ledger.end_of))
    for number in range(5):
        await asking.ask(call(number))
    assert len(paid.asked) == 3


async def test_undelivered_call_is_not_counted_and_is_reserved_anew_when_repeated(state: StateFolder) -> None:
    paid, ledger, clock = PaidClient(None), Ledger(), ManualClock()
    budget = DailyBudget(state, clock, DailyLimits(calls=1), end_of=ledger.end_of)
    asking = limited(paid, budget)
    ledger.ends[call(1).call_key] = {"call_state": "never_arrived", "charged_uusd": 0}
    await asking.ask(call(1))
    assert (budget.today().calls, budget.today().open_calls) == (1, 1)  # its request may still be on its way
    clock.advance(ARRIVES_WITHIN_S)
    paid.prices = [5]
    assert await asked(asking, [call(2)]) == [True]
    assert (await asking.ask(call(1))).unsent


async def test_learning_looks_up_the_cost_of_a_lost_reply(tmp_path: Path) -> None:
    world = World(tmp_path, daily_limits=DailyLimits(spend_uusd=250))
    for _ in range(50):
        world.client.lose_next_reply()
    async with world.agent() as agent:
        await agent.learn()
        used = used_by(agent)
        spent = used_today(agent.components.state.database, world.clock.now()).today.learning_spend_uusd
    assert used.spend_uusd == 100 * len(world.client.calls) == spent == 200
    assert used.open_calls == 0
