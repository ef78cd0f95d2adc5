"""The concurrent cloud calls of a step: the outcome of one changes no other."""

from __future__ import annotations

import asyncio

import pytest

from edge.cloud.client import OWN_PRICE_KEYS, WatchedClient
from edge.cloud.group_calls import GroupCalls
from edge.core.errors import CallInProgress, CoordinatorUnavailable, RateLimited, Unpriced
from edge.core.events import MemorySink
from edge.state.events import Notice
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from tests.worlds.coordinator import call


class CountingClient(ScriptedCoordinatorClient):
    """Answers the first call with a key of `instead` with that error, after it was done."""

    def __init__(self, **settings) -> None:
        super().__init__(lambda asked: asked.messages[-1].content.upper(), **settings)
        self.begun = 0
        self.looked_up: list[str] = []
        self.instead: dict[str, Exception] = {}

    async def complete(self, call, deadline_s):
        self.begun += 1
        completion = await super().complete(call, deadline_s)
        if error := self.instead.pop(call.call_key, None):
            raise error
        return completion

    async def get_call(self, call_key):
        self.looked_up.append(call_key)
        return await super().get_call(call_key)


def numbered(count: int):
    return [call(f"k{number}", f"question {number}", prompt_id=f"p{number}") for number in range(count)]


async def asked_together(client, calls):
    asking = GroupCalls(client, 5.0)
    return await asyncio.gather(*(asking.ask(each) for each in calls))


async def test_nothing_is_asked_where_the_cloud_is_disabled() -> None:
    client = CountingClient()
    assert (await GroupCalls(client, 5.0, lambda: "off").ask(call())).reason == "off"
    assert client.begun == 0 and not client.calls


async def test_a_refused_call_leaves_the_others_answered() -> None:
    client = CountingClient(terms=ScriptedTerms(calls_limit=3))
    outcomes = await asked_together(client, numbered(5))
    assert sum(outcome.refused for outcome in outcomes) == 2 and sum(outcome.completion is not None for outcome in outcomes) == 3


@pytest.mark.parametrize(
    "error", [CallInProgress("runs", retry_after_s=0.0), RateLimited("slowly", retry_after_s=0.001)], ids=type
)
async def test_temporary_failures_are_waited_out(error) -> None:
    client = CountingClient()
    client.instead["k1"] = error
    outcomes = await asked_together(client, numbered(3))
    assert [outcome.completion.text for outcome in outcomes] == ["QUESTION 0", "QUESTION 1", "QUESTION 2"]
    assert len(client.calls) == 3 and client.looked_up == (["k1"] if isinstance(error, CallInProgress) else [])


async def test_leaving_a_step_early_leaves_no_task_behind() -> None:
    client = CountingClient(delay_s=60.0)
    before = asyncio.all_tasks()
    asking = asyncio.create_task(asked_together(client, numbered(3)))
    while client.begun < 3:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_concurrent_calls_report_offline_and_online_and_keep_the_newest_budget() -> None:
    sink, client = MemorySink(), CountingClient()
    watched = WatchedClient(client, sink, ManualClock())
    client.instead = {"k0": CoordinatorUnavailable("gone", reason="CONNECTION_LOST")}
    outcomes = await asyncio.gather(*(watched.complete(each, 5.0) for each in numbered(2)), return_exceptions=True)
    assert isinstance(outcomes[0], CoordinatorUnavailable)
    assert [type(event).__name__ for event in sink.events] == ["Offline", "Online"]
    assert watched.online and watched.reported[numbered(1)[0].task].budget.calls == 2


async def test_a_cloud_without_a_price_is_noticed_once_with_the_keys_to_set() -> None:
    sink, client = MemorySink(), CountingClient()
    watched = WatchedClient(client, sink, ManualClock(), OWN_PRICE_KEYS)
    client.fail_next("complete", Unpriced("model 'default' has no price"), times=2)
    assert [outcome.reason for outcome in await asked_together(watched, numbered(2))] == ["model 'default' has no price"] * 2
    assert [type(event) for event in sink.events] == [Notice]
    assert "coordinator.embedded.price_in_uusd_per_mtok" in sink.events[0].text


async def test_rate_limited_call_is_not_sent_after_the_cloud_was_disabled() -> None:
    client, off = CountingClient(), []
    client.fail_next("complete", RateLimited("soon", retry_after_s=0.01))
    asking = GroupCalls(client, 5.0, lambda: off.pop() if off else "")
    asked = asyncio.create_task(asking.ask(numbered(1)[0]))
    while client._failures["complete"]:
        await asyncio.sleep(0)
    off.append("paused")
    outcome = await asked
    assert (outcome.completion, outcome.reason, outcome.unsent) == (None, "paused", True)
    assert client.calls == []
