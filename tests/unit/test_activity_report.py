"""The activity report of gains, losses and spend: exact counts, from a folder in use or not, and its text; what two evaluations compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from edge.cli.options import since_of
from edge.config.schema import GateConfig, PhaseConfig
from edge.core.errors import StateError, UsageError
from edge.core.types import AnswerKind, Message, Sampling, TaskItem
from edge.learning.activity import activity_report, headline, read_activity, read_headline
from edge.learning.comparison import Asking, changed_examples, compare
from edge.learning.promotion import Memory
from edge.state.answer_record import AnswerRequest
from edge.state.feedback import Feedback
from edge.state.folder import GATE_MEMORY, StateFolder
from edge.state.rows import Exam, ExamAnswer, Lineage
from edge.testing.coordinator import ScriptedTerms
from tests.unit.conftest import EdgeAgent, TimeZone
from tests.worlds.agent import World, changed, give_feedback, local_answer, mixed_script, number_in, reported
from tests.worlds.judged_answers import RECORD
from tests.worlds.steps import step as finished_step

RULES = GateConfig(every=2, anchors=10, max_drop=1.0, rate_window=2, max_refusals=9, keep=3, recheck_every=None)
WRONG = {0: {0, 1, 2, 3}, 2: {2, 3}, 4: {0, 3}}


def changing(folder: Path) -> World:
    """Versions 0, 2 and 4 fail on different ones of ten validation questions."""
    world = World(folder, phases=(PhaseConfig(source="sums", target_rate=0.3, steps=None),), gate=RULES)
    world.terms = ScriptedTerms(dual_lr=0.1, step_credit_kappa=None, price_uusd_per_call=11)
    world.__post_init__()

    def script(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        number = number_in(messages[-1].content)
        if sampling.temperature or number < 900_000:
            return mixed_script(messages, sampling, seed)
        return local_answer(number + 1 + (number - 900_000 in WRONG[world.rollouts.adapter_version]))

    world.script = script
    return world


async def test_gains_and_losses_are_counted_by_item_between_old_and_new_adapter(tmp_path: Path) -> None:
    world = changing(tmp_path)
    async with world.agent() as agent:
        began = world.clock.now()
        world.clock.advance(10)
        await agent.learn(max_steps=2)
        world.clock.advance(10)
        noon = world.clock.now()
        world.clock.advance(10)
        await agent.learn(max_steps=2)
        since_noon, since_ever = reported(agent, noon), reported(agent, began)
    assert (since_noon["serving_version_then"], since_noon["serving_version"]) == (2, 4)
    [task] = since_noon["tasks"]
    examples, end = task.pop("examples"), task.pop("in_the_end")
    assert task == {
        "source": "sums", "task": "math", "items": 10, "right_then": 8, "right_now": 8, "gained": 1, "lost": 1, "new": 0,
        "new_right": 0, "own": True, "learned_from": True,
    }  # fmt: skip
    assert [(one["change"], one["right_before"], one["right_after"]) for one in examples] == [
        ("gained", False, True), ("lost", True, False),
    ]  # fmt: skip
    assert (examples[0]["question"], examples[0]["before"], examples[0]["after"]) == ("What is 900002 + 1?", "900004", "900003")
    assert (end["items"], end["rate"]) == (10, 0.3)
    [task] = since_ever["tasks"]
    assert (task["right_then"], task["right_now"], task["gained"], task["lost"]) == (6, 8, 2, 0)
    total = since_ever["total"]
    assert total.pop("in_the_end")["items"] == 10
    assert total == {"items": 10, "right_then": 6, "right_now": 8, "gained": 2, "lost": 0, "new": 0}
    assert (since_noon["learning"]["steps"], since_noon["learning"]["promotions"]) == (2, 1)
    assert since_ever["learning"]["by_source"][0]["steps"] == 4


async def test_questions_that_an_earlier_adapter_had_right_are_shown_as_forgotten(tmp_path: Path) -> None:
    world = changing(tmp_path)
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        nothing = reported(agent, 0.0)
        await agent.learn(max_steps=2)
        since_ever = reported(agent, 0.0)
    assert nothing["forgotten"] == {"by_source": [], "examples": []}
    assert since_ever["tasks"][0]["lost"] == 0, "the bare model had it wrong, too"
    assert since_ever["forgotten"]["by_source"] == [{"source": "sums", "questions": 1, "of": 10}]
    [example] = since_ever["forgotten"]["examples"]
    assert (example["adapter"], example["question"]) == (2, "What is 900000 + 1?")
    assert (example["right_before"], example["after"], example["right_after"]) == (True, "900002", False)


async def test_answers_spend_and_rates_are_reported_separately(tmp_path: Path) -> None:
    world = changing(tmp_path)
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        answers = [await agent.answerer.answer(AnswerRequest((Message("user", f"What is {n} + 1?"),), seed=n)) for n in range(12)]
        give_feedback(agent, Feedback(answers[0].id, "good"))
        give_feedback(agent, Feedback(answers[1].id, "bad", "2"))
        report = reported(agent, 0.0)
        steps = agent.components.state.steps()
    helped = sum(answer.source == "cloud" for answer in answers)
    assert 0 < helped < 12
    assert sum(one["answers"] for one in report["answers"]) == 12
    assert [sum(one[name] for one in report["answers"]) for name in ("good", "bad", "corrected")] == [1, 1, 1]
    assert report["cloud"]["serving"] == {
        "calls": helped,
        "tokens": sum(a.cloud_tokens for a in answers),
        "spend_uusd": 11 * helped,
    }
    assert report["cloud"]["learning"]["calls"] == steps[-1].cloud.total_cloud_calls
    assert report["cloud"]["learning"]["spend_uusd"] == 11 * steps[-1].cloud.total_cloud_calls
    [spent] = report["spend"]["stretches"]
    assert (spent["serving_uusd"], spent["learning_uusd"]) == (11 * helped, report["cloud"]["learning"]["spend_uusd"])
    assert report["rates"] == [{"task": "chat", "answers": 12, "asked": helped, "rate": helped / 12, "target_rate": None}]


def test_spend_is_reported_in_intervals_that_fit_the_period(state: StateFolder) -> None:
    charges = {90.0: 5, 100.0: 7, 200.0: 0, 250.0: 2}
    for at, uusd in charges.items():
        state.put_request(str(at), at, replace(RECORD, charged_uusd=uusd).to_json())
    spend = activity_report(state.database, 0.0, 300.0)["spend"]
    assert spend["stretch_s"] == 60
    assert [(one["began"], one["serving_uusd"]) for one in spend["stretches"]] == [(60.0, 12), (240.0, 2)]
    state.put_request("later", 86_490.0, replace(RECORD, charged_uusd=3).to_json())
    spend = activity_report(state.database, 95.0, 2e5)["spend"]
    assert (spend["stretch_s"], spend["stretches"][-1]) == (3600, {"began": 86_400.0, "serving_uusd": 3, "learning_uusd": 0})
    assert sum(one["serving_uusd"] for one in spend["stretches"]) == 12


async def test_idle_folder_is_read_without_lock_or_change(tmp_path: Path) -> None:
    world = changing(tmp_path)
    async with world.agent() as agent:
        await agent.learn(max_steps=4)
        used = read_activity(tmp_path, 0.0, 1.0)
        assert used == reported(agent, 0.0) | {"now": 1.0}, "beside the agent that holds the lock"
    before = (tmp_path / "agent.sqlite").read_bytes()
    assert read_activity(tmp_path, 0.0, 1.0) == used
    assert (tmp_path / "agent.sqlite").read_bytes() == before


def test_unreadable_folders_are_one_line_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no agent's state"):
        read_activity(tmp_path, 0.0, 1.0)
    with StateFolder(tmp_path) as state:
        state.database.execute("DROP TABLE exams")
        state.database.commit()
    with pytest.raises(StateError, match="exams"):
        read_activity(tmp_path, 0.0, 1.0)
    (tmp_path / "agent.sqlite").write_bytes(b"no database at all, and long enough to be one")
    with pytest.raises(StateError, match="cannot be read"):
        read_activity(tmp_path, 0.0, 1.0)


def test_times_are_written_as_words_spans_and_dates() -> None:
    now = datetime(2026, 3, 5, 15, 30).astimezone().timestamp()
    assert since_of("24h", now) == now - 86_400
    assert since_of("90m", now) == now - 5_400
    assert since_of("today", now) == datetime(2026, 3, 5).astimezone().timestamp()
    assert since_of("yesterday", now) == datetime(2026, 3, 4).astimezone().timestamp()
    assert since_of("2026-03-01T18:00", now) == datetime(2026, 3, 1, 18).astimezone().timestamp()
    assert since_of("ever", now) == 0.0
    for bad in ("", "soon", "2026-13-01", "5y", "-1h"):
        with pytest.raises(UsageError, match="no such time"):
            since_of(bad, now)


def test_the_command_prints_a_table_or_json(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    with StateFolder(tmp_path) as state:
        record = replace(RECORD, id="a", prompt="?", created_at=5.0)
        state.put_request("a", 5.0, record.to_json())
    report = ("report", "--since", "ever", "--state", str(tmp_path))
    assert edge_agent(*report, "--json").json["answers"] == [
        {"source": "local", "answers": 1, "good": 0, "bad": 0, "corrected": 0}
    ]
    assert "1 local" in edge_agent(*report).out
    edge_agent("report", "--since", "soon", "--state", str(tmp_path)).refused(2, "no such time")
    edge_agent("report", "--state", str(tmp_path / "none")).refused(1, str(tmp_path / "none"))


def exam(version: int, right: str, wants_help: str, known: str = "abcd", source: str = "sums") -> Exam:
    odds = {key: float(wants_help.find(key) >= 0) for key in known}
    return Exam(version, source, "math", {key: ExamAnswer(key in right, odds[key]) for key in known})


def test_the_headline_counts_answers_questions_gains_and_spend_of_the_month(tmp_path: Path) -> None:
    now = datetime(2026, 3, 5, 12).astimezone().timestamp()
    charges = {datetime(2026, 2, 28): 100, datetime(2026, 3, 1, 1): 20, datetime(2026, 3, 5, 1): 3}
    with StateFolder(tmp_path) as state:
        assert headline(state.database, now)["answered_locally"] is headline(state.database, now)["gained"] is None
        for number, (at, uusd) in enumerate(charges.items()):
            record = replace(RECORD, charged_uusd=uusd, source="cloud" if number == 1 else "local")
            state.put_request(str(at), at.astimezone().timestamp(), record.to_json())
        state.put_exams([exam(0, "ab", "ab"), exam(2, "abc", "d")], 1.0)
        add_step(state, 2, target_rate=0.25, responses=8, coverage=0.5, kept_accuracy=0.5, joint_accuracy=0.5)
        state.set_lineage(Lineage(2, 2))
        found = headline(state.database, now)
    assert (found["answers"], found["answered_locally"]) == (2, 0.5)
    assert (found["spent_today_uusd"], found["spent_this_month_uusd"]) == (3, 23)
    assert found["validation_questions"] == 4
    assert found["right_in_the_end"] == pytest.approx((3 + 0.5) / 4), "the cloud was right on 2 of 4"
    assert found["gained"] == pytest.approx((3 + 0.5) / 4 - 2 / 4), "before, asking did not pay"
    assert read_headline(tmp_path, now) == found
    assert read_headline(tmp_path / "none", now)["answers"] == 0


def test_month_is_that_of_the_budgets_in_any_time_zone(state: StateFolder, time_zone: TimeZone) -> None:
    time_zone("Pacific/Auckland")
    for day in (datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 1, 1, tzinfo=UTC)):  # both in March there
        state.put_request(str(day), day.timestamp(), replace(RECORD, charged_uusd=7).to_json())
    assert headline(state.database, datetime(2026, 3, 5, tzinfo=UTC).timestamp())["spent_this_month_uusd"] == 7


def test_own_questions_are_the_headline_and_practice_is_listed_beside_them(state: StateFolder) -> None:
    item = TaskItem("i1", "chat", "jsonl", 1, "train", "Who?", "I", AnswerKind.TEXT, 4)
    sources = ["practice:arith", "/home/me/facts.jsonl", "mine:chat"]
    state.set_meta(
        GATE_MEMORY, Memory(anchors=dict(zip(sources, [(replace(item, split="test"),), (item,), ()], strict=True))).to_json()
    )
    state.put_exams([exam(0, "", "", source=source) for source in sources], 1.0)
    state.put_exams([exam(2, right, "", source=source) for right, source in zip(("abcd", "abc", "a"), sources, strict=True)], 2.0)
    for source in sources:
        add_step(state, 2 + sources.index(source), source=source, target_rate=0.0)
    state.set_lineage(Lineage(2, 2))
    found = headline(state.database, 9.0)
    assert (found["own"], found["validation_questions"], found["learned_from"], found["gained"]) == (True, 8, 4, 0.5)
    assert found["practice"] == {"right_in_the_end": 1.0, "gained": 1.0, "validation_questions": 4, "learned_from": 0}


def add_step(state: StateFolder, number: int, **values: Any) -> None:
    event = changed(finished_step(1), **{"step": number, "source": "sums", "task": "math", "serving_version": number, **values})
    with state.database as database:
        database.execute("INSERT INTO steps VALUES (?, ?, ?, ?)", (number, "math", number, json.dumps(event.to_json())))


QUESTIONS = {key: f"question {key}" for key in "abcd"}


def answers(right: str, wants_help: str, known: str = "abcd") -> dict[str, ExamAnswer]:
    """Right on these, and in this order the likeliest to ask."""
    odds = {key: float(-place) for place, key in enumerate([*wants_help, *(key for key in known if key not in wants_help)])}
    return {key: ExamAnswer(key in right, odds[key], f"answer {key}") for key in known}


def test_asking_about_unsolved_items_is_a_gain_without_more_local_right_answers() -> None:
    before, after = answers(right="ab", wants_help="ab"), answers(right="ab", wants_help="cd")
    found = compare(before, after, Asking(0.5, 0.9))
    assert (found["right_then"], found["right_now"], found["gained"]) == (2, 2, 0)
    assert found["in_the_end"]["before"] == pytest.approx(2 / 4), "asking for what it can do would not pay"
    assert found["in_the_end"]["after"] == pytest.approx((2 + 2 * 0.9) / 4)
    changes = [one["change"] for one in changed_examples(before, after, Asking(0.5, 0.9), QUESTIONS)]
    assert changes == ["asks now", "asks now"]


def test_same_rate_applies_before_and_after_regardless_of_the_tendency_to_ask() -> None:
    eager = {key: ExamAnswer(answer.right, answer.help_log_odds + 9.0) for key, answer in answers("ab", "cd").items()}
    assert Asking(0.25, 1.0).asked(eager, eager) == Asking(0.25, 1.0).asked(answers("ab", "cd"), "abcd") == {"c"}
    assert Asking(0.5, 0.0).asked(eager, eager) == set(), "a cloud that is never right is not asked"
    assert Asking(0.5, 0.0).right_in_the_end(eager, eager) == 0.5
    assert Asking(0.0, 1.0).right_in_the_end(eager, eager) == 0.5
    assert Asking(1.0).right_in_the_end(eager, eager) == 0.5, "a cloud of which no answer was judged counts for nothing"
