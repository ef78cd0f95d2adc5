"""Chooses the verifier for an item's kind of answer; the kinds are the table edge.core.types.AnswerKind."""

from __future__ import annotations

from edge.core.answer_key import OwnKey
from edge.core.errors import UsageError
from edge.core.plugins import load
from edge.core.types import AnswerKind, TaskItem
from edge.verifiers.own_answer import OwnAnswer
from edge.verifiers.program import ProgramJudge, ProgramVerifier
from edge.verifiers.sandbox.choice import best_sandbox
from edge.verifiers.verifier import PartialVerifier, Verifier


class VerifierByKind:
    """Hands each item to the verifier of its kind."""

    def __init__(
        self,
        *,
        math: Verifier | None = None,
        programs: Verifier | None = None,
    ) -> None:
        """`math` and `programs` replace the built-in ones (programs: by default in the best sandbox of this machine, looked for when the
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
