"""Fault worlds of the real agent: where it may die, and what of it is checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.simulate.faults.explore import AGENTS
from tools.simulate.faults.scenario import CALL_POINTS, STEP_POINTS, AgentPlan, Fault, FaultScenario
from tools.simulate.faults.terms import DrawnTaskTerms, DrawnTerms
from tools.simulate.faults.world import play

CALM = FaultScenario(
    seed=3,
    agents=(AgentPlan(questions=6, every_s=20.0, steps=3),),
    tasks=("math",),
    lasts_s=200.0,
    prompts=2,
    group_size=2,
    slots=2,
    max_queue=8,
    terms=DrawnTerms(tasks={"math": DrawnTaskTerms(target_rate=0.3, dual_lr=0.3)}),
    begins_s=0.0,
)


@pytest.mark.parametrize("point", STEP_POINTS)
def test_an_agent_that_dies_in_a_step_goes_on_where_it_was(point: str) -> None:
    dies = Fault(at=40.0, kind="crash_at", for_s=5.0, detail=point)
    outcome = play(replace(CALM, faults=(dies,)))
    assert outcome.verdict.violations == []
    assert outcome.injected[f"agent died at {point}"] == 1
    finished = {"checkpointed", "closed", "judged"}
    assert bool(outcome.verdict.met["cut step finished after a crash"]) is (point in finished)


@pytest.mark.parametrize("point", CALL_POINTS)
def test_what_a_call_cost_is_known_though_the_agent_died_around_it(point: str) -> None:
    dies = [Fault(at=at, kind="crash_at", for_s=2.0, detail=point) for at in (1.0, 60.0, 120.0)]
    outcome = play(replace(CALM, faults=tuple(dies)))
    assert outcome.verdict.violations == []
    assert outcome.injected[f"agent died at {point}"] >= 2


def test_reports_made_while_the_coordinator_was_away_are_delivered_once_it_is_back() -> None:
    outcome = play(replace(CALM, faults=(Fault(at=10.0, kind="kill", for_s=150.0),)))
    assert outcome.verdict.violations == []
    assert outcome.verdict.met["waiting step report delivered"] > 0
    assert outcome.verdict.met["step reported"] == CALM.agents[0].steps


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_real_agents_and_scripted_devices_share_a_world_and_its_faults(seed: int) -> None:
    drawn = AGENTS.draw(seed)
    faults = (*drawn.faults, Fault(2.0, "crash", 1.0), Fault(3.0, "disk_locked", 2.0), Fault(4.0, "kill", 1.0))
    by_time = tuple(sorted(faults, key=lambda fault: fault.at))
    outcome = play(replace(drawn, devices=2, steps=2, watched=True, administered=True, faults=by_time))
    assert outcome.verdict.violations == []
    assert {"I11", "A1", "A9"} <= set(outcome.verdict.checks)
    assert outcome.verdict.met["watcher at the end"] > 0 and outcome.verdict.met["step reported"] > 0


def test_what_breaks_an_agent_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("the gate fell")

    monkeypatch.setattr("edge.learning.loop.Learning._make", broken)
    violations = play(CALM).verdict.violations
    assert any("A8: agent-0 broke: ['ValueError: the gate fell'" in line for line in violations)
