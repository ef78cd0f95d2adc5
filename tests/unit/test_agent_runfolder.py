from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from edge.agent.figures import running_mean
from edge.agent.runfolder import RunFolder, summary_of
from edge.config.schema import PhaseConfig
from edge.core.errors import StateError
from edge.core.events import FanOutSink
from tests.unit.agent_world import World


async def finished_run(tmp_path: Path, steps: int):  # type: ignore[no-untyped-def]
    world = World(tmp_path / "state", phases=(PhaseConfig(source="sums", steps=steps), PhaseConfig(source="other", steps=2)))
    folder = RunFolder(tmp_path / "run", "mode: auto\n")
    world.sink = FanOutSink([world.sink, folder])  # type: ignore[assignment]
    async with world.agent() as agent:
        finished = await agent.learn()
        summary = folder.finish(agent.steps(), finished, agent.adapter())
        folder.close()
        return folder.folder, summary, agent.steps(), finished


async def test_a_run_leaves_configuration_events_metrics_figures_adapter_and_summary(tmp_path: Path) -> None:
    folder, summary, steps, _ = await finished_run(tmp_path, 4)
    assert (folder / "config.yaml").read_text() == "mode: auto\n"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    assert (kinds[0], kinds[-1], kinds.count("step_finished"), "step_progress" in kinds) == (
        "run_started",
        "run_finished",
        6,
        False,
    )
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["dual_after"]) for row in rows] == [step.dual_after for step in steps]
    assert set(rows[0]) >= {"step", "assist_rate", "target_rate", "kept_accuracy", "joint_accuracy", "rollout_s", "update_s"}
    for name in ("rate_and_price.png", "accuracy.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert (folder / "adapter" / "learner.json").is_file()
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (summary["steps"], summary["cloud_calls"], summary["reason"]) == (6, steps[-1].total_cloud_calls, "done")


async def test_the_summary_weighs_kept_accuracy_by_what_was_kept(tmp_path: Path) -> None:
    _, _, steps, finished = await finished_run(tmp_path, 4)
    summary = summary_of(steps, finished)
    last = steps[-summary["last_steps"] :]
    kept = sum(round(step.coverage * step.responses) for step in last)
    right = sum(round((step.kept_accuracy or 0) * step.coverage * step.responses) for step in last)
    assert summary["last"]["kept_accuracy"] == pytest.approx(right / kept)
    assert summary_of([], finished)["last"] == {}


def test_a_run_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write the run folder"):
        RunFolder(tmp_path / "file" / "run", "")


def test_a_running_mean_is_centred_and_leaves_unknown_values_out() -> None:
    assert running_mean([1.0, None, 3.0], window=3) == [1.0, 2.0, 3.0]
    assert running_mean([None, None], window=3) == [None, None]
