"""The configuration of a TRL run and the prompts of its steps. Needs no TRL."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.config.schema import AgentConfig, LearningConfig, PhaseConfig
from edge.core.errors import ConfigError, EdgeError, TaskFileError, UsageError
from edge.core.types import TaskItem
from edge.learning.curriculum import Curriculum
from edge.state.folder import StateFolder
from edge.state.rows import Position
from edge.tasks.registry import open_source
from tests.worlds.agent import Sums, open_sums
from tests.worlds.trl import trl_config
from tools.integrations.sources import open_mixed
from tools.integrations.trl.__main__ import main
from tools.integrations.trl.config import resolve_run
from tools.integrations.trl.plans import step_plans
from tools.integrations.trl.processes import TrainingProcesses
from tools.integrations.trl.trainer import config_fields, passes

CONFIGS = Path("tools/integrations/trl/configs")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_launch_file_is_valid_and_its_responses_fit_one_and_eight_processes(path):
    config = resolve_run(path).config
    assert config.steps > 0
    for processes in (1, 2) if "cpu" in path.stem else (1, 2, 4, 8):
        assert config_fields(config, processes)["gradient_accumulation_steps"] >= 1


@pytest.mark.parametrize("name", ["qwen2.5-1.5b-instruct", "llama-3.2-3b-instruct"])
def test_the_launch_files_have_the_papers_settings(name):
    config = resolve_run(CONFIGS / f"{name}.yaml").config
    learning, fields = config.agent.learning, config_fields(config, 8)
    assert (learning.prompts_per_step, learning.group_size, learning.max_tokens, config.trainer.prompt_tokens) == (
        128,
        8,
        1024,
        1024,
    )
    assert (learning.optimiser.learning_rate, learning.control.dual_lr, learning.control.dual_init, config.trainer.tuning) == (
        2e-6,
        0.01,
        0.5,
        "full",
    )
    first, second = config.agent.phases
    assert (first.source, first.target_rate, first.steps) == ("math+arc-easy+arc-challenge", 0.3, 840)
    assert (second.source, second.target_rate, second.steps) == ("taco+mmlu", 0.5, 400)
    assert (fields["beta"], fields["num_iterations"], fields["scale_rewards"]) == (0.0, 1, "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent: {phases: [{source: 'practice:arith'}]}", "needs a number of steps"),
        ("agent: {phases: [{source: 'practice:arith', steps: 2}], learning: {method: gvpo}}", "method"),
        ("trainer: {tunning: full}", "tunning"),
        ("agent: {phases: []}", "name at least one phase"),
    ],
)
def test_invalid_configuration_is_refused_in_one_line(text, message, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve_run(path)


def test_one_update_takes_all_responses_for_any_number_of_processes():
    config = trl_config(LearningConfig(group_size=8, prompts_per_step=128), rows_per_pass=8)
    assert [passes(config, count) for count in (1, 2, 8)] == [128, 64, 16]
    with pytest.raises(UsageError, match="no multiple of 3 processes x 8 rows"):
        passes(config, 3)


def two_labels(folder: Path) -> str:
    """A task file with 8 questions labelled geo and 4 labelled law."""
    path = folder / "two.jsonl"
    records = [
        {"question": f"What is {number} + 1 in {label}?", "answer": number + 1, "label": label}
        for label, count in (("geo", 8), ("law", 4))
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def test_the_steps_have_the_prompts_labels_and_rates_of_the_agents_own(tmp_path):
    file, mixture = two_labels(tmp_path), "practice:group1+practice:arith"
    phases = (
        PhaseConfig(source="practice:group1", steps=2),
        PhaseConfig(source=file, steps=6),
        PhaseConfig(source=mixture, target_rate=0.5, steps=2),
        PhaseConfig(source=file, task="law", steps=1),
    )
    config = AgentConfig(learning=LearningConfig(prompts_per_step=4, seed=5), phases=phases)
    own = step_plans(config, open_mixed, lambda item: True)
    assert [Counter(plan.source for plan in own)[f"{file}#{label}"] for label in ("geo", "law")] == [4, 2]
    with StateFolder(tmp_path / "state") as state:
        theirs = Curriculum(phases, open_mixed, state, 5, 4)
        for plan in own:
            expected = theirs.next_step()
            assert plan == expected
            state.set_position(Position(plan.step, plan.phase, plan.phase_step))
            with state.database:
                state.database.execute("REPLACE INTO cursors VALUES (?, ?, ?)", (plan.source, 5, plan.cursor_after))
        assert theirs.next_step() is None


def test_oversized_prompts_change_neither_turns_nor_order(tmp_path):
    config = AgentConfig(learning=LearningConfig(prompts_per_step=2), phases=(PhaseConfig(source=two_labels(tmp_path), steps=9),))

    def questions(fits: Callable[[TaskItem], bool]) -> tuple[list[str], dict[str, list[str]]]:
        plans = step_plans(config, open_source, fits)
        by_label = {
            task: [item.question for plan in plans if plan.task == task for item in plan.items] for task in ("geo", "law")
        }
        return [plan.task for plan in plans], by_label

    turns, every = questions(lambda item: True)
    same_turns, fitting = questions(lambda item: "is 3" not in item.question)
    assert same_turns == turns
    for label, items in fitting.items():
        begins = [item for item in every[label] if "is 3" not in item]
        assert items[: len(begins)] == begins


class Listed(Sums):
    """A fixed number of sums."""

    def __init__(self, name: str) -> None:
        super().__init__(name, task=name)
        self.train_items = tuple(range({"large": 9000, "small": 1000, "first": 3000}[name]))


def shares(name: str, opened: Any, count: int = 4000) -> dict[str, float]:
    tasks = [item.task for item in islice(open_mixed(name, opened).train(3), count)]
    return {task: round(tasks.count(task) / count, 1) for task in sorted(set(tasks))}


def test_a_mixture_takes_from_each_source_in_proportion_but_never_more_than_from_the_first():
    assert shares("first+small", Listed) == {"first": 0.8, "small": 0.2}
    assert shares("first+large", Listed) == {"first": 0.5, "large": 0.5}
    assert shares("other+sums", lambda name: Sums(name, task=name)) == {"other": 0.5, "sums": 0.5}


def test_mixture_resumes_where_it_was_and_holds_items_of_each_source_back():
    mixed = open_mixed("first+small", Listed)
    assert [item.id for item in islice(mixed.train(3, 5), 4)] == [item.id for item in islice(mixed.train(3), 9)][5:]
    assert [item.task for item in mixed.test(3)] == ["first", "small", "first"]
    assert (mixed.name, open_mixed("sums", open_sums).name) == ("first+small", "sums")
    with pytest.raises(UsageError, match="a source is missing"):
        open_mixed("math+")


def test_oversized_prompts_are_skipped():
    phases = (PhaseConfig(source="sums", steps=1),)
    config = AgentConfig(learning=LearningConfig(prompts_per_step=2), phases=phases)
    (step,) = step_plans(config, open_sums, lambda item: int(item.id.split("-")[1]) % 2 == 1)
    assert ([item.id for item in step.items], step.cursor_after) == (["math-1", "math-3"], 2)
    with pytest.raises(TaskFileError, match="no prompt of the first 1000 fits"):
        step_plans(config, open_sums, lambda item: False)


def test_a_single_process_under_accelerate_needs_no_others():
    pytest.importorskip("accelerate")
    processes = TrainingProcesses(wait_s=60)
    assert (processes.is_main, processes.count, processes.index) == (True, 1, 0)
    assert processes.gather([1, 2]) == [1, 2]
    assert processes.from_main(lambda: {"a": 1}) == {"a": 1}
    with pytest.raises(EdgeError, match="gone"):
        processes.from_main(lambda: (_ for _ in ()).throw(EdgeError("gone")))


def test_launched_processes_that_are_not_connected_are_refused(monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("accelerate.PartialState", lambda **_: SimpleNamespace(num_processes=1))
    with pytest.raises(UsageError, match="2 processes were started but are not connected"):
        TrainingProcesses(wait_s=60)


def test_term_ends_a_run_by_an_exception_so_that_it_can_be_summed_up(monkeypatch, tmp_path):
    seen = []

    def running(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException as error:
            os.kill(os.getpid(), signal.SIGTERM)  # a second one does not cut the summary
            seen.append(type(error))
            raise

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("tools.integrations.trl.config.resolve_run", lambda *_: None)
    monkeypatch.setitem(sys.modules, "tools.integrations.trl.run", SimpleNamespace(run=running))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "run.yaml")])
    assert (ended.value.code, seen, signal.getsignal(signal.SIGTERM)) == (143, [SystemExit], before)
