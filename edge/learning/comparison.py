"""Two exams of the same validation questions compared: what is right alone, and what is right in the end within one rate of asking.

An exam knows of every question whether the model alone is right, and how much it wants to ask. Within a rate τ the questions with the
highest help log-odds go to the cloud, as many as it pays for, where they count as right as often as the cloud was right while learning: an
estimate, since the cloud is not asked. A model that asks for what it cannot do is right more often at the same τ, even where it can do no
more alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, zip_longest
from typing import Any, Literal

from edge.core.formatting import shown
from edge.state.rows import ExamAnswer

Answers = Mapping[str, ExamAnswer]
Change = Literal["gained", "asks now", "lost", "asks no longer"]
"""Right alone now; wrong alone, and asks now; no longer right alone; wrong alone, and asks no longer."""
MOST_EXAMPLES = 3
_QUESTION_CHARS = 160


@dataclass(frozen=True, slots=True)
class Asking:
    """The rate τ that a source is held to, and the share of the cloud's answers to it that were right (None: not known yet)."""

    rate: float
    cloud_accuracy: float | None = None

    def asked(self, answers: Answers, keys: Collection[str]) -> frozenset[str]:
        """The questions among `keys` that go to the cloud: the most wanted first, at most τ of all, and the fewest that are best."""
        by_wish = sorted(keys, key=lambda key: (-(answers[key].help_log_odds or 0.0), key))
        by_wish = by_wish[: int(self.rate * len(by_wish) + 0.5)]
        gains = [0.0, *accumulate(self._cloud_right - answers[key].right for key in by_wish)]
        return frozenset(by_wish[: gains.index(max(gains))])

    def right_in_the_end(self, answers: Answers, keys: Collection[str]) -> float:
        """The share right: alone, or with the cloud's answer."""
        asked = self.asked(answers, keys)
        alone = sum(answers[key].right for key in keys if key not in asked)
        return (alone + len(asked) * self._cloud_right) / len(keys)

    @property
    def _cloud_right(self) -> float:
        """What a cloud answer counts for; where none was judged yet, nothing, so that only what is right alone counts."""
        return self.cloud_accuracy or 0.0


def compare(before: Answers, after: Answers, asking: Asking | None) -> dict[str, Any]:
    """The counts of one source. `in_the_end` is None where the rate, or how much the model wants to ask, is not known."""
    both = [key for key in after if key in before]
    weighed = [key for key in both if None not in (before[key].help_log_odds, after[key].help_log_odds)]
    in_the_end = None
    if asking is not None and weighed:
        in_the_end = {
            "items": len(weighed),
            "rate": asking.rate,
            "cloud_accuracy": asking.cloud_accuracy,
            "before": asking.right_in_the_end(before, weighed),
            "after": asking.right_in_the_end(after, weighed),
        }
    return {
        "items": len(both),
        "right_then": sum(before[key].right for key in both),
        "right_now": sum(after[key].right for key in both),
        "gained": sum(after[key].right and not before[key].right for key in both),
        "lost": sum(before[key].right and not after[key].right for key in both),
        "new": len(after) - len(both),
        "new_right": sum(answer.right for key, answer in after.items() if key not in before),
        "in_the_end": in_the_end,
    }


def changed_examples(
    before: Answers, after: Answers, asking: Asking | None, questions: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A few questions that changed, gained ones first; of each kind of change one before a second one."""
    both = [key for key in after if key in before and key in questions]
    weighed = [key for key in both if None not in (before[key].help_log_odds, after[key].help_log_odds)]
    then, now = (asking.asked(answers, weighed) if asking else frozenset[str]() for answers in (before, after))
    by_change: dict[Change, list[str]] = {"gained": [], "asks now": [], "lost": [], "asks no longer": []}
    for key in both:
        if change := _change(before[key].right, after[key].right, key in then, key in now):
            by_change[change].append(key)
    in_turn = chain.from_iterable(zip_longest(*([(change, key) for key in keys] for change, keys in by_change.items())))
    chosen = [one for one in in_turn if one is not None][:MOST_EXAMPLES]
    in_order = sorted(chosen, key=lambda one: list(by_change).index(one[0]))
    return [changed_example(questions[key], change, before[key], after[key]) for change, key in in_order]


def changed_example(question: str, change: Change, before: ExamAnswer, after: ExamAnswer) -> dict[str, Any]:
    """A question that changed, with what was made of it before and after."""
    return {
        "question": shown(" ".join(question.split()), _QUESTION_CHARS),
        "change": change,
        "before": before.answer,
        "after": after.answer,
        "right_before": before.right,
        "right_after": after.right,
    }


def _change(was_right: bool, is_right: bool, asked: bool, asks: bool) -> Change | None:
    if was_right != is_right:
        return "gained" if is_right else "lost"
    if is_right or asked == asks:
        return None
    return "asks now" if asks else "asks no longer"
