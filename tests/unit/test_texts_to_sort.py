"""Texts in columns of a person's choice: how a file is read, and that a text is asked about later as it was learned."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from edge.answering.draft import AnswerSettings
from edge.config.schema import PhaseConfig
from edge.core.columns import Columns
from edge.core.errors import TaskFileError, UsageError
from edge.core.forms import PlainForm
from edge.core.types import AnswerKind, Message, Sampling
from edge.dagrpo.prompts import MOST_TEXT_CHARS, TextQuestion
from edge.evaluation.judging import RolloutSettings
from edge.learning.own_items import own_items
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.state.events import Notice
from edge.state.feedback import Feedback, FeedbackBook
from edge.state.folder import StateFolder
from edge.tasks.jsonl import JsonLinesSource, as_record, read_file
from edge.tasks.registry import open_source
from edge.verifiers.choice_answer import ChoiceAnswer
from tests.unit.conftest import EdgeAgent
from tests.worlds.agent import World
from tests.worlds.judged_answers import answered

ASK = "Which drawer does it belong in?"
COLUMNS = Columns("note", "drawer", ASK)
DRAWERS = ("Keys", "Old bills", "Seeds")


def table(
    path: Path, rows: Sequence[Sequence[object]], header: Sequence[str] = ("nr", "Note", "Drawer"), delimiter: str = ","
) -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([header, *rows])
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def notes(count: int, answers: Sequence[object] = DRAWERS) -> list[tuple[int, str, object]]:
    return [(number, f"note {number}, with a comma", answers[number % len(answers)]) for number in range(count)]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.csv", "\t")])
def test_few_answers_of_a_chosen_column_are_the_options_of_every_text(tmp_path: Path, name: str, delimiter: str) -> None:
    file = read_file(table(tmp_path / name, notes(12), delimiter=delimiter), COLUMNS)
    assert file.asked == TextQuestion(ASK, DRAWERS) and file.notes == ()
    assert {(item.task, item.kind, item.form, item.options) for item in file.items} == {
        ("drawer", AnswerKind.CHOICE, "plain", DRAWERS)
    }
    assert [item.question for item in file.items[:2]] == [f"{ASK}\n\nnote {n}, with a comma" for n in range(2)]
    assert [item.answer for item in file.items[:3]] == list(DRAWERS)


def test_keys_of_json_lines_are_columns_too_and_other_values_than_texts_are_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records = [{"body": f"b{n}", "urgent": n % 2 == 0, "stars": n % 3 + 8, "options": {}, "split": 3} for n in range(9)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    urgent, stars = (read_file(path, Columns("body", name)) for name in ("urgent", "stars"))
    assert urgent.items[0].options == ("false", "true") and [item.answer for item in urgent.items[:2]] == ["true", "false"]
    assert stars.items[0].options == ("8", "9", "10") and {item.question for item in stars.items} >= {"b0", "b8"}


def test_one_in_ten_texts_is_held_out_from_a_hundred_on(tmp_path: Path) -> None:
    split = [item.split for item in read_file(table(tmp_path / "a.csv", notes(200)), COLUMNS).items]
    assert 8 <= split.count("test") <= 35
    assert {item.split for item in read_file(table(tmp_path / "b.csv", notes(99)), COLUMNS).items} == {"train"}


@pytest.mark.parametrize("letters", [("B", "C", "D"), ("(B)", "(C)"), ("2", "3", "4"), ("O", "A", "B", "AB")])
def test_an_option_that_looks_like_anothers_letter_is_judged_as_the_text_it_is(tmp_path: Path, letters: tuple[str, ...]) -> None:
    rows, judge = notes(12, letters), ChoiceAnswer()
    for item, (_, _, answer) in zip(read_file(table(tmp_path / "a.csv", rows), COLUMNS).items, rows, strict=True):
        assert [option for option in item.options if judge.is_correct(item, option)] == [answer]
        letter = chr(ord("A") + item.options.index(str(answer)))
        assert judge.is_correct(item, f"\\boxed{{{letter}}}")  # as the cloud answers, which reads lettered options


def test_answers_that_differ_in_case_or_blanks_alone_are_one_option(tmp_path: Path) -> None:
    file = read_file(
        table(tmp_path / "a.csv", notes(12, ("Seeds", "seeds ", "Seeds", "Old  Bills", "old bills", "old bills"))), COLUMNS
    )
    assert file.asked is not None and file.asked.options == ("old bills", "Seeds")
    assert {item.answer for item in file.items} == {"old bills", "Seeds"}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (notes(12, [f"drawer {n}" for n in range(12)]), "12 different answers in 12 rows"),
        (notes(90, [f"drawer {n}" for n in range(21)]), "21 different answers"),
        (notes(12, ["a very long answer of rather more than eight words", "no"]), "too long to choose from"),
    ],
)
def test_many_or_long_answers_are_plain_texts_without_options_and_a_note_says_so(
    tmp_path: Path, rows: Sequence[Sequence[object]], reason: str
) -> None:
    file = read_file(table(tmp_path / "a.csv", rows), COLUMNS)
    assert any(reason in note for note in file.notes) and file.asked == TextQuestion(ASK)
    assert {(item.options, item.form, item.task) for item in file.items} == {((), "plain", "drawer")}


def test_columns_of_other_names_without_a_question_to_put_are_ordinary_questions(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [("Who keeps the seeds?", "Mia"), ("How many drawers?", "12")], ("Frage", "Antwort"), ";")
    file = read_file(path, Columns("Frage", "Antwort"))
    assert file.asked is None and file.notes == ()
    assert [(item.question, item.answer, item.kind, item.task) for item in file.items] == [
        ("Who keeps the seeds?", "Mia", AnswerKind.TEXT, "chat"),
        ("How many drawers?", "12", AnswerKind.MATH, "chat"),
    ]


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (Columns("body", "drawer"), ["1", "'body'", "nr, Note, Drawer"]),
        (Columns("note", "folder"), ["1", "'folder'", "nr, Note, Drawer"]),
        (Columns("note", "note"), ["'note'", "both"]),
        (Columns("note", "one"), ["'one'", "'same'"]),
        (Columns("note", "gap"), ["4", "'gap'", "empty"]),
    ],
)
def test_a_column_that_cannot_be_learned_is_named_with_what_to_do(tmp_path: Path, columns: Columns, parts: list[str]) -> None:
    rows = [(*row, "same", "" if row[0] == 2 else "x") for row in notes(6)]
    header = ("nr", "Note", "Drawer", *(("one", "gap") if columns.answer in ("one", "gap") else ()))
    path = table(tmp_path / "a.csv", [row[: len(header)] for row in rows], header)
    with pytest.raises(TaskFileError) as refused:
        read_file(path, columns)
    assert all(part in refused.value.with_hint for part in parts)
    with pytest.raises(UsageError, match="task files"):
        open_source("practice:arith", columns)


def test_a_key_that_one_line_lacks_or_leaves_empty_is_named_with_the_line(tmp_path: Path) -> None:
    for last, reason in (
        ({"body": "c"}, "no column 'mood'"),
        ({"body": "c", "mood": None}, "'mood' is empty"),
        ({"mood": "x"}, "'body'"),
    ):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in ({"body": "a", "mood": "x"}, {"body": "b", "mood": "y"}, last)))
        with pytest.raises(TaskFileError, match=f":3: .*{reason}"):
            read_file(path, Columns("body", "mood"))


def test_texts_with_several_answers_are_left_out_and_long_ones_shortened_each_with_a_note(tmp_path: Path) -> None:
    long = "begins " + "word " * 1000 + "ends"
    rows = [
        *notes(12),
        (12, "twice", "Keys"),
        (13, "twice", "Seeds"),
        (14, long, "Keys"),
        (15, "again", "Keys"),
        (16, "again", "Keys"),
    ]
    file = read_file(table(tmp_path / "a.csv", rows), COLUMNS)
    texts = [item.question.removeprefix(f"{ASK}\n\n") for item in file.items]
    assert "twice" not in texts and texts.count("again") == 1 and len(texts) == 14
    assert [len(text) for text in texts if text.startswith("begins") and text.endswith("ends")] == [MOST_TEXT_CHARS]
    assert [note.split(" ")[:2] for note in file.notes] == [["1", "line"], ["1", "text"], ["1", "text"]]


@pytest.mark.parametrize(
    ("column", "label"),
    [("Folder", "folder"), ("Priority (new)", "priority-new"), ("папка", "texts"), ("chat", "texts"), ("x" * 70, "x" * 64)],
)
def test_the_label_is_the_name_of_the_answers_column_where_it_can_be_one(tmp_path: Path, column: str, label: str) -> None:
    file = read_file(table(tmp_path / "a.csv", notes(9), ("nr", "Note", column)), Columns("note", column))
    assert {item.task for item in file.items} == {label}


def test_a_text_to_sort_is_written_as_an_ordinary_line_and_read_back(tmp_path: Path) -> None:
    items = read_file(table(tmp_path / "a.csv", notes(12, ("B", "C"))), COLUMNS).items
    path = tmp_path / "again.jsonl"
    path.write_text("".join(json.dumps(as_record(item)) + "\n" for item in items), encoding="utf-8")
    assert read_file(path).items == items


@pytest.mark.parametrize("text", ["a note", " two\n\nlines ", "x" * 5000, "1. one\n2. two"])
def test_a_question_about_a_text_is_the_same_whoever_puts_it(text: str) -> None:
    for question in (TextQuestion(ASK, DRAWERS), TextQuestion(ASK)):
        about = question.about(text)
        prompt = question.prompt(text, "full", plain=True)
        assert question.about(about) == question.about(prompt) == about
        for put in (f"{text} {ASK}", f"{ASK} {text}", prompt):
            assert question.is_put_to(put) and question.about(put) == about
        assert not question.is_put_to(text) and not question.is_put_to(ASK)
    for whole in ("Moody weather", "What a Mood.", "noMood"):
        assert TextQuestion("Mood").about(whole) == f"Mood\n\n{whole}" and not TextQuestion("Mood").is_put_to(whole)


# -- asked later -----------------------------------------------------------------------------------------------------------------------


@dataclass
class Sorter(World):
    """An agent that learns notes; its model writes the second drawer, and what it reads is kept."""

    form: str = "full"
    guided: bool = True
    ask: str = ASK
    read: list[tuple[tuple[Message, ...], Sampling]] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = table(self.folder.parent / "notes.csv", notes(12))
        self.open_source = lambda name: JsonLinesSource(path, replace(COLUMNS, ask=self.ask))
        self.phases = (PhaseConfig(source=str(path), steps=1),)
        self.script = self._script
        super().__post_init__()

    def _script(self, messages: Any, sampling: Sampling, seed: int) -> str:
        self.read.append((tuple(messages), sampling))
        return DRAWERS[1]

    def rollout_settings(self, run_id: str) -> RolloutSettings:
        return replace(super().rollout_settings(run_id), prompt_form=self.form, guided=self.guided)

    def answer_settings(self) -> AnswerSettings:
        return replace(super().answer_settings(), prompt_form=self.form, guided=self.guided and self.form != "compact")

    async def asked(self, *texts: str, **more: Any) -> tuple[AnswerRecord, tuple[tuple[Message, ...], Sampling]]:
        turns = [Message("user" if number % 2 == 0 else "assistant", text) for number, text in enumerate(texts)]
        async with self.agent() as agent, aclosing(agent.answerer.stream(AnswerRequest(tuple(turns), **more))) as deltas:
            record = [delta async for delta in deltas][-1].record
        assert record is not None
        return record, self.read[-1]


@pytest.mark.parametrize(("form", "guided"), [("full", True), ("full", False), ("compact", False)])
async def test_a_text_is_asked_about_in_the_very_prompt_and_form_in_which_it_was_learned(
    tmp_path: Path, form: str, guided: bool
) -> None:
    world = Sorter(tmp_path / "state", form=form, guided=guided, prompts_per_step=12)
    async with world.agent() as agent:
        await agent.learn(1)
    learned = {messages[-1].content: (messages, sampling.form) for messages, sampling in world.read}
    for texts, more in (
        (("note 5, with a comma",), {"task": "drawer"}),
        (("hello", "hello", " note 5, with a comma\n"), {"task": "drawer"}),
        ((f"note 5, with a comma {ASK}",), {}),
        ((f"{ASK} note 5, with a comma",), {}),
    ):
        record, (messages, sampling) = await world.asked(*texts, **more)
        assert learned[messages[-1].content] == (messages, sampling.form)
        assert (record.task, record.turns) == ("drawer", 1)
        if guided:
            assert sampling.form == PlainForm(DRAWERS) and record.final == DRAWERS[1]


async def test_questions_of_other_labels_and_the_question_alone_stay_as_they_are(tmp_path: Path) -> None:
    world = Sorter(tmp_path / "state")
    for text, more in (("note 5", {}), (ASK, {}), ("note 5", {"task": "chat"}), ("note 5", {"task": "other"})):
        _, (messages, sampling) = await world.asked(text, **more)
        assert messages[-1].content == text and sampling.form == PlainForm()


async def test_the_state_folder_keeps_what_is_asked_until_the_label_has_questions_of_its_own(tmp_path: Path) -> None:
    world = Sorter(tmp_path / "state")
    _, (first, _) = await world.asked("note 5", task="drawer")
    later = World(tmp_path / "state", script=world._script)
    later.rollout_settings, later.answer_settings = world.rollout_settings, world.answer_settings  # type: ignore[method-assign]
    async with later.agent() as agent:
        assert agent.status().text_tasks == {"drawer": TextQuestion(ASK, DRAWERS)}
        await agent.answerer.answer(AnswerRequest((Message("user", "note 5"),), task="drawer"))
    assert world.read[-1][0] == first
    later.phases = (PhaseConfig(source="sums", steps=1, task="drawer"),)
    async with later.agent() as agent:
        assert agent.status().text_tasks == {}


async def test_another_question_about_the_texts_of_a_file_is_learned_from_the_beginning(tmp_path: Path) -> None:
    world = Sorter(tmp_path / "state")
    async with world.agent() as agent:
        await agent.learn()
        done = len(agent.components.state.steps())
        assert done and (await agent.learn()).reason == "done" and len(agent.components.state.steps()) == done
    world.ask = "Whose is it?"
    async with world.agent() as agent:
        await agent.learn()
        assert len(agent.components.state.steps()) == 2 * done
    assert any("phases have changed" in notice.text for notice in world.events(Notice))
    assert world.read[-1][0][-1].content.startswith(f"Answer with one of: {', '.join(DRAWERS)}.\n\nWhose is it?")


async def test_a_corrected_text_is_learned_as_one_of_the_file_and_a_correction_is_one_of_its_answers(tmp_path: Path) -> None:
    world = Sorter(tmp_path / "state")
    record, _ = await world.asked("note 5, with a comma", task="drawer")
    with StateFolder(tmp_path / "state") as state:
        book = FeedbackBook(state)
        with pytest.raises(UsageError, match="one of Keys, Old bills, Seeds, not 'Attic'"):
            book.give(Feedback(record.id, "bad", "Attic"), 1.0)
        assert book.of(record.id).verdict == "none"
        assert book.give(Feedback(record.id, "bad", "seeds"), 1.0).correction == "Seeds"
        [own] = own_items(book, feedback=True, agreement=False)
    learned = {item.question: item for item in read_file(tmp_path / "notes.csv", COLUMNS).items}
    assert replace(own.item, id="") == replace(learned[own.item.question], id="", family=own.item.family, answer="Seeds")
    assert own.corrects


async def test_what_the_cloud_said_of_a_text_is_learned_where_it_is_one_of_the_answers(tmp_path: Path) -> None:
    async with Sorter(tmp_path / "state").agent():
        pass
    with StateFolder(tmp_path / "state") as state:
        for id, final in (("a", "Old bills."), ("b", "The attic")):
            answered(state, id, f"{ASK}\n\nnote {id}", final, task="drawer", source="cloud")
        [own] = own_items(FeedbackBook(state), feedback=True, agreement=True)
    assert (own.item.answer, own.item.options, own.corrects) == ("Old bills", DRAWERS, False)


# -- commands and configuration --------------------------------------------------------------------------------------------------------


def test_commands_read_the_columns_of_their_options_or_of_a_phase(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    path = str(table(tmp_path / "notes.csv", notes(12), delimiter=";"))
    options = ("--question", "note", "--answer", "DRAWER", "--ask", ASK)
    config = tmp_path / "agent.yaml"
    config.write_text(
        f"phases:\n  - source: {path}\n    question: note\n    answer: drawer\n    ask: {ASK}\n    steps: 1\n", encoding="utf-8"
    )
    by_options = edge_agent("tasks", "show", path, *options, "--json").json
    assert by_options == edge_agent("tasks", "show", path, "--config", str(config), "--json").json
    assert by_options["labels"] == ["drawer"] and by_options["examples"][0]["options"] == list(DRAWERS)
    sampled = edge_agent("tasks", "sample", path, *options, "--json", "--n", "1").out
    assert json.loads(sampled)["label" if "label" in sampled else "task"] == "drawer"
    edge_agent("tasks", "show", path).refused(1, "question and answer", "--answer")
    edge_agent("learn", path, "--question", "note", "--answer", "folder").refused(1, "'folder'", "Drawer")
    edge_agent("eval", path, *options[:2], "--answer", "nr 2", "--no-cloud").refused(1, "'nr 2'", "Drawer")
    edge_agent("learn", "--tasks", "practice:arith", "--ask", ASK).refused(2, "practice:arith", "task files")


def test_phases_cannot_read_one_file_in_two_ways(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text(
        "phases:\n  - {source: a.csv, answer: drawer, steps: 1}\n  - {source: a.csv, answer: room, steps: 1}\n", encoding="utf-8"
    )
    edge_agent("config", "show", "--config", str(config)).refused(1, "a.csv", "copy")
