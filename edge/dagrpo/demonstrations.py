"""Given answers as responses that the model could have written, to be learned from where it never samples a right one."""

from __future__ import annotations

import random

from edge.core.answer_key import OwnKey
from edge.core.choices import reference_option
from edge.core.types import AnswerKind, TaskItem


def demonstration(item: TaskItem) -> str:
    """A right response in the response format: the worked solution, else the given answer alone; "" where neither is known."""
    if item.solution or not item.answer or item.kind is AnswerKind.PROGRAM:
        return item.solution
    if item.kind is AnswerKind.CHOICE:
        chosen = reference_option(item.question, item.answer, item.options)
        return "" if chosen is None else given_answer(chr(ord("A") + chosen), reason=item.options[chosen])
    if item.kind is AnswerKind.FEEDBACK:
        key = OwnKey.from_json(item.answer)
        return given_answer(key.right[-1], short=key.closed) if key and key.right else ""
    return given_answer(item.answer)


def with_words_left_out(question: str, rng: random.Random) -> str:
    """The question with about half of the words of its first line; one at least.

    An answer that is learned with such questions, too, is found by other wordings: of ten of five corrections nano-edge got eight right,
    and four with the one wording alone (tools/experiments/LOG.md).
    """
    first, newline, rest = question.partition("\n")
    words = first.split()
    left = [word for word in words if rng.random() < 0.5] or words[-1:]
    return " ".join(left) + newline + rest


def given_answer(answer: str, *, short: bool = True, reason: str = "") -> str:
    """An answer in the response format, with one step that states it (or the `reason`); one that is not `short` is not repeated.

    Words around it in the step would have to be learned, too: "The answer is Rex." takes nano-edge three times the updates of "Rex".
    """
    step = reason or answer if short else "This is known."
    final = f"\\boxed{{{answer}}}" if short else answer
    return f"<think>\nStep 1: {step}\n</think>\n<answer>{final}</answer>"
