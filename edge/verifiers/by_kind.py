"""Chooses the verifier for an item's kind of answer (the table edge.core.types.AnswerKind), and judges answers to a person's own questions.

An item of kind `feedback` carries its key in `answer`, as JSON: the form in which answers are compared, those known to be right and those
known to be wrong. `closed`: another short answer is wrong too, unless a right one is among its words. Of an open question (a letter, an
essay) another text may be as good, so nothing is known of it, and whoever learns from it must leave it out.
"""

from __future__ import annotations

from dataclasses import replace

from edge.core.answer_key import Form, OwnKey, is_short, plain_words
from edge.core.errors import UsageError
from edge.core.plugins import load
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.answers import final_answer
from edge.verifiers.program import ProgramJudge, ProgramVerifier
from edge.verifiers.sandbox.choice import best_sandbox
from edge.verifiers.text_answer import says
from edge.verifiers.verifier import PartialVerifier, Verifier


class VerifierByKind:
    """Hands each item to the verifier of its kind."""

    def __init__(
        self,
        *,
        math: Verifier | None = None,
        programs: Verifier | None = None,
    ) -> None:
        """`math` and `programs` replace the built-in ones (programs: by default in the best sandbox of this machine, chosen when the
        first program comes)."""
        self._verifiers: dict[AnswerKind, Verifier] = {kind: load(kind.verifier)() for kind in AnswerKind if kind.verifier}
        self._verifiers[AnswerKind.MATH] = math or self._verifiers[AnswerKind.MATH]
        self._verifiers[AnswerKind.PROGRAM] = programs or ProgramVerifier(ProgramJudge(best_sandbox))
        self._own = OwnAnswer(self._verifiers[AnswerKind.MATH], self._verifiers[AnswerKind.CHOICE])

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's final answer is right. Raises UsageError for a kind that no verifier judges."""
        verifier = self._judge(item)
        if verifier is None:
            raise UsageError(f"no verifier judges answers of kind {item.kind.value!r} (item {item.id})")
        return verifier.is_correct(item, response)

    def is_rated(self, item: TaskItem, response: str) -> bool:
        """Whether it is known if the response is right; always, but for items of kind feedback."""
        verifier = self._judge(item)
        return not isinstance(verifier, PartialVerifier) or verifier.is_rated(item, response)

    def _judge(self, item: TaskItem) -> Verifier | None:
        if item.kind is AnswerKind.FEEDBACK and OwnKey.from_json(item.answer) is not None:
            return self._own
        return self._verifiers.get(item.kind)


_KINDS: dict[Form, AnswerKind] = {"math": AnswerKind.MATH, "choice": AnswerKind.CHOICE}


class OwnAnswer:
    """Judges by a person's feedback on earlier answers: right or wrong when the answer is one of those known to be that; else nobody
    knows."""

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
            if any(self._is_same(item, key, answer, response) for answer in answers):
                return verdict
        return False if key.right and key.closed and not _may_say(final, key) else None

    def _is_same(self, item: TaskItem, key: OwnKey, answer: str, response: str) -> bool:
        if key.form == "text":
            return says(response, answer)
        kind = _KINDS[key.form]
        known = replace(item, kind=kind, answer=answer, options=key.options)
        return self._verifiers[kind].is_correct(known, f"\\boxed{{{final_answer(response)}}}")


def _may_say(final: str, key: OwnKey) -> bool:
    """Whether an answer that is none of those known may still be right: it is long, or has a right one among its words."""
    words = f" {plain_words(final)} "
    return not is_short(final) or (key.form != "choice" and any(f" {plain_words(right)} " in words for right in key.right))
