"""What answers teach: an item for each question whose right answer a rating, a correction or the cloud's answer shows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edge.core.answer_key import Form, OwnKey, is_number, is_short, plain_words
from edge.core.choices import chosen_option, listed_options, naming_answer
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.answers import final_answer
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.dagrpo.prompts import TextQuestion
from edge.evaluation.judging import Candidate
from edge.state.feedback import Feedback, FeedbackBook, RatedAnswer

MINE = "mine"
"""The kind of source, and the family, of these items."""
LEARNED_LATER = "learned from by the next `edge-agent run`"
"""Of feedback that no agent is learning from now."""
MOST_ANSWERS = 2000
"""Of these newest answers with ratings, and as many of the cloud's without, items are made."""
_STEPS = 4
_LEFT = ("completed", "in_doubt")
"""What becomes of calls that are known to have reached the cloud LLM."""
_LETTER = re.compile(r"\(?([A-Ta-t])[.):]?\)?")


@dataclass(frozen=True, slots=True)
class OwnItem:
    """An item under its key (`own_item` makes both); `sent`: its question has reached the cloud before, when it was answered. What was
    withheld or met nobody has not."""

    item: TaskItem
    sent: bool
    key: str
    corrects: bool = False
    """Its answer is a person's correction."""


def own_item(item: TaskItem, *, sent: bool, corrects: bool = False) -> OwnItem:
    """An item with its key, by which its uses are counted: all that is asked and how it is judged; a corrected answer makes another."""
    return OwnItem(item, sent, Candidate(item).key, corrects)


@dataclass(slots=True)
class _Known:
    """What the answers to one question show of it, in the order of the ratings."""

    task: str
    prompt: str
    sent: bool = False
    reasoned: bool = False
    corrections: list[str] = field(default_factory=list)
    liked: list[str] = field(default_factory=list)
    disliked: list[str] = field(default_factory=list)
    agreed: list[str] = field(default_factory=list)


def own_items(book: FeedbackBook, *, feedback: bool, agreement: bool) -> list[OwnItem]:
    """The items that can be learned from, in a fixed order: a pure function of what the state folder holds."""
    answers = list(book.rated(MOST_ANSWERS)) if feedback or agreement else []
    helped = list(book.helped(MOST_ANSWERS)) if agreement else []
    known = _gathered(answers, use_ratings=feedback, agreement=agreement)
    for question, more in _gathered(helped, use_ratings=False, agreement=agreement).items():
        mine = known.setdefault(question, more)
        if mine is not more:
            mine.agreed += more.agreed
            mine.sent = mine.sent or more.sent
    questions = book.text_questions()
    items = (_item(one, questions.get(one.task)) for one in known.values())
    return sorted((item for item in items if item is not None), key=lambda one: one.item.id)


def outlook(record: Mapping[str, Any], feedback: Feedback, *, learns: bool, when: str) -> str:
    """What a person who rated an answer may expect of it; "" for one that was taken back.

    `learns`: whether feedback is learned from at all; `when`: when the next one is.
    """
    if feedback.verdict == "none":
        return ""
    if not learns:
        return "not learned from: use.feedback is false, or use.share 0"
    if _not_alone(record):
        return "not learned from: only a question that needs no earlier messages is learned; ask it in a new chat and correct it there"
    if feedback.verdict == "bad" and feedback.correction is None:
        return "write what is right, and it is learned"
    return when


def _not_alone(record: Mapping[str, Any]) -> bool:
    """Whether a question is one among others of a conversation, or was held to a form or tools, which no training question is."""
    return int(record.get("turns") or 1) > 1 or bool(record.get("held"))


def _gathered(answers: Iterable[RatedAnswer], *, use_ratings: bool, agreement: bool) -> dict[tuple[str, str], _Known]:
    """By task and words of the question. An answer that was cut is none to learn."""
    known: dict[tuple[str, str], _Known] = {}
    for answer in answers:
        record, feedback = answer.record, answer.feedback
        prompt, task = str(record.get("prompt") or "").strip(), str(record.get("task") or "")
        if not prompt or not task or _not_alone(record):
            continue
        final, whole = final_answer(str(record.get("final") or "")), record.get("finish", "stop") == "stop"
        one = known.setdefault((task, plain_words(prompt)), _Known(task, prompt))
        one.reasoned = record.get("form") == "reasoned"
        one.sent = one.sent or bool(record.get("call_state") in _LEFT or record.get("cloud_text"))
        if use_ratings and feedback.correction:
            one.corrections.append(final_answer(feedback.correction))
        if use_ratings and feedback.verdict == "bad" and final:
            one.disliked.append(final)
        if use_ratings and feedback.verdict == "good" and final and whole and not feedback.correction:
            one.liked.append(final)
        if agreement and record.get("source") == "cloud" and feedback.verdict != "bad" and whole:
            one.agreed.append(final)
    return known


def _item(known: _Known, asked: TextQuestion | None) -> OwnItem | None:
    """None where no right answer is known, and for open questions whose answer only agreement would show. `asked`: what is asked about
    texts of the label; of few options the right one is an option.

    Right is the newest correction, else every liked answer that was not disliked later, else what the cloud answered last.
    """
    if known.corrections:
        right: tuple[str, ...] = (known.corrections[-1],)
    else:
        disliked = {plain_words(answer) for answer in known.disliked}
        liked = [answer for answer in known.liked if plain_words(answer) not in disliked]
        agreed = [answer for answer in known.agreed if answer and plain_words(answer) not in disliked]
        right = tuple(dict.fromkeys(liked)) or tuple(agreed[-1:])
    closed = all(map(is_short, right))
    if not right or (not closed and not (known.corrections or known.liked)):
        return None
    digest = hashlib.sha256(f"{known.task}\x1f{plain_words(known.prompt)}".encode("utf-8", "surrogatepass")).hexdigest()
    item = TaskItem(
        id=f"{MINE}/{digest[:16]}",
        task=known.task,
        family=MINE,
        level=0,
        split="train",
        question=known.prompt,
        answer="",
        kind=AnswerKind.FEEDBACK,
        max_steps=STEP_LIMITS.get(known.task, _STEPS),
        form="reasoned" if known.reasoned else None,
    )
    if asked is not None and asked.options:
        question, chosen = asked.about(known.prompt), chosen_option(right[-1], asked.options)
        if chosen is None:
            return None
        answer = naming_answer(question, asked.options, chosen)
        item = replace(item, question=question, answer=answer, kind=AnswerKind.CHOICE, options=asked.options, form="plain")
    else:
        item = replace(item, answer=_own_key(known, right, closed).to_json())
    return own_item(item, sent=known.sent, corrects=bool(known.corrections))


def _own_key(known: _Known, right: tuple[str, ...], closed: bool) -> OwnKey:
    listed = listed_options(known.prompt)
    options, first = (listed.options, listed.first_number) if listed else ((), None)
    form: Form = "text"
    if options and all(_LETTER.fullmatch(answer) or chosen_option(answer, options, first) is not None for answer in right):
        form = "choice"
    elif all(map(is_number, right)):
        form = "math"
    wrong = tuple(dict.fromkeys(answer for answer in known.disliked if answer not in right))
    return OwnKey(form, right, wrong, closed, options if form == "choice" else ())
