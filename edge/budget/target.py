"""What asking the cloud is held to, in the one line that `budget show`, `report` and the page have."""

from __future__ import annotations

from dataclasses import dataclass

from edge.budget.pace import PeriodBudget
from edge.core.periods import PERIOD_WORDS
from edge.core.rates import rate_words
from edge.core.units import BY_WORD


@dataclass(frozen=True, slots=True)
class Target:
    """`budget` that a rate follows from (None: λ acts on calls), with the `rate` it leaves now; `dial`: τ of people's questions where
    a person or the configuration set one; `learning`: τ of learning (None: nothing was learned)."""

    budget: PeriodBudget | None
    rate: float | None
    dial: float | None
    learning: float | None

    @property
    def words(self) -> str:
        """In one line."""
        if self.budget is not None:
            amount = BY_WORD[self.budget.unit].amount(self.budget.limit)
            now = "" if self.rate is None else f": now {rate_words(self.rate)} of questions"
            dial = "" if self.dial is None else f"; the dial holds people's questions at {rate_words(self.dial)}"
            return f"{amount} {PERIOD_WORDS[self.budget.period]}{now}{dial}"
        if self.dial is not None:
            return f"{rate_words(self.dial)} of questions may ask"
        if self.learning is not None:
            return f"the model decides; it learns to ask for help at {rate_words(self.learning)}"
        return "the model decides"
