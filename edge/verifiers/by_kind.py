"""Chooses the verifier for an item's kind of answer. Knows which verifier judges what; knows nothing of how."""

from __future__ import annotations

from collections.abc import Mapping

from edge.core.errors import UsageError
from edge.core.types import AnswerKind, TaskItem
from edge.verifiers.choice_answer import ChoiceAnswer
from edge.verifiers.feedback import FeedbackAnswer, RatingBook
from edge.verifiers.math_answer import MathAnswer
from edge.verifiers.program import ProgramJudge, ProgramVerifier
from edge.verifiers.sandbox.choice import best_sandbox
from edge.verifiers.verifier import Verifier


class VerifierByKind:
    """Hands each item to the verifier of its kind."""

    def __init__(
        self,
        verifiers: Mapping[AnswerKind, Verifier] | None = None,
        *,
        math: Verifier | None = None,
        programs: Verifier | None = None,
        ratings: RatingBook | None = None,
    ) -> None:
        """`verifiers` replaces the built-in ones; `math` and `programs` only that one (programs: by default in the best
        sandbox of this machine, looked for when the first program comes). Feedback is judged where there are `ratings`."""
        builtin: dict[AnswerKind, Verifier] = {
            AnswerKind.MATH: math or MathAnswer(),
            AnswerKind.CHOICE: ChoiceAnswer(),
            AnswerKind.PROGRAM: programs or ProgramVerifier(ProgramJudge(best_sandbox)),
        }
        if ratings is not None:
            builtin[AnswerKind.FEEDBACK] = FeedbackAnswer(ratings)
        self._verifiers = builtin if verifiers is None else dict(verifiers)

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's final answer is right. Raises UsageError for a kind that no verifier judges."""
        verifier = self._verifiers.get(item.kind)
        if verifier is None:
            raise UsageError(f"no verifier judges answers of kind {item.kind.value!r} (item {item.id})")
        return verifier.is_correct(item, response)
