"""Judges answers to a person's own questions by the person's feedback on earlier ones.

An item of kind `feedback` carries its key in `answer`, as JSON: the form in which answers are compared, those known to be right and those
known to be wrong. `closed`: another short answer is wrong too, unless a right one stands among its words. Of an open question (a letter, an
essay) another text may be as good, so nothing is known of it, and whoever learns from it must leave it out.
"""

from __future__ import annotations

from dataclasses import replace

from edge.core.answer_key import Form, OwnKey, is_short, plain_words
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.answers import final_answer
from edge.verifiers.verifier import Verifier

_KINDS: dict[Form, AnswerKind] = {"math": AnswerKind.MATH, "choice": AnswerKind.CHOICE}


class OwnAnswer:
    """Right when the answer is one of those known to be right, wrong when it is known to be wrong; else nobody knows."""

    def __init__(self, math: Verifier, choice: Verifier) -> None:
        """`math` and `choice` compare answers of these forms; texts are compared by their words."""
        self._verifiers = {AnswerKind.MATH: math, AnswerKind.CHOICE: choice}

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the final answer is known to be right."""
        return self._verdict(item, response) is True

    def is_rated(self, item: TaskItem, response: str) -> bool:
        """Whether it is known to be right or wrong; what is not must be left out rather than counted wrong."""
        return self._verdict(item, response) is not None

    def _verdict(self, item: TaskItem, response: str) -> bool | None:
        key, final = OwnKey.from_json(item.answer), final_answer(response)
        if key is None:
            return None
        for answers, verdict in ((key.right, True), (key.wrong, False)):
            if any(self._is_same(item, key, answer, final) for answer in answers):
                return verdict
        return False if key.right and key.closed and not _may_say(final, key) else None

    def _is_same(self, item: TaskItem, key: OwnKey, answer: str, final: str) -> bool:
        if key.form == "text":
            return plain_words(final) == plain_words(answer)
        kind = _KINDS[key.form]
        known = replace(item, kind=kind, answer=answer, options=key.options)
        return self._verifiers[kind].is_correct(known, f"\\boxed{{{final}}}")


def _may_say(final: str, key: OwnKey) -> bool:
    """Whether an answer that is none of those known may still be right: it is long, or has a right one among its words."""
    words = f" {plain_words(final)} "
    return not is_short(final) or (key.form != "choice" and any(f" {plain_words(right)} " in words for right in key.right))
