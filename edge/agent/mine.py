"""A person's own questions as task items. Knows what verdicts and corrections say of answers; knows nothing of steps or files.

Answers to the same question (its words and label) are one item. What is known of it:

| what there is | right | wrong |
|---|---|---|
| a correction | the correction (the newest one) | what was answered, when the verdict was bad |
| a liked answer, the SLM's or the cloud's | that answer | - |
| a disliked answer | - | that answer |
| no verdict, and agreement is wanted | the cloud's answer that was paid for | - |

A correction stands above likes, and both above agreement. The reward r of a response to such an item: 1 when its final answer is a right
one, 0 when it is known to be wrong (for short answers: also when it is another one), -0.1 when it is malformed as always; where nobody
knows, the response is masked. An item without a right answer moves no weight, since all that is known in its group is worth the same, so it
is kept but not asked; it is learned as soon as an answer is liked or corrected.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from edge.agent.evaluation.judged import Candidate
from edge.agent.feedback import FeedbackBook, RatedAnswer
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.verifiers.own_answer import Form, OwnKey, final_answer, is_short, plain_words

SOURCE, WATCHED = "mine", "watched"
MOST_ANSWERS = 2000
"""Of these newest answers with verdicts, and as many of the cloud's without, items are made."""
_STEPS = 4
_LEFT = ("completed", "in_doubt")
"""What becomes of calls that are known to have reached the cloud LLM."""
_OPTION = re.compile(r"\(?([A-J])[.):]\s+(\S.*)")
_LETTER = re.compile(r"\(?([A-Ja-j])[.):]?\)?")
_NUMBER = re.compile(
    r"[$€£]?\s*[+-]?[\d.,]*\d[\d.,]*\s*%?|.*\\[a-z]+.*|[-+*/^()\d\s.,=a-z]*\d[-+*/^()\d\s.,=a-z]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class OwnItem:
    """An item under its key (`own_item` makes both); `sent`: its question has reached the cloud before, when it was answered. What was
    withheld or met nobody has not."""

    item: TaskItem
    sent: bool
    key: str


def own_item(item: TaskItem, *, sent: bool) -> OwnItem:
    """An item with its key, by which its uses are counted: all that is asked and how it is judged; a corrected answer makes another."""
    return OwnItem(item, sent, Candidate(item).key)


@dataclass(slots=True)
class _Known:
    """What the answers to one question say of it, in the order of the verdicts."""

    task: str
    prompt: str
    sent: bool = False
    corrections: list[str] = field(default_factory=list)
    liked: list[str] = field(default_factory=list)
    disliked: list[str] = field(default_factory=list)
    agreed: list[str] = field(default_factory=list)


def is_own(source: str) -> bool:
    """Whether a step's source is one's own use and not a phase's."""
    return source.startswith((f"{SOURCE}:", f"{WATCHED}:"))


def own_items(book: FeedbackBook, *, feedback: bool, agreement: bool) -> list[OwnItem]:
    """The items that can be learned from, in a fixed order: a pure function of what the state folder holds."""
    answers = list(book.rated(MOST_ANSWERS)) if feedback or agreement else []
    helped = list(book.helped(MOST_ANSWERS)) if agreement else []
    known = _gathered(answers, use_verdicts=feedback, agreement=agreement)
    for question, more in _gathered(helped, use_verdicts=False, agreement=agreement).items():
        mine = known.setdefault(question, more)
        if mine is not more:
            mine.agreed += more.agreed
            mine.sent = mine.sent or more.sent
    items = (_item(one) for one in known.values())
    return sorted((item for item in items if item is not None), key=lambda one: one.item.id)


def _gathered(answers: Iterable[RatedAnswer], *, use_verdicts: bool, agreement: bool) -> dict[tuple[str, str], _Known]:
    known: dict[tuple[str, str], _Known] = {}
    for answer in answers:
        record = answer.record
        prompt, task = str(record.get("prompt") or "").strip(), str(record.get("task") or "")
        if not prompt or not task or int(record.get("turns") or 1) > 1:
            continue
        one = known.setdefault((task, plain_words(prompt)), _Known(task, prompt))
        one.sent = one.sent or bool(record.get("call_state") in _LEFT or record.get("cloud_text"))
        if use_verdicts:
            _note_verdict(one, answer)
        if agreement and record.get("source") == "cloud" and answer.feedback.verdict != "bad" and _whole(record):
            one.agreed.append(final_answer(str(record.get("final") or "")))
    return known


def _note_verdict(known: _Known, answer: RatedAnswer) -> None:
    final, verdict = final_answer(str(answer.record.get("final") or "")), answer.feedback.verdict
    if answer.feedback.correction:
        known.corrections.append(final_answer(answer.feedback.correction))
    if verdict == "bad" and final:
        known.disliked.append(final)
    if verdict == "good" and final and _whole(answer.record) and not answer.feedback.correction:
        known.liked.append(final)


def _whole(record: dict[str, object]) -> bool:
    """A cut answer is no answer to learn."""
    return record.get("finish", "stop") == "stop"


def _item(known: _Known) -> OwnItem | None:
    """None where no right answer is known, and for open questions whose answer only agreement would tell."""
    right = _right(known)
    if not right:
        return None
    options = _options(known.prompt)
    form = _form(right, options)
    closed = all(map(is_short, right))
    if not closed and not (known.corrections or known.liked):
        return None
    wrong = tuple(dict.fromkeys(answer for answer in known.disliked if answer not in right))
    digest = hashlib.sha256(f"{known.task}\x1f{plain_words(known.prompt)}".encode("utf-8", "surrogatepass")).hexdigest()
    item = TaskItem(
        id=f"{SOURCE}/{digest[:16]}",
        task=known.task,
        family=SOURCE,
        level=0,
        split="train",
        question=known.prompt,
        answer=OwnKey(form, right, wrong, closed, options if form == "choice" else ()).to_json(),
        kind=AnswerKind.FEEDBACK,
        max_steps=STEP_LIMITS.get(known.task, _STEPS),
    )
    return own_item(item, sent=known.sent)


def _right(known: _Known) -> tuple[str, ...]:
    """The newest correction, else every liked answer that was not disliked later, else what the cloud said last."""
    if known.corrections:
        return (known.corrections[-1],)
    refused = {plain_words(answer) for answer in known.disliked}
    liked = [answer for answer in known.liked if plain_words(answer) not in refused]
    agreed = [answer for answer in known.agreed if answer and plain_words(answer) not in refused]
    return tuple(dict.fromkeys(liked)) or tuple(agreed[-1:])


def _form(right: tuple[str, ...], options: tuple[str, ...]) -> Form:
    if options and all(_LETTER.fullmatch(answer) or answer in options for answer in right):
        return "choice"
    return "math" if all(len(answer) <= 80 and _NUMBER.fullmatch(answer.strip()) for answer in right) else "text"


def _options(prompt: str) -> tuple[str, ...]:
    """The options among the lines of a question, lettered from A without gaps; () where there are none."""
    found = [match for line in prompt.split("\n") if (match := _OPTION.fullmatch(line.strip()))]
    in_order = [match[1] for match in found] == [chr(ord("A") + index) for index in range(len(found))]
    return tuple(match[2] for match in found) if len(found) > 1 and in_order else ()
