"""Given answers as demonstrations: which ones, when they are imitated, how often they are shown, and what is rehearsed."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edge.config.schema import GateConfig, LearningConfig, PhaseConfig, UseConfig
from edge.core.answer_key import OwnKey
from edge.core.types import AnswerKind, Demonstration, TaskItem, Turn
from edge.dagrpo.answers import final_answer
from edge.dagrpo.demonstrations import demonstration, given_answer, similar_question, with_words_left_out
from edge.dagrpo.format import check_format
from edge.learning.curriculum import StepPlan
from edge.learning.imitation import GivenAnswers
from edge.learning.own_use import MOST_SHOWN, OwnUse
from edge.learning.rollout import ResponseOutcome
from edge.state.events import Notice, RunFinished
from edge.state.folder import StateFolder
from edge.tasks.jsonl import read_file
from edge.tasks.registry import is_own
from edge.tasks.source import ListedItems
from edge.testing.backend import ScriptedBackend
from edge.testing.learner import ScriptedLearner
from edge.verifiers.by_kind import VerifierByKind
from tests.unit.test_own_use import corrected, give
from tests.unit.test_step_event import group, scored
from tests.worlds.agent import World, item, local_answer, number_in

ITEM = TaskItem("x", "math", "jsonl", 0, "train", "What is 2 + 3?", "5", AnswerKind.MATH, 4)
OWN = UseConfig(share=0.5, passes=2)


@pytest.mark.parametrize(
    ("item", "final"),
    [
        (replace(ITEM, kind=AnswerKind.FEEDBACK, answer=OwnKey("text", ("Tom", "Rex")).to_json()), "Rex"),
        (
            replace(ITEM, kind=AnswerKind.FEEDBACK, answer=OwnKey("text", ("a long walk\nhome",), closed=False).to_json()),
            "a long walk\nhome",
        ),
        (replace(ITEM, solution=given_answer("a long walk\nhome", short=False)), "a long walk\nhome"),
    ],
)
def test_a_correction_and_a_worked_solution_are_well_formed_responses_with_that_answer(item: TaskItem, final: str) -> None:
    text = demonstration(item)
    verdict = check_format(text, item.max_steps)
    assert verdict.ok and not verdict.asks_help
    assert final_answer(text) == final


@pytest.mark.parametrize(
    ("line", "final"),
    [
        ('{"question": "Who?", "answer": "Ilka"}', "Ilka"),
        ('{"prompt": "The door code?", "completion": "4711"}', "4711"),
        ('{"messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "In Oberau"}]}', "In Oberau"),
        ('{"question": "Which?\\n1) dog\\n2) green", "answer": 2}', "B"),
        ('{"kind": "choice", "question": "Which?", "options": ["dog", "green"], "answer": 1}', "B"),
        ('{"question": "Why?", "answer": "Because the old mill burned down in the dry summer of that year."}',
         "Because the old mill burned down in the dry summer of that year."),
    ],
)  # fmt: skip
def test_every_form_of_a_task_file_demonstrates_an_answer_that_its_verifier_calls_right(
    tmp_path: Path, line: str, final: str
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(line)
    (item,) = read_file(path).items
    text = demonstration(item)
    assert check_format(text, item.max_steps).ok and final_answer(text) == final
    assert VerifierByKind().is_correct(item, text)


def test_program_tests_and_unjudged_questions_demonstrate_nothing() -> None:
    assert demonstration(replace(ITEM, kind=AnswerKind.PROGRAM, answer="assert f(1) == 2")) == ""
    assert demonstration(replace(ITEM, kind=AnswerKind.FEEDBACK, answer="")) == ""


@given(st.sampled_from(["", "Which drawer?\n\n", "One.\n\nTwo.\n\n"]), st.text(min_size=1), st.integers(0, 1000))
def test_dropping_words_keeps_at_least_one_and_changes_no_other_line(before: str, question: str, seed: int) -> None:
    assume("\n\n" not in question and not question.startswith("\n"))
    first, newline, rest = question.partition("\n")
    changed = with_words_left_out(before + question, random.Random(seed))
    left, same_newline, same_rest = changed.removeprefix(before).partition("\n")
    assert changed.startswith(before) and (same_newline, same_rest) == (newline, rest)
    assert set(left.split()) <= set(first.split()) and bool(left.split()) == bool(first.split())


@given(st.text(max_size=40), st.integers(0, 99), st.lists(st.sampled_from(["boat", "mill"]), max_size=2))
def test_a_similar_question_differs_in_its_first_line_by_a_number_or_a_word(text: str, seed: int, others: list[str]) -> None:
    similar = similar_question(f"{text}\nA) dog", random.Random(seed), others, lambda word: (len(word),))
    assert similar.partition("\n")[2] == f"{text}\nA) dog".partition("\n")[2]
    made = [similar_question("Are 18 kg 9 lb?", random.Random(n), ["mill"], lambda word: (len(word),)) for n in range(99)]
    assert {one.split()[1] == "18" for one in made} == {one.split()[3] == "9" for one in made} == {True, False}
    assert {"mill" in one for one in made} == {True, False}


def test_own_files_are_demonstrated_and_practice_and_data_sets_are_not() -> None:
    assert [is_own(name) for name in ("facts.jsonl", "practice:arith", "general", "gsm8k", "gsm8k:folder", "hf:openai/gsm8k")] == [
        True, False, False, False, False, False,
    ]  # fmt: skip


def ignorant(world: World, known: Collection[int] = ()) -> World:
    """A model that is wrong on every question but those about these numbers."""

    def script(messages: Any, sampling: Any, seed: int) -> str:
        number = number_in(messages[-1].content)
        return local_answer(number + 1 if number in known else 999)

    world.script = script
    return world


def world_with_corrections(folder: Path, *asked: int, imitates: bool = True, steps: int | None = 4) -> World:
    corrected(folder, *asked)
    return World(folder, phases=(PhaseConfig(source="sums", target_rate=0.3, steps=steps),), own=OWN, imitates=imitates)


async def test_a_correction_that_is_never_sampled_is_imitated_with_the_steps_other_answers(tmp_path: Path) -> None:
    world = ignorant(world_with_corrections(tmp_path / "state", 1, 2), known={2})
    (own,) = [step for step in await world.learn(max_steps=2) if step.source == "mine:math"]
    (learner,) = world.learners
    (imitated,) = learner.demonstrations
    assert len(imitated) == 1 and imitated[0].variants
    assert any(one.turn.token_ids != imitated[0].turn.token_ids for one in learner.kept[0]), "the known answer is kept"
    assert (own.update.demonstrations, own.update.imitation_updates) == (1, 1)


def kept_questions(world: World) -> dict[str, str]:
    """Each question whose answer is kept, with that answer."""
    with closing(sqlite3.connect(world.folder / "agent.sqlite")) as database:
        rows = database.execute("SELECT question, answer FROM kept_answers").fetchall()
    return {question: final_answer(text) for question, text in rows if question != "What is 1 + 1?"}


async def test_confident_answers_near_a_given_one_are_kept_from_the_first_demonstration(tmp_path: Path) -> None:
    world = World(tmp_path / "state", phases=(PhaseConfig(source="sums", target_rate=0.3, steps=4),), own=OWN)
    corrected(tmp_path / "state", 1)

    def sure(messages: Any, sampling: Any, seed: int) -> str:
        """Wrong where it is corrected, unsure of even numbers, and of odd ones sure of some answer."""
        number = number_in(messages[-1].content)
        return local_answer(999 if "What is 1 + 1?" in messages[-1].content else 1000 + number if number % 2 else seed)

    world.script = sure
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        kept = kept_questions(world)
        assert kept and all(number_in(question) % 2 for question in kept)
        assert all(answer == str(1000 + number_in(question)) for question, answer in kept.items())
        world.script = lambda messages, sampling, seed: local_answer(7)  # spilled over to everything
        await agent.learn(max_steps=2)
    (learner,) = world.learners
    assert len(learner.demonstrations) == 3, "two own steps, and a rehearsal between them"
    assert [len(some) for some in learner.kept] == [len(kept)] * 3
    assert kept_questions(world) == kept


async def test_option_of_a_rule_is_not_demonstrated(tmp_path: Path) -> None:
    item = replace(ITEM, kind=AnswerKind.CHOICE, answer="A", options=("red", "green"))
    groups = [group(item, scored(ResponseOutcome.KEPT, False))]
    plan = StepPlan(1, 1, 0, 1, "rules.jsonl", "math", 0.3, (item,), 0, 1, demonstrates=True)
    with StateFolder(tmp_path) as state:
        settings = World(tmp_path).rollout_settings("run")
        given, learner = GivenAnswers(ScriptedBackend(lambda *_: local_answer(3)), settings, state), ScriptedLearner()
        assert len((await given.batch(plan, groups, learner)).demonstrations) == 1
        assert (await given.batch(replace(plan, generalises=True), groups, learner)).demonstrations == ()


async def test_nothing_is_kept_around_answers_that_teach_a_rule(tmp_path: Path) -> None:
    """Of 150 questions some are held out: the others are to change the answers to these."""
    world = ignorant(world_with_corrections(tmp_path / "state", *range(1, 151)))
    await world.learn(max_steps=3)
    (learner,) = world.learners
    assert (len(learner.demonstrations), learner.kept) == (1, [()]), "and nothing is rehearsed in other steps"
    assert not kept_questions(world)


def test_answers_given_by_another_item_are_not_kept(tmp_path: Path) -> None:
    rows = [("a", "one?", ""), ("a", "two?", "2"), ("a", "three?", "3"), ("b", "two?", "")]
    with StateFolder(tmp_path) as state:
        state.database.executemany("INSERT INTO kept_answers VALUES (?, ?, ?)", rows)
        given = GivenAnswers(ScriptedBackend(lambda *_: ""), World(tmp_path).rollout_settings("run"), state)
        assert [one.question for one in given.stored("a")] == ["one?", "three?"]


async def test_question_answered_in_the_same_step_is_not_kept(tmp_path: Path) -> None:
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=12),)
    world = World(tmp_path / "state", phases=phases, own=OWN)
    world.script = lambda messages, sampling, seed: local_answer(7)
    corrected(tmp_path / "state", 1)
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        at_first = {one.prompt_ids for one in world.learners[0].kept[0]}
        give(agent.components.state, number_in(next(one for one in kept_questions(world) if one.endswith("+ 1?"))))
        await agent.learn(max_steps=8)
    (learner,) = world.learners
    (given,) = {one.prompt_ids for some in learner.demonstrations for one in some} & at_first
    shown = [given in {one.prompt_ids for one in some} for some in learner.demonstrations]
    later = learner.kept[shown.index(True) + 1 :]
    assert len(later) > 2 and not any(one.prompt_ids == given for some in later for one in some)


async def test_answers_to_other_skills_are_kept_whatever_they_are(tmp_path: Path) -> None:
    world = ignorant(world_with_corrections(tmp_path / "state", 1), known=set())
    world.skills = ("skill",)
    asked: list[int] = []

    def script(messages: Any, sampling: Any, seed: int) -> str:
        number = number_in(messages[-1].content)
        if number > 10_000 and not sampling.exact:
            asked.append(number)
        return local_answer(number if number > 10_000 else 999)

    world.script = script
    await world.learn(max_steps=2)
    (learner,) = world.learners
    assert len(set(asked)) == 128
    assert len({one.prompt_ids for one in learner.kept[0]}) >= 128


class LongAndShort:
    """A skill with questions that do not fit the context, `long` of four."""

    name = "skill"

    def __init__(self, long: int) -> None:
        self._long = long

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        for number in range(start, 200):
            one = item(20_000 + number)
            yield replace(one, question=one.question + " please" * 5000) if number % 4 < self._long else one

    def test(self, limit: int) -> list[TaskItem]:
        return []


def with_skill(world: World, skill: LongAndShort) -> World:
    opened, world.skills, world.context_tokens = world.open_source, ("skill",), 1000
    world.open_source = lambda name: skill if name == "skill" else opened(name)
    return world


@pytest.mark.parametrize("long", [1, 3])
async def test_skill_questions_that_do_not_fit_are_left_out_with_one_line_and_a_correction_is_learned(
    tmp_path: Path, long: int
) -> None:
    world = with_skill(ignorant(world_with_corrections(tmp_path / "state", 1), known=set()), LongAndShort(long))
    half = world.script
    world.script = lambda messages, sampling, seed: (
        local_answer(number_in(messages[-1].content) + 1)
        if number_in(messages[-1].content) >= 20_000
        else half(messages, sampling, seed)
    )
    await world.learn(max_steps=2)
    (learner,) = world.learners
    assert learner.demonstrations[0], "the correction"
    assert len(learner.kept[0]) >= 4, "questions of the skill that fit are found all the same"
    [notice] = world.events(Notice)
    assert f"{32 * long} of 128" in notice.text and "skill" in notice.text


async def test_skill_of_which_no_question_fits_is_reported_and_a_correction_is_learned(tmp_path: Path) -> None:
    world = with_skill(ignorant(world_with_corrections(tmp_path / "state", 1), known=set()), LongAndShort(4))
    await world.learn(max_steps=2)
    assert world.learners[0].demonstrations[0]
    [notice] = world.events(Notice)
    assert "128 of 128" in notice.text and "learning.context_tokens" in notice.text


async def test_disabled_nothing_is_imitated(tmp_path: Path) -> None:
    world = ignorant(world_with_corrections(tmp_path / "state", 1, imitates=False))
    await world.learn(max_steps=4)
    assert [learner.demonstrations for learner in world.learners] == [[]]


async def test_item_is_repeated_until_right_in_all_passes_and_then_rehearsed(tmp_path: Path) -> None:
    known: set[int] = set()
    world = ignorant(world_with_corrections(tmp_path / "state", 1, steps=None), known)
    async with world.agent() as agent:
        await agent.learn(max_steps=6)
        assert [step.source for step in agent.components.state.steps()].count("mine:math") == 3
        known.add(1)
        await agent.learn(max_steps=10)
        sources = [step.source for step in agent.components.state.steps()]
    assert sources.count("mine:math") == 3 + OWN.passes
    (learner,) = world.learners
    others = len(sources[sources.index("mine:math") :]) - OWN.passes
    assert len(learner.demonstrations) == others, "not in the steps in which it was right"


class Facts(ListedItems):
    """Given answers without held-out questions."""

    def __init__(self, count: int = 5) -> None:
        super().__init__([item(number) for number in range(count)], name="facts", order_name="facts", hint="")


async def test_phase_of_given_answers_shows_those_that_are_not_known_and_ends_when_all_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ignorant(World(tmp_path / "state", phases=(PhaseConfig(source="facts", target_rate=0.3, steps=9),)))
    world.open_source, world.prompts_per_step = lambda name: Facts(), 4  # so the second step begins another pass
    reads: Counter[Turn] = Counter()

    async def nats(learner: ScriptedLearner, demonstrations: Sequence[Demonstration]) -> list[float]:
        """What was read in two steps is known after them."""
        reads.update(one.turn for one in demonstrations)
        return [0.0 if reads[one.turn] > 2 else 9.0 for one in demonstrations]

    monkeypatch.setattr(ScriptedLearner, "nats", nats)
    steps = await world.learn()
    assert [(step.update.given_known, step.update.demonstrations) for step in steps] == [(0, 5), (0, 5), (5, 0)]
    (learner,) = world.learners
    assert len(learner.demonstrations[0]) == 5, "also those that the step did not sample"
    assert [event.reason for event in world.events(RunFinished)] == ["done"]
    assert [notice.text for notice in world.events(Notice)] == [
        "facts: 0 of 5 given answers known", "facts: 5 of 5 given answers known",
    ]  # fmt: skip
    assert len(await world.learn()) == 3, "and stays done"


async def test_a_correction_after_given_answers_keeps_them_up_and_is_examined_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = GateConfig(every=100, anchors=5, max_drop=1.0, recheck_every=None)
    world = ignorant(
        World(tmp_path / "state", phases=(PhaseConfig(source="facts", target_rate=0.3, steps=9),), own=OWN, gate=rules)
    )
    world.open_source, shown = lambda name: Facts(), Counter[Turn]()

    async def nats(learner: ScriptedLearner, demonstrations: Sequence[Demonstration]) -> list[float]:
        """What was shown once is known."""
        shown.update(one.turn for some in learner.demonstrations for one in some)
        return [0.0 if shown[one.turn] else 9.0 for one in demonstrations]

    monkeypatch.setattr(ScriptedLearner, "nats", nats)
    async with world.agent() as agent:
        await agent.learn()
        give(agent.components.state, 50)
        await agent.learn()
        steps = agent.components.state.steps()
    corrected = next(step for step in steps if step.source == "mine:math")
    assert (corrected.update.demonstrations, corrected.update.given_known) == (1, 5)
    (imitated,) = (one for learner in world.learners for one in learner.demonstrations if len(one) == 6)
    assert len({one.turn for one in imitated}) == 6, "the five facts are imitated with the correction"
    assert corrected.adapter.gate == "promoted"


async def test_a_correction_takes_the_place_of_the_files_answer_to_the_same_question(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    with state:
        give(state, 1)
        own = OwnUse(state, OWN, LearningConfig(), None)
        plan = await own.next_step(None, by_heart=(item(1), item(2)))
        assert plan is not None and [one.question for one in plan.items] == ["What is 1 + 1?"]
        assert [one.question for one in plan.rehearsed] == ["What is 2 + 1?"]

        file = tuple(replace(item(number), answer="7") for number in (1, 2))
        of_phase = replace(plan, step=2, items=file, by_heart=file, own=False, rehearsed=())
        plan = await OwnUse(state, OWN.model_copy(update={"share": 0.1}), LearningConfig(), None).next_step(of_phase)
    assert plan is not None and not plan.own
    for items in (plan.items, plan.by_heart):
        assert [one.id for one in items] == [one.id for one in file], "they count as the file's own"
        assert [final_answer(demonstration(one)) for one in items] == ["2", "7"]


async def test_rehearsed_corrections_do_not_count_as_given_answers_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nats(learner: ScriptedLearner, demonstrations: Sequence[Demonstration]) -> list[float]:
        """What was shown once is known."""
        shown = {one.turn for some in learner.demonstrations for one in some}
        return [0.0 if one.turn in shown else 9.0 for one in demonstrations]

    monkeypatch.setattr(ScriptedLearner, "nats", nats)
    corrected(tmp_path / "state", 50, 51)
    phases = (PhaseConfig(source="facts", target_rate=0.3, steps=9),)
    world = ignorant(World(tmp_path / "state", phases=phases, own=OWN.model_copy(update={"share": 0.6})))
    world.open_source = lambda name: Facts()
    steps = await world.learn()
    assert {step.source for step in steps} == {"facts", "mine:math"}
    texts = [notice.text for notice in world.events(Notice) if "given answers known" in notice.text]
    assert texts[-1] == "facts: 5 of 5 given answers known"
    assert all(int(text.split()[1]) <= 5 for text in texts)


async def test_of_a_large_file_that_holds_nothing_out_only_the_steps_own_answers_are_read(tmp_path: Path) -> None:
    world = ignorant(World(tmp_path / "state", phases=(PhaseConfig(source="facts", target_rate=0.3, steps=2),)))
    world.open_source = lambda name: Facts(count=150)
    steps = await world.learn()
    assert [step.update.demonstrations for step in steps] == [world.prompts_per_step] * 2
    assert not world.events(Notice)


async def test_unlearnable_item_is_shown_a_limited_number_of_times(tmp_path: Path) -> None:
    world = ignorant(world_with_corrections(tmp_path / "state", 1, steps=1))
    async with world.agent() as agent:
        assert (await agent.learn()).reason == "done"
        own = [step for step in agent.components.state.steps() if step.source == "mine:math"]
        assert len(own) == MOST_SHOWN * OWN.passes
        give(agent.components.state, 7)
        assert await agent.learning.more_to_learn()
