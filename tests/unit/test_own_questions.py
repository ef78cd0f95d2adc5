"""Feedback of a person: what is stored, which items it makes, and r of each response."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.cloud.group_calls import GroupCalls
from edge.core.answer_key import OwnKey, plain_words
from edge.core.errors import NotFound, UsageError
from edge.core.types import AnswerKind, TaskItem
from edge.evaluation.judging import cloud_messages
from edge.learning.methods import DaGrpo
from edge.learning.own_items import OwnItem, own_items
from edge.learning.rollout import Rollout, ScoredGroup, step_units
from edge.routing.policy import SelfOffload
from edge.rpc.client import StepUnits
from edge.state.feedback import Feedback, FeedbackBook
from edge.state.folder import StateFolder
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient
from edge.verifiers.by_kind import VerifierByKind
from tests.worlds.agent import HELP, World, batch_of, local_answer
from tests.worlds.judged_answers import answered, rated
from tests.worlds.trained import training_groups


def items(state: StateFolder, *, agreement: bool = False) -> list[OwnItem]:
    return own_items(FeedbackBook(state), feedback=True, agreement=agreement)


def item_of(state: StateFolder, prompt: str, final: str, correction: str | None = None) -> OwnItem:
    """The training item of one liked or corrected answer."""
    answered(state, "a", prompt, final, call_key="k")
    rated(state, "a", "bad" if correction else "good", correction)
    [own] = items(state)
    return own


def key_of(own: OwnItem) -> OwnKey:
    key = OwnKey.from_json(own.item.answer)
    assert key is not None
    return key


async def scored(item: TaskItem, texts: list[str], cloud: str = "", *, stay_here: bool = False) -> ScoredGroup:
    """One group whose response i is texts[i]."""
    order, client = iter(texts), ScriptedCoordinatorClient(lambda call: cloud)
    await client.open_step("math", 0, 1, len(texts), 0.3)
    settings = replace(World(Path()).rollout_settings("run"), group_size=len(texts), prompt_form="compact")
    backend = ScriptedBackend(lambda messages, sampling, seed: next(order))
    rollout = Rollout(backend, GroupCalls(client, 1.0), VerifierByKind(), SelfOffload(), ManualClock(), settings)
    stays = frozenset({item.id}) if stay_here else frozenset()
    [group] = await rollout.collect(batch_of(item, stay_here=stays))
    assert len(client.calls) == (0 if stay_here else int(HELP in texts))
    return group


def rewards(group: ScoredGroup) -> list[float | None]:
    return [None if one.masked else one.reward for one in group.responses]


def advantages(group: ScoredGroup, dual: float = 0.5) -> list[float]:
    return [sample.advantage for one in training_groups(DaGrpo(), [group], dual) for sample in one.samples]


def test_feedback_is_on_disk_when_confirmed_and_the_last_one_counts(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as state:
        answered(state, "a", "2+2?", "5")
        book = FeedbackBook(state)
        assert book.give(Feedback("a", "good"), 1.0) == Feedback("a", "good")
        book.give(Feedback("a", "good"), 9.0)
        assert [one.at for one in book.rated(10)] == [1.0], "the same feedback twice is one and keeps its time"
        assert book.give(Feedback("a", "bad", " 4 "), 2.0) == Feedback("a", "bad", "4")
    with StateFolder(tmp_path) as state:
        book = FeedbackBook(state)
        assert book.of("a") == Feedback("a", "bad", "4")
        book.give(Feedback("a", "none"), 3.0)
        assert book.of("a") == Feedback("a", "none")
        assert list(book.rated(10)) == []


def test_newest_correction_is_the_key_before_a_like_even_with_the_clock_set_back(state: StateFolder) -> None:
    for id, final in (("a", "5"), ("b", "5"), ("liked", "6")):
        answered(state, id, "2+2?", final)
    rated(state, "a", "bad", "3", at=9000.0)
    rated(state, "b", "bad", "4", at=2000.0)
    rated(state, "liked", "good", at=9999.0)
    [own] = items(state)
    assert key_of(own) == OwnKey("math", ("4",), ("5",))
    assert (own.item.kind, own.item.task, own.item.question) == (AnswerKind.FEEDBACK, "math", "2+2?")


def test_question_rated_many_times_does_not_displace_others(state: StateFolder) -> None:
    for number in range(3):
        answered(state, f"one{number}", f"{number}+1?", str(number + 1))
        rated(state, f"one{number}", "good")
    for number in range(60):
        answered(state, f"again{number}", "2+2?", "5")
        rated(state, f"again{number}", "good")
    kept = [answer.feedback.id for answer in FeedbackBook(state).rated(30)]
    assert kept == ["one0", "one1", "one2", *(f"again{number}" for number in range(40, 60))]


def test_unknown_answers_and_ratings_are_refused_and_change_nothing(state: StateFolder) -> None:
    answered(state, "a", "2+2?", "4")
    book = FeedbackBook(state)
    with pytest.raises(NotFound):
        book.give(Feedback("b", "good"), 1.0)
    for wrong in (Feedback("a", "fine"), Feedback("a", "bad", "x" * 16_001), Feedback("a", "none", "4")):  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            book.give(wrong, 1.0)
    assert book.of("a") == Feedback("a", "none")


@pytest.mark.parametrize(
    ("prompt", "answer", "form", "closed"),
    [
        ("2+2?", "4", "math", True),
        ("How much?", "1,250", "math", True),
        ("Half?", "\\frac{1}{2}", "math", True),
        ("Which?\nA. iron\nB. salt", "B", "choice", True),
        ("Which?\nA) iron\nB) salt", "salt", "choice", True),
        ("Capital of France?", "Paris", "text", True),
        ("Write to my landlord.", "Dear sir, I should like to ask you kindly to repair it.", "text", False),
    ],
)
def test_liked_answer_is_compared_in_its_own_form(state: StateFolder, prompt: str, answer: str, form: str, closed: bool) -> None:
    own = item_of(state, prompt, answer)
    assert (key_of(own).form, key_of(own).closed) == (form, closed)
    verifier = VerifierByKind()
    assert verifier.is_correct(own.item, f"<think>\nStep 1: x\n</think>\n<answer>{answer}</answer>")


def test_uninformative_feedback_makes_no_item(state: StateFolder) -> None:
    answered(state, "disliked", "2+2?", "5")
    answered(state, "cut", "3+3?", "6 or", finish="length")
    answered(state, "in talk", "and then?", "7", turns=3)
    answered(state, "unrated", "4+4?", "8")
    rated(state, "disliked", "bad")
    rated(state, "cut", "good")
    rated(state, "in talk", "good")
    assert items(state) == []


def test_dislike_withdrawn_by_a_later_like_of_the_same_text_is_not_known_wrong(state: StateFolder) -> None:
    answered(state, "a", "Capital of France?", "Paris")
    rated(state, "a", "bad")
    rated(state, "a", "good", at=5.0)
    [own] = items(state)
    assert key_of(own) == OwnKey("text", ("Paris",), ())


def test_question_that_was_never_sent_is_marked(state: StateFolder) -> None:
    answered(state, "a", "2+2?", "4")
    answered(state, "b", "3+3?", "6", source="cloud", call_key="run-b", call_state="completed")
    answered(state, "c", "4+4?", "8", call_key="run-c", call_state="failed")
    answered(state, "d", "5+5?", "10", call_key="run-d", call_state="unsettled")
    answered(state, "e", "6+6?", "12", call_key="run-e", call_state="in_doubt")
    for id in "abcde":
        rated(state, id, "good")
    sent = {own.item.question: own.sent for own in items(state)}
    assert sent == {"2+2?": False, "3+3?": True, "4+4?": False, "5+5?": False, "6+6?": True}


def test_agreement_is_opt_in_and_feedback_takes_precedence(state: StateFolder) -> None:
    answered(state, "a", "2+2?", "4", source="cloud", cloud_text="\\boxed{4}", call_key="run-a")
    answered(state, "b", "3+3?", "7", source="cloud", cloud_text="\\boxed{7}", call_key="run-b")
    answered(state, "c", "A poem?", "roses are red and violets are blue, as all of us know", source="cloud")
    answered(state, "d", "4+4?", "8")
    rated(state, "b", "bad", "6")
    assert [key_of(own).right for own in items(state)] == [("6",)]
    assert sorted(key_of(own).right for own in items(state, agreement=True)) == [("4",), ("6",)]
    rated(state, "a", "bad")
    assert [key_of(own).right for own in items(state, agreement=True)] == [("6",)]


LETTER = "Dear sir, I should like to ask you kindly to repair it."
OTHER_WORDS = ("Paris.", "Lyon", "It is Paris", "One may say that it has been this or that over the ages")


def answers_in_words(*texts: str) -> list[str]:
    return [f"<think>\nStep 1: x\n</think>\n<answer>{text}</answer>" for text in texts]


@pytest.mark.parametrize(
    ("given", "texts", "stay_here", "expected", "units"),
    [
        (("2+2?", "5", "4"), [*map(local_answer, (4, 5, 9)), "no format", HELP], False, [1.0, 0.0, 0.0, -0.1, 1.0], (5, 1, 0)),
        (("Capital of France?", "Paris"), answers_in_words(*OTHER_WORDS), False, [1.0, 0.0, None, None], (4, 0, 0)),
        (("Write to them.", LETTER), answers_in_words(LETTER, f"{LETTER} Again."), False, [1.0, None], (2, 0, 0)),
        (("2+2?", "4"), [HELP, local_answer(4), local_answer(5)], True, [None, 1.0, 0.0], (3, 1, 1)),
    ],
    ids=["the paper's", "right in other words is masked", "of an open question identical text alone", "never sent, but demand"],
)
async def test_reward_of_each_response_to_an_own_question(
    state: StateFolder, given: tuple[str, ...], texts: list[str], stay_here: bool, expected: list[Any], units: tuple[int, ...]
) -> None:
    group = await scored(item_of(state, *given).item, texts, cloud=local_answer(4), stay_here=stay_here)
    assert rewards(group) == expected
    assert step_units([group]) == StepUnits(*units)


@pytest.mark.parametrize(
    ("texts", "cloud", "known", "trained"),
    [
        ([local_answer(5), local_answer(5), local_answer(4), "no format", HELP], 7, [0.0, 0.0, None, None, None], 2),
        ([HELP, HELP, local_answer(4)], 5, [0.0, 0.0, None], 2),  # what the cloud answered is known to be wrong, too
    ],
)
async def test_with_only_a_wrong_answer_known_no_weight_moves(
    texts: list[str], cloud: int, known: list[float | None], trained: int
) -> None:
    item = TaskItem("x", "math", "mine", 0, "train", "2+2?", OwnKey("math", (), ("5",)).to_json(), AnswerKind.FEEDBACK, 4)
    group = await scored(item, texts, cloud=local_answer(cloud))
    assert rewards(group) == known
    assert advantages(group) == [0.0] * trained
    assert step_units([group]) == StepUnits(len(texts), texts.count(HELP), 0)


@given(
    right=st.lists(st.sampled_from(["4", "5"]), max_size=1),
    wrong=st.lists(st.sampled_from(["6", "7"]), max_size=2),
    answers=st.lists(st.sampled_from(["4", "5", "6", "7", "8"]), min_size=2, max_size=6),
    closed=st.booleans(),
    dual=st.floats(0.0, 2.0),
)
async def test_law_response_of_unknown_value_moves_no_weight(
    right: list[str], wrong: list[str], answers: list[str], closed: bool, dual: float
) -> None:
    """For any knowledge, exactly the samples of known value are trained on, and none that is known wrong gains."""
    key = OwnKey("math", tuple(right), tuple(wrong), closed)
    item = TaskItem("x", "math", "mine", 0, "train", "2+2?", key.to_json(), AnswerKind.FEEDBACK, 4)
    group = await scored(item, [local_answer(answer) for answer in answers])
    known = [answer in right or answer in wrong or bool(right and closed) for answer in answers]
    assert [not one.masked for one in group.responses] == known
    trained = advantages(group, dual)
    assert len(trained) == (sum(known) if sum(known) >= 2 else 0)
    kept = [answer for answer, is_known in zip(answers, known, strict=True) if is_known]
    assert all(advantage <= 0.0 for answer, advantage in zip(kept, trained, strict=False) if answer not in right)


@given(st.text(max_size=200), st.text(max_size=200), st.sampled_from(["math", "choice", "text"]))
def test_judge_accepts_any_text_and_a_key_matches_itself(answer: str, response: str, form: Any) -> None:
    key = OwnKey(form, (answer,), (), True)
    item = TaskItem("x", "math", "mine", 0, "train", "?", key.to_json(), AnswerKind.FEEDBACK, 4)
    verifier = VerifierByKind()
    assert verifier.is_correct(item, response) <= verifier.is_rated(item, response)
    assert OwnKey.from_json(key.to_json()) == key
    assert plain_words(plain_words(answer)) == plain_words(answer)


def test_cloud_call_for_an_own_question_has_its_exact_words(state: StateFolder) -> None:
    own = item_of(state, "Why is\nthe sky blue?", "dust")
    for form in ("compact", "full"):
        assert [message.content for message in cloud_messages(own.item, form)] == ["Why is\nthe sky blue?"]
