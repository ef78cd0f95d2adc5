"""Judges mathematical answers by the last \boxed{}: as an exact string (the paper's way) and by equivalence.

Both verdicts can be had at once, so that an evaluation reports both; `learning.objective.answer_match` says which one is the reward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from edge.core.answer_key import without_invisible
from edge.core.types import TaskItem
from edge.dagrpo.answers import judged_answer
from edge.verifiers.equivalence import Equivalence, equivalence_available
from edge.verifiers.text_answer import says

_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """`exact`: the same string, blanks and thousands separators aside. `equivalent`: the same mathematics; None where nobody compared."""

    exact: bool
    equivalent: bool | None


class MathAnswer:
    """Right when the last boxed answer is the reference, by the exact string or by equivalence."""

    def __init__(self, match: Literal["exact", "equivalent"] = "exact", equivalence: Equivalence | None = None) -> None:
        """`equivalence` compares for verdicts; with match "equivalent" it is made when not given.

        Raises UsageError when match is "equivalent" and math-verify is not installed.
        """
        self._match = match
        self._equivalence = Equivalence() if equivalence is None and match == "equivalent" else equivalence

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the last `\\boxed{}` of the response is the reference answer under the chosen match; a plain answer may say it in a
        sentence."""
        if item.form == "plain" and says(response, item.answer):
            return True
        if self._match == "exact":
            return _exact(item, judged_answer(response, plain=item.form == "plain"))
        return bool(self.verdict(item, response).equivalent)

    def verdict(self, item: TaskItem, response: str) -> MathVerdict:
        """Both verdicts. What is exact is equivalent."""
        boxed = judged_answer(response, plain=item.form == "plain")
        if boxed is None:
            return MathVerdict(exact=False, equivalent=None if self._equivalence is None else False)
        if _exact(item, boxed):
            return MathVerdict(exact=True, equivalent=True)
        return MathVerdict(False, None if self._equivalence is None else self._equivalence.equivalent(item.answer, boxed))

    def close(self) -> None:
        """End the comparing process, if one was started."""
        if self._equivalence is not None:
            self._equivalence.close()


ExactMathAnswer = MathAnswer
"""The paper's judge: `MathAnswer()` without arguments."""


def both_verdicts() -> MathAnswer:
    """A judge that rewards the exact string and also reports equivalence where math-verify is installed. Close it."""
    return MathAnswer("exact", Equivalence() if equivalence_available() else None)


def _exact(item: TaskItem, boxed: str | None) -> bool:
    return boxed is not None and _normalised(boxed) == _normalised(item.answer)


def _normalised(answer: str) -> str:
    text = "".join(without_invisible(answer).split())
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
