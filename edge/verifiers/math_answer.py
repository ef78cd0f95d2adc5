"""Judges mathematical answers by the exact string of the last \\boxed{} (parity with the paper). Knows nothing of equivalence."""

from __future__ import annotations

from edge.core.types import TaskItem
from edge.dagrpo.answers import last_boxed


class ExactMathAnswer:
    """Right when the last boxed answer equals the reference, blanks and thousands separators aside."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the last `\\boxed{}` of the response is the reference answer."""
        boxed = last_boxed(response)
        return boxed is not None and _normalised(boxed) == _normalised(item.answer)


def _normalised(answer: str) -> str:
    text = "".join(answer.split())
    without_commas = text.replace(",", "")
    return without_commas if without_commas.lstrip("-").isdigit() else text
