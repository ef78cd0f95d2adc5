"""What is around the simulated devices: links, the cloud, people's hours and the timetable of learning."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.providers.provider import ProviderError, ProviderRequest
from edge.core.types import Message
from tests.worlds.fleet import in_virtual_time
from tools.simulate.fleet.cloud import Askers, SimulatedCloud
from tools.simulate.fleet.device import Timetable
from tools.simulate.fleet.hardware import LinkModel
from tools.simulate.fleet.link import PATIENCE_S, DeviceLink, FleetNetwork
from tools.simulate.fleet.mind import Nature, SimulatedQuestion
from tools.simulate.fleet.scenario import CloudPart, LearningPart, TokensPart
from tools.simulate.virtual.loop import SeededLoop

STEADY = LinkModel("steady", 0.1, 0.0, 1000.0, 2000.0)
HOUR, DAY = 3600.0, 86400.0


def link(model: LinkModel = STEADY, starts_at_h: float = 0.0) -> DeviceLink:
    return DeviceLink(model, random.Random(1), starts_at_h)


# links -------------------------------------------------------------------------------------------------------------------------


def test_a_message_takes_half_a_round_trip_its_bytes_and_those_before_it() -> None:
    one = link()
    assert one.delay_s(0.0, 880, up=True) == pytest.approx(0.05 + 1.0)
    assert one.delay_s(0.5, 880, up=True) == pytest.approx(0.05 + 1.5), "after the one before it"
    assert one.delay_s(0.5, 880, up=False) == pytest.approx(0.05 + 0.5)


def test_offline_hours_are_those_of_the_local_clock_every_day() -> None:
    nightly = link(replace(STEADY, offline_hours=(22.0, 6.0)), starts_at_h=20.0)
    assert nightly.up_again(HOUR) == HOUR
    assert nightly.up_again(3 * HOUR) == 10 * HOUR
    assert nightly.up_again(DAY + 3 * HOUR) == DAY + 10 * HOUR
    assert link(replace(STEADY, offline_hours=(22.0, 6.0))).up_again(0.0) == 6 * HOUR


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_a_link_that_breaks_by_chance_is_up_for_its_share_of_the_time(seed: int) -> None:
    breaking = DeviceLink(replace(STEADY, mean_up_s=90.0, mean_down_s=10.0), random.Random(seed), 0.0)
    up = sum(breaking.up_again(at) == at for at in range(0, 200_000, 10)) / 20_000
    assert up == pytest.approx(0.9, abs=0.03)


def test_a_message_in_a_short_outage_comes_after_it_and_in_a_long_one_breaks_its_connection() -> None:
    async def carried(loop: SeededLoop) -> list[tuple[str, float]]:
        network, seen = FleetNetwork(loop, random.Random(0)), list[tuple[str, float]]()
        for seconds in (10.0, 1000.0):
            one, began = link(), loop.time()
            one.force_down(began, seconds)
            network.carry(one, lambda: seen.append(("delivered", loop.time())), lambda: seen.append(("lost", loop.time())))
            await asyncio.sleep(2000.0)
        return seen

    (first, at), (second, later) = in_virtual_time(carried)
    assert (first, second) == ("delivered", "lost")
    assert at == pytest.approx(10.0, abs=0.5)
    assert later == pytest.approx(2000.0 + PATIENCE_S)


# the cloud ---------------------------------------------------------------------------------------------------------------------

QUESTION = SimulatedQuestion.of(5, 0.5, 1)


def request(deadline_s: float = 60.0, key: str = "k", most: int = 1000) -> ProviderRequest:
    return ProviderRequest((Message("user", QUESTION.text),), "m", most, 0.0, deadline_s, key)


def cloud(**values: Any) -> SimulatedCloud:
    asked = Askers(TokensPart(cloud=80, cloud_spread=0.0), Nature(cloud_skill=30.0))
    part = CloudPart.model_validate({"first_token_s": 1.0, "spread": 0.0, "tokens_per_s": 80} | values)
    return SimulatedCloud(part, lambda number: asked, lambda: 0, 1)


@pytest.mark.parametrize(
    ("values", "down", "deadline_s", "kind", "executed"),
    [
        ({}, True, 60.0, "http_503", False),
        ({"error_rate": 1.0}, False, 60.0, "http_500", False),
        ({}, False, 1.5, "deadline", None),
    ],
)
def test_a_failure_reports_whether_the_call_was_executed(
    values: dict[str, Any], down: bool, deadline_s: float, kind: str, executed: bool | None
) -> None:
    one = cloud(**values)
    one.down = down

    async def ask(loop: SeededLoop) -> tuple[ProviderError, float]:
        with pytest.raises(ProviderError) as failed:
            await one.complete(request(deadline_s))
        return failed.value, loop.time()

    error, took = in_virtual_time(ask)
    assert (error.kind, error.executed) == (kind, executed)
    assert took <= 1.5 + 1e-9
    assert one.under_way == 0
    assert not one.executed


# people and hours --------------------------------------------------------------------------------------------------------------


def turns(part: LearningPart, starts_at_h: float, days: int, shift: float = 0.0) -> list[float]:
    """Hours of the scenario at which a step begins, each done in no time."""
    now, found = [0.0], list[float]()
    table = Timetable(part, starts_at_h, shift, lambda: now[0], lambda: False)
    while now[0] < days * DAY:
        if not table.waiting_for(0.0, 0.0):
            found.append(now[0] / HOUR)
        else:
            now[0] += table.check_s
    return found


@settings(max_examples=40)
@given(st.integers(1, 300), st.integers(0, 23), st.integers(0, 23), st.floats(0, 24), st.floats(0, 0.999))
def test_a_day_has_so_many_turns_whatever_the_hours(steps: int, first: int, last: int, starts_at_h: float, shift: float) -> None:
    part = LearningPart(steps_per_day=steps, from_hour=first, until_hour=last)
    assert abs(len(turns(part, starts_at_h, 2, shift)) - 2 * steps) <= 1
