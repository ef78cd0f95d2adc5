"""A month's budget over changing demand: a spend target compared with a fixed rate, with the real agent, ledger and pacing."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.verify import verify
from tools.simulate.fleet.scenario import FleetScenario, load_scenario
from tools.simulate.fleet.world import FleetWorld
from tools.simulate.reports.assertions import evaluate
from tools.simulate.reports.result import SimulationResult

SCENARIOS = Path(__file__).parents[2] / "tools" / "simulate" / "scenarios"
MONTH = SCENARIOS / "budget-month.yaml"
BUDGET_UUSD = 1_000_000


def played(scenario: FleetScenario, folder: Path) -> SimulationResult:
    world = FleetWorld(scenario, "month", folder)
    result = world.run()
    journal = list(world.disk.tables.journal_after(0))
    assert journal and not verify(world.disk.tables).differences, "the ledger never let more than the limit be held"
    return result


def test_a_months_budget_of_one_dollar_is_used_and_never_passed_while_demand_changes(tmp_path: Path) -> None:
    scenario = load_scenario(MONTH)
    result = played(scenario, tmp_path)
    assert [judged.sentence for judged in evaluate(result, scenario.assertions) if not judged.holds] == []
    spent = result.cloud.spend_uusd
    assert 0.95 * BUDGET_UUSD <= spent[-1] <= BUDGET_UUSD and max(spent) <= BUDGET_UUSD
    assert spent[15 * 24] < 0.65 * BUDGET_UUSD, "the busy second week does not eat the second half of the month"


@pytest.mark.long
def test_the_fixed_rate_of_the_same_month_runs_dry_in_its_fourth_week(tmp_path: Path) -> None:
    scenario = load_scenario(SCENARIOS / "budget-month-by-rate.yaml")
    result = played(scenario, tmp_path)
    assert [judged.sentence for judged in evaluate(result, scenario.assertions) if not judged.holds] == []
    assert result.cloud.spend_uusd[23 * 24] > 0.98 * BUDGET_UUSD
