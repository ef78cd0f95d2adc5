"""How well the help log-odds of a label order right and wrong answers: which judged answers count, and where it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.config.schema import GateConfig, PhaseConfig
from edge.dagrpo.ranking import RankedAnswers
from edge.learning.step_event import ranked_responses
from edge.serve.running_agent import RunningAgent
from edge.state.events import StepFinished
from edge.state.folder import StateFolder
from edge.state.rankings import rankings
from edge.state.rows import Exam, ExamAnswer, Lineage
from tests.unit.conftest import EdgeAgent
from tests.unit.test_step_event import ASKED, KEPT, group, scored
from tests.worlds.agent import World, item
from tests.worlds.judged_answers import RECORD, answered, rated
from tests.worlds.steps import step


def rate_answers(state: StateFolder, wrong: Sequence[float], right: Sequence[float], **fields: Any) -> None:
    """Answers with these help log-odds, each to a question of its own, and what a person thought of them."""
    for number, odds in enumerate([*wrong, *right]):
        name = f"{fields.get('adapter_version', 0)}-{fields.get('task', 'math')}-{number}"
        answered(state, name, f"What is {name}?", "4", help_log_odds=odds, **fields)
        rated(state, name, "bad" if number < len(wrong) else "good")


def put_steps(state: StateFolder, *events: StepFinished) -> None:
    with state.database as database:
        for event in events:
            values = (event.step, event.task, event.step, json.dumps(event.to_json()))
            database.execute("INSERT INTO steps VALUES (?, ?, ?, ?)", values)


def step_with(number: int, answers: RankedAnswers | None, task: str = "math") -> StepFinished:
    event = step(number)
    return replace(event, task=task, scores=replace(event.scores, ranked=answers))


# -- which answers count ------------------------------------------------------------------------------------------------------------------


def test_ratings_count_by_label_and_adapter_and_a_question_once(state: StateFolder) -> None:
    rate_answers(state, [1.0, 2.0], [0.0, -1.0, -2.0])
    rate_answers(state, [9.0], [8.0], adapter_version=4)
    rate_answers(state, [0.0], [5.0], task="chat")
    for again in range(6):  # one question, asked and rated again and again: the last rating counts
        answered(state, f"again-{again}", "What is 0-math-0? ", "4", help_log_odds=3.0)
        rated(state, f"again-{again}", "bad")
    found = rankings(state)
    assert {task: (one.right, one.wrong, one.auc) for task, one in found.items()} == {"math": (4, 3, 1.0), "chat": (1, 1, 0.0)}
    rated(state, "again-5", "none")
    rated(state, "0-math-1", "good")
    assert (rankings(state)["math"].right, rankings(state)["math"].wrong) == (5, 2)


@pytest.mark.parametrize("fields", [{"source": "cloud", "help_log_odds": 2.0}, {"source": "local", "help_log_odds": None}])
def test_answers_of_the_cloud_and_without_a_decision_do_not_count(state: StateFolder, fields: dict[str, Any]) -> None:
    answered(state, "a", "What is 1 + 1?", "2", **fields)
    rated(state, "a", "bad")
    assert rankings(state) == {}


def test_the_latest_300_ratings_of_a_label_count(state: StateFolder) -> None:
    rate_answers(state, [0.0] * 40, [0.0] * 290)
    assert (rankings(state)["math"].right, rankings(state)["math"].wrong) == (290, 10)


def test_exams_of_the_active_adapter_count_with_each_question_once(state: StateFolder) -> None:
    def exam(version: int, source: str, **answers: tuple[bool, float | None]) -> Exam:
        return Exam(version, source, "math", {key: ExamAnswer(*one) for key, one in answers.items()})

    state.put_exams([exam(2, "sums", a=(True, -1.0), b=(False, 1.0)), exam(4, "sums", a=(False, 9.0), b=(True, 9.0))], 1.0)
    state.put_exams([exam(2, "others", c=(False, 0.0), d=(False, None)), exam(2, "sums", b=(True, -2.0))], 2.0)
    state.set_lineage(Lineage(latest=4, serving=2))
    found = rankings(state)["math"]
    assert (found.right, found.wrong, found.auc) == (2, 1, 1.0)
    state.set_lineage(Lineage(latest=4, serving=3))
    assert rankings(state) == {}, "adapter 3 was never examined"


def test_sampled_responses_count_until_there_are_300_newest_steps_first(state: StateFolder) -> None:
    other = step_with(9, RankedAnswers(1, 1, 1, 1, 0.5), task="code")
    old, new = RankedAnswers(60, 40, 8, 8, 0.0), RankedAnswers(60, 40, 8, 8, 1.0)
    before = {name: value for name, value in step(1).to_json().items() if name != "ranked"}
    put_steps(
        state,
        StepFinished.from_json(before),
        *(step_with(n, old) for n in (2, 3)),
        *(step_with(n, new) for n in (4, 5, 6)),
        other,
    )
    found = rankings(state)
    assert (found["math"].right, found["math"].wrong, found["math"].auc, found["code"].right) == (180, 120, 1.0, 1)


def test_step_counts_the_responses_that_did_not_ask_and_reached_a_decision() -> None:
    def response(right: bool, odds: float | None, outcome: Any = KEPT) -> Any:
        one = scored(outcome, right)
        return replace(one, response=replace(one.response, help_log_odds=odds))

    groups = [
        group(item(1), response(True, -1.0), response(False, 2.0), response(True, 9.0, ASKED), response(False, None)),
        group(item(2), response(True, 2.0), response(True, -3.0)),
    ]
    assert ranked_responses(groups) == RankedAnswers(3, 1, 2, 1, pytest.approx(2.5 / 3))


async def test_learning_leaves_judged_responses_and_exams_of_the_label(tmp_path: Path) -> None:
    gate = GateConfig(every=2, anchors=10, max_drop=1.0, recheck_every=None)
    world = World(tmp_path, phases=(PhaseConfig(source="sums", target_rate=0.3, steps=None),), gate=gate)
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        state = agent.components.state
        ranked = [event.scores.ranked for event in state.steps()]
        found = rankings(state)["math"]
    sampled = sum(one.right + one.wrong for one in ranked if one is not None)
    assert len(ranked) == 2 and sampled > 0
    examined = found.right + found.wrong - sampled
    assert 0 < examined <= 10, "validation questions whose answer reached a decision"


# -- where it is shown --------------------------------------------------------------------------------------------------------------------

SIGNALS = {
    "nothing": (
        [0.0, 1.0] * 4,
        [0.0, 1.0] * 4,
        "AUC 0.50 (0.25 to 0.75) over 16 judged answers: says nothing about right and wrong yet",
    ),
    "better": ([1.0, 2.0] * 4, [0.0, -1.0] * 4, "tells right from wrong better than chance"),
    "worse": ([0.0, -1.0] * 4, [1.0, 2.0] * 4, "worse than chance"),
    "few": ([1.0] * 2, [0.0] * 5, "too few judged answers (7)"),
    "one kind": ([], [0.0] * 12, "all 12 judged answers were right"),
}


@pytest.mark.parametrize("kind", SIGNALS)
def test_status_budget_and_why_say_what_the_dial_acts_on_is_worth(kind: str, tmp_path: Path, edge_agent: EdgeAgent) -> None:
    wrong, right, words = SIGNALS[kind]
    place = ("--state", str(tmp_path / "state"))
    with StateFolder(tmp_path / "state") as state:
        rate_answers(state, wrong, right, task="chat")
    [line] = [line for line in edge_agent("status", *place).out.splitlines() if line.startswith("log-odds ")]
    assert "of chat: " in line and words in line
    [line] = [line for line in edge_agent("budget", "show", *place).out.splitlines() if line.startswith("log-odds ")]
    assert words in line
    [line] = [line for line in edge_agent("why", "0-chat-1", *place).out.splitlines() if line.startswith("help log-odds:")]
    assert words in line and f"{[*wrong, *right][1]:.3f}" in line
    [task] = edge_agent("budget", "show", "--json", *place).json["tasks"]
    assert words in task["dial"]["ranking"]["words"] and task["dial"]["ranking"]["wrong"] == len(wrong)
    assert edge_agent("why", "0-chat-1", "--json", *place).json["ranking"] == task["dial"]["ranking"]


def test_label_without_a_question_or_a_judged_answer_is_not_shown_in_status(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    with StateFolder(tmp_path / "state") as state:
        state.put_request("a", 1.0, replace(RECORD, id="a").to_json())
    assert "\nlog-odds" not in edge_agent("status", "--state", str(tmp_path / "state")).out
    assert "judged" not in edge_agent("why", "a", "--state", str(tmp_path / "state")).out, "no decision was reached"


async def test_running_agent_reports_the_same_as_its_folder(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.agent() as agent:
        rate_answers(agent.components.state, [1.0, 2.0] * 4, [0.0, -1.0] * 4, task="chat")
        control = RunningAgent(agent)
        agent.access.dials.set(0.2, "chat")
        [chat] = [task for task in (await control.budget()).tasks if task.task == "chat"]
        why = await control.why("0-chat-1")
    assert why.ranking == chat.dial.ranking and chat.dial.ranking.auc == 1.0
