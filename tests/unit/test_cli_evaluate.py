"""`edge-agent eval` around the measurement: contradicting options, strata, and the printed report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.app.measuring import eval_candidates
from edge.app.settings import adapter_version
from edge.cli import main
from edge.cli.evaluate import adapter_described, adapter_folders, report_lines
from edge.config.schema import AgentConfig
from edge.core.clock import SystemClock
from edge.core.errors import StateError
from edge.core.events import EventSink, MemorySink
from edge.evaluation.evaluate import EvalRoles
from edge.evaluation.judging import Candidate
from edge.evaluation.plan import EvalOutcome, EvalPlan, EvalRun
from edge.evaluation.scores import build_report
from edge.routing.policy import SelfOffload
from edge.state.folder import StateFolder
from edge.state.rows import Lineage
from edge.tasks.descriptions import strata_of
from edge.tasks.practice import FAMILIES
from edge.tasks.registry import open_source
from edge.testing.backend import ScriptedBackend
from edge.verifiers.math_answer import ExactMathAnswer
from tests.unit.conftest import EdgeAgent
from tests.unit.test_agent_evaluate import judged, measured
from tests.worlds.agent import World


@pytest.mark.parametrize(
    "options",
    [
        "--limit 5 --per-level 5",
        "--record report --replay report",
        "--no-cloud --cloud-all",
        "--no-cloud --replay report",
        "--plot p.png",
        "--plot p.txt --cloud-all",
        "--json-out no/such/folder/r.json",
        "--json-out /",
    ],
)
def test_impossible_options_are_refused_immediately(options: str, tmp_path: Path) -> None:
    assert main(["eval", "--state", str(tmp_path / "state"), *options.split()]) == 2
    assert not (tmp_path / "state").exists()


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EvalPlan]:
    """The plan of `eval` with these options."""
    plans: list[EvalPlan] = []

    async def evaluate(config: AgentConfig, sink: EventSink, plan: EvalPlan) -> EvalOutcome:
        plans.append(plan)
        raise StateError("enough is known")

    monkeypatch.setattr("edge.app.measuring.evaluate", evaluate)
    monkeypatch.setattr("edge.rpc.cassette.read_cassette", lambda path: None)

    def plan_of(*options: str) -> EvalPlan:
        assert main(["eval", "--state", str(tmp_path / "state"), *options]) == 1
        return plans.pop()

    return plan_of


def test_plan_uses_the_configured_sources_where_none_are_named(planned: Callable[..., EvalPlan]) -> None:
    plan = planned()
    assert (plan.sources, plan.limit, plan.cloud) == (tuple(phase.source for phase in AgentConfig().phases), 200, "coordinator")
    named = [word for name in ("arith", "facts", "arith") for word in ("--tasks", f"practice:{name}")]
    assert planned(*named).sources == ("practice:arith", "practice:facts")


def test_with_the_cloud_disabled_nobody_is_asked_but_a_replay_works(
    planned: Callable[..., EvalPlan], monkeypatch: pytest.MonkeyPatch, edge_agent: EdgeAgent
) -> None:
    monkeypatch.setenv("EDGE_AGENT_NO_CLOUD", "1")
    assert planned().cloud == "none"
    replay = planned("--replay", "report", "--plot", "p.png")
    assert (replay.cloud, replay.cloud_all) == ("replay", True), "a plot needs every answer"
    edge_agent("eval", "--cloud-all").refused(2, "EDGE_AGENT_NO_CLOUD")


def test_active_adapter_is_measured_by_default_and_its_name_is_printed(tmp_path: Path) -> None:
    config = AgentConfig(state_folder=str(tmp_path))

    def steps(adapter: str) -> list[int]:
        return [int(folder.parent.name.removeprefix("step-")) for folder in adapter_folders(adapter, config)]

    def notice(adapter: str) -> str:
        return adapter_described(adapter_folders(adapter, config), adapter, config)

    with StateFolder(tmp_path) as state:  # read while an agent holds the folder
        for step in (3, 12):
            (tmp_path / f"checkpoints/step-{step:06d}/adapter").mkdir(parents=True)
        state.set_lineage(Lineage(3, 3))
        assert (steps("serving"), steps("latest"), steps("none")) == ([3], [12, 3], [])
        assert "adapter 3" in notice("serving") and "adapter 12" in notice("latest") and "adapter 3 is active" in notice("latest")
        state.set_lineage(Lineage(0, 0))
        assert (steps("serving"), "bare model" in notice("serving"), "bare model" in notice("latest")) == ([], True, True)
    assert adapter_folders("serving", AgentConfig(state_folder=str(tmp_path / "none"))) == ()


def test_adapter_of_a_run_has_the_final_version_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    assert adapter_version(tmp_path / "adapter") is None
    (tmp_path / "summary.json").write_text('{"adapter_version": 8}')
    assert adapter_version(tmp_path / "adapter") == 8
    assert adapter_folders("serving", AgentConfig(), tmp_path) == (tmp_path / "adapter",)


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["--replay", "none.jsonl"], "cassette none.jsonl cannot be read", 1),
        (["--tasks", "."], "is a folder", 1),
        (["--run", "x" * 5000], "not a run folder", 2),
        (["--adapter", "nowhere"], "no such adapter folder", 2),
        (["--model", "nowhere"], "no such model file", 1),
    ],
)
def test_error_is_one_line(words: list[str], message: str, code: int, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    edge_agent("eval", "--state", str(tmp_path / "state"), *words).refused(code, message)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a\\ud800b", "split": "test", "answer": 1}', "half a character"),
        ('{"question": "a", "split": "train", "answer": 1}', "no test item"),
    ],
)
def test_unusable_task_file_is_reported_before_anything_starts(
    line: str, message: str, tmp_path: Path, edge_agent: EdgeAgent
) -> None:
    source = tmp_path / "t.jsonl"
    source.write_text(line + "\n")
    edge_agent("eval", "--state", str(tmp_path / "state"), "--tasks", str(source)).refused(1, message, str(source))


# --- strata ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_practice_family_has_equally_many_items_of_every_level_and_keeps_its_weights(family: str) -> None:
    strata = strata_of(open_source(f"practice:{family}"), 4)
    assert [(one.level, len(one.items)) for one in strata] == [(level, 4) for level in FAMILIES[family].levels]
    assert sum(one.weight for one in strata) == pytest.approx(1.0)
    assert all(item.split == "test" and item.level == one.level for one in strata for item in one.items)


def test_group_items_have_the_groups_label_and_equal_family_weights() -> None:
    candidates = eval_candidates(EvalPlan(("practice:group1",), per_level=3))
    assert {one.item.task for one in candidates} == {"group1"}
    weights = {name: sum(one.weight for one in candidates if one.item.family == name) for name in ("arith", "science")}
    assert weights == {"arith": pytest.approx(1.0), "science": pytest.approx(1.0)}


def test_items_shared_by_two_sources_are_measured_once() -> None:
    for mix in ({"per_level": 3}, {"limit": 20}):
        group = eval_candidates(EvalPlan(("practice:group1",), **mix))
        both = eval_candidates(EvalPlan(("practice:group1", "practice:arith"), **mix))
        shared = {one.key for one in group} & {one.key for one in eval_candidates(EvalPlan(("practice:arith",), **mix))}
        assert sum(one.repeats for one in both) == len(shared)
        assert [replace(one, repeats=0) for one in both[: len(group)]] == group, "weights stay those of the first source"
        assert len({one.key for one in both}) == len(both)
    assert shared


async def test_a_journal_belongs_to_one_adapter_and_one_policy(tmp_path: Path) -> None:
    """Also where the adapter was trained over a folder of weights and has no GGUF file."""
    roles = EvalRoles(ScriptedBackend(lambda *_: "no"), ExactMathAnswer(), SelfOffload(), None)
    settings = World(tmp_path / "state").rollout_settings("run")
    adapters = []
    for name in ("one", "two"):
        adapters.append(tmp_path / name)
        adapters[-1].mkdir()
        (adapters[-1] / "adapter_model.safetensors").write_text(name)
    plan = EvalPlan(("practice:arith",), limit=2, journal=tmp_path / "judged.jsonl")
    candidates = eval_candidates(plan)

    async def run(plan: EvalPlan, adapter: Path | None) -> None:
        await EvalRun(plan, roles, settings, adapter, None, MemorySink(), SystemClock()).outcome(candidates)

    await run(plan, adapters[0])
    await run(plan, adapters[0])
    for other, adapter, message in (
        (plan, adapters[1], "adapter"),
        (plan, None, "adapter"),
        (replace(plan, policy="router"), adapters[0], "policy"),
    ):
        with pytest.raises(StateError, match=message):
            await run(other, adapter)


def test_levels_of_a_file_are_weighted_like_its_test_split(tmp_path: Path) -> None:
    source = tmp_path / "t.jsonl"
    levels = [1] * 6 + [2] * 2
    lines = [{"question": f"{n}?", "answer": n, "split": "test", "level": level} for n, level in enumerate(levels)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    strata = strata_of(open_source(str(source)), 3)
    assert [(one.level, one.weight, len(one.items)) for one in strata] == [(1, 0.75, 3), (2, 0.25, 2)]


# --- what a person reads --------------------------------------------------------------------------------------------------


def lines_of(items: list[Any], **facts: Any) -> list[str]:
    return list(report_lines(build_report(measured(**facts), items)))


def test_no_accuracy_is_printed_without_its_rate_or_coverage() -> None:
    items = [judged(n, asked=n % 3 == 0, cloud=True) for n in range(12)]
    lines = lines_of(items)
    rates = {
        "local accuracy": "answered locally 66.7 %",
        "forced local": "@ 0 %",
        "right in the end": "@ 33.3 %",
        "oracle": "@ 33.3 %",
    }
    for word, rate in rates.items():
        assert rate in next(line for line in lines if line.startswith(word)), word
    table = [line for line in lines if line.split()[:1] in (["sums"], ["level"])]
    assert len(table) == 4 and all(" of " in line and " @ " in line for line in table)


def test_family_name_cannot_inject_terminal_codes() -> None:
    one = judged(0)
    item = replace(one.item, family="\x1b[2Jsums")
    assert any("\\x1b[2Jsums" in line for line in lines_of([judged(1), replace(one, candidate=Candidate(item))]))
