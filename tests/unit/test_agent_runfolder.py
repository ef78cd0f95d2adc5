"""Run folders, and figures: drawn when due, on a thread, without delaying learning."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from edge.config.schema import PhaseConfig
from edge.core.errors import StateError
from edge.core.events import FanOutSink
from edge.learning import figures as gallery_module
from edge.learning.figures import STEPS_BETWEEN, LiveFigures, write_figures
from edge.learning.run_folder import RunFolder, summary_of
from edge.state.events import FamilyScores, HeldOutScored, PhaseStarted, RunFinished, StepFinished
from tests.unit.test_agent_retention import scored
from tests.worlds.agent import World, changed
from tests.worlds.steps import step


async def finished_run(tmp_path: Path, steps: int):  # type: ignore[no-untyped-def]
    world = World(tmp_path / "state", phases=(PhaseConfig(source="sums", steps=steps), PhaseConfig(source="other", steps=2)))
    folder = RunFolder(tmp_path / "run", "mode: auto\n")
    world.sink = FanOutSink([world.sink, folder])  # type: ignore[assignment]
    async with world.agent() as agent:
        finished = await agent.learn()
        summary = folder.finish(agent.components.state.steps(), finished, agent.adapter.in_use())
        folder.close()
        return folder.folder, summary, agent.components.state.steps(), finished


async def test_a_run_leaves_configuration_events_metrics_figures_adapter_and_summary(tmp_path: Path) -> None:
    folder, summary, steps, _ = await finished_run(tmp_path, 4)
    assert (folder / "config.yaml").read_text() == "mode: auto\n"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    assert (kinds[0], kinds[-1], kinds.count("step_finished")) == ("run_started", "run_finished", 6)
    assert "step_progress" not in kinds
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["dual_after"]) for row in rows] == [step.control.dual_after for step in steps]
    assert set(rows[0]) >= {
        "step",
        "assist_rate",
        "target_rate",
        "kept_accuracy",
        "joint_accuracy",
        "gate",
        "rollout_s",
        "help_auc",
    }
    assert (rows[0]["sums.assist_rate"], rows[0]["sums.prompts"]) == (str(steps[0].scores.families[0].assist_rate), "3")
    assert not [text for row in rows for text in row.values() if text.startswith(("(", "[", "{"))], "a cell is one value"
    for name in ("rate_and_dual.png", "accuracy.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert (folder / "adapter" / "learner.json").is_file()
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (summary["steps"], summary["cloud_calls"], summary["reason"]) == (6, steps[-1].cloud.total_cloud_calls, "done")


async def test_summary_weights_local_accuracy_by_local_answers_and_reports_each_phase(tmp_path: Path) -> None:
    _, summary, steps, finished = await finished_run(tmp_path, 4)
    last = steps[-summary["last_steps"] :]
    kept = sum(round(step.scores.coverage * step.scores.responses) for step in last)
    right = sum(round((step.scores.kept_accuracy or 0) * step.scores.coverage * step.scores.responses) for step in last)
    assert summary["last"]["kept_accuracy"] == pytest.approx(right / kept)
    assert summary_of([], finished)["last"] == {}
    assert [(phase["task"], phase["first_step"], phase["last_step"]) for phase in summary["phases"]] == [
        ("math", 1, 4),
        ("code", 5, 6),
    ]
    families = summary["phases"][1]["last"]["families"]
    assert (list(families), families["sums"]["assist_rate"]) == (["sums"], pytest.approx(steps[-1].control.assist_rate))


def test_family_means_are_weighted_by_prompts_and_local_answers() -> None:
    steps = [
        changed(step(1), families=(FamilyScores("a", 1, 0.5, 1.0, 1.0), FamilyScores("b", 3, 1.0, None, 0.5))),
        changed(step(2), families=(FamilyScores("a", 3, 0.0, 0.5, 0.5),)),
        changed(step(3), families=()),
    ]
    finished = RunFinished("r", "done", 3, 3, 0, 0, 0, 1.0, 0.0)
    summary = summary_of([*steps] * 1, finished)
    assert summary["first"]["families"]["a"] == {"prompts": 1, "kept_accuracy": 1.0, "joint_accuracy": 1.0, "assist_rate": 0.5}
    assert summary["first"]["families"]["b"]["kept_accuracy"] is None
    whole = summary_of([step(1), step(2), step(3), *steps[:2], step(6)], finished)["last"]["families"]["a"]
    assert whole == {"prompts": 3, "kept_accuracy": 0.5, "joint_accuracy": 0.5, "assist_rate": 0.0}


def result(at: int, run_id: str = "r", source: str = "sums") -> HeldOutScored:
    return HeldOutScored(run_id, at, source, "math", at, 10, 0.5, (0.2, 0.8), None, 0.0, 1.0, 3.0)


def test_held_out_results_are_read_without_a_truncated_last_line(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path, "")) as folder:
        for one in (result(3), result(0), result(0, "another")):
            folder.emit(one)
    with (tmp_path / "evals.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "held_out_sco')
    with closing(RunFolder(tmp_path, "")) as folder:
        assert folder.held_out("r") == [result(0), result(3)]
        folder.emit(result(5))
    with closing(RunFolder(tmp_path, "")) as folder:
        assert folder.held_out("r") == [result(0), result(3), result(5)]


def test_damaged_result_line_is_refused_with_its_number(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path, "")) as folder:
        folder.emit(result(0))
    with (tmp_path / "evals.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "held_out_scored"}\n')
    with pytest.raises(StateError, match=r"evals\.jsonl:2: not a result on held-out items"):
        RunFolder(tmp_path, "")


def two_phases(names: tuple[str, ...]) -> list[StepFinished]:
    scores = tuple(FamilyScores(name, 4, 0.2, 0.5, 0.7) for name in names)
    first = [changed(step(number), families=scores) for number in (1, 2)]
    return [*first, changed(step(3), phase=1, source="b", task="b", families=scores)]


@pytest.mark.parametrize(
    ("families", "held_out", "names"),
    [
        (("a",), [], ["rate_and_dual.png", "accuracy.png"]),
        (("a", "b"), [], ["rate_and_dual.png", "accuracy.png", "families.png"]),
        ((), [result(0), result(3, source="other")], ["rate_and_dual.png", "accuracy.png", "forgetting.png"]),
    ],
)
def test_figures_are_drawn_where_there_is_data(
    tmp_path: Path, families: tuple[str, ...], held_out: list[HeldOutScored], names: list[str]
) -> None:
    assert [path.name for path in write_figures(tmp_path, two_phases(families), held_out)] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_steps_without_any_local_answer_can_be_drawn(tmp_path: Path) -> None:
    lonely = changed(step(1), kept_accuracy=None, joint_accuracy=None, families=(FamilyScores("a", 1, 1.0, None, None),) * 2)
    assert len(write_figures(tmp_path, [lonely], [result(0)])) == 3


def test_unwritable_run_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write the run folder"):
        RunFolder(tmp_path / "file" / "run", "")


def test_a_second_run_in_a_folder_is_refused_and_leaves_its_files_alone(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path, "mode: auto\n")):
        with pytest.raises(StateError, match="another run is writing this folder"):
            RunFolder(tmp_path, "mode: local\n")
        assert (tmp_path / "config.yaml").read_text() == "mode: auto\n"
    RunFolder(tmp_path, "mode: local\n").close()


class Drawn:
    """Takes the place of drawing; `numbers` are (steps, results) of each time."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.numbers: list[tuple[int, int]] = []
        self.failure = failure
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    def __call__(self, folder: Path, steps: Sequence[StepFinished], held_out: Sequence[HeldOutScored]) -> list[Path]:
        assert folder.is_dir()
        self.numbers.append((len(steps), len(held_out)))
        self._loop.call_soon_threadsafe(self._done.set)
        if self.failure is not None:
            raise self.failure
        return []

    async def once_more(self) -> None:
        await asyncio.wait_for(self._done.wait(), 30)
        self._done.clear()


async def test_figures_are_drawn_at_intervals_and_at_the_end_with_earlier_steps(tmp_path: Path) -> None:
    draw = Drawn()
    async with LiveFigures(tmp_path / "figures", lambda line: None, draw).open([step(1)]):
        pass
    assert draw.numbers == [], "earlier steps are no reason to draw"
    gallery = LiveFigures(tmp_path / "figures", lambda line: None, draw)
    async with gallery.open([step(1)], [scored(0, "a", 0.5)]):
        for number in range(2, STEPS_BETWEEN + 2):
            gallery.emit(step(number))
        await draw.once_more()
        gallery.emit(step(STEPS_BETWEEN + 2))
    assert draw.numbers == [(STEPS_BETWEEN + 1, 1), (STEPS_BETWEEN + 2, 1)]


async def test_phase_switch_and_held_out_results_are_drawn_immediately(tmp_path: Path) -> None:
    draw = Drawn()
    gallery = LiveFigures(tmp_path, lambda line: None, draw)
    async with gallery.open([], at_the_end=False):
        gallery.emit(PhaseStarted(0, "a", "a", 0.3, 1, 1))
        gallery.emit(step(1))
        gallery.emit(PhaseStarted(1, "b", "b", 0.3, None, 1))
        await draw.once_more()
        gallery.emit(scored(1, "a", 0.5))
        await draw.once_more()
        gallery.emit(step(2))
    assert draw.numbers == [(1, 0), (1, 1)]


async def test_drawing_failure_is_reported_once_and_ends_drawing_only(tmp_path: Path) -> None:
    lines: list[str] = []
    draw = Drawn(OSError("disk full"))
    gallery = LiveFigures(tmp_path, lines.append, draw)
    async with gallery.open([]):
        gallery.emit(step(1))
        gallery.emit(PhaseStarted(1, "b", "b", 0.3, None, 1))
        await draw.once_more()
        gallery.emit(step(2))
    (line,) = lines
    assert "disk full" in line and draw.numbers == [(1, 0)]


async def test_without_matplotlib_one_line_is_printed_and_nothing_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_module, "what_is_missing", lambda: "no figures: matplotlib is not installed")
    lines: list[str] = []
    draw = Drawn()
    gallery = LiveFigures(tmp_path / "figures", lines.append, draw)
    async with gallery.open([]):
        for number in range(50):
            gallery.emit(step(number))
    assert (len(lines), draw.numbers, (tmp_path / "figures").exists()) == (1, [], False)
