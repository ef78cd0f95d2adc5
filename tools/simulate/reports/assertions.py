"""Whether a run did what its scenario states: `{metric, op, value}`, with a group, a source of answers or the warm-up where they matter.

What cannot be told (nobody answered, no budget is in force) makes an assertion not hold, and `found` says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tools.simulate.reports.quantities import METRICS, FigureUnit, Quantity, Scope, answers_of, figure, metric, written
from tools.simulate.reports.result import AssertionResult, SimulationResult

EACH = "each"
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": lambda one, other: one <= other + _HAIR,
    ">": operator.gt,
    ">=": lambda one, other: one >= other - _HAIR,
    "==": operator.eq,
}
_HAIR = 1e-9
"""Sums of binary fractions are off by less; what is right on the limit keeps it."""


class Assertion(BaseModel):
    """One claim about a run. Without a group it is of the whole fleet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str = Field(description="What is measured, as p95; tools/simulate/README.md lists them.")
    op: Literal["<", "<=", ">", ">=", "=="] = Field(description="How it compares with the value.")
    value: float = Field(
        allow_inf_nan=False, description="In the metric's unit: seconds, shares from 0 to 1, US dollars, counts, watt-hours."
    )
    group: str = Field("", description='A group\'s name, or "each": every one of them must do (empty: the whole fleet).')
    source: Literal["", "local", "cloud", "local-fallback"] = Field("", description="Only answers of this source (empty: all).")
    after_warm_up: bool = Field(False, description="Only what comes after the warm-up.")

    @model_validator(mode="after")
    def _is_known(self) -> Assertion:
        quantity = metric(self.metric)
        if quantity is None:
            near = get_close_matches(self.metric, METRICS, 3, 0.4)
            raise ValueError(f"no metric is called {self.metric!r}; nearest: {', '.join(near) or ', '.join(METRICS)}")
        reasons = {
            f"{self.metric} is not told by source": bool(self.source) and not quantity.of_sources,
            f"{self.metric} is of the whole fleet, not of a group": bool(self.group) and not quantity.of_groups,
            f"{self.metric} is not told after the warm-up alone": self.after_warm_up and not quantity.settles,
            f"{self.metric} is a share from 0 to 1, not {self.value:g}": quantity.unit is FigureUnit.SHARE
            and abs(self.value) > 1,
        }
        if found := [reason for reason, wrong in reasons.items() if wrong]:
            raise ValueError(found[0])
        return self

    @property
    def quantity(self) -> Quantity:
        """What the metric measures."""
        return figure(self.metric)

    @property
    def text(self) -> str:
        """For people: p95 of each group < 30 s."""
        source = f" of {self.source} answers" if self.source else ""
        group = "" if not self.group else " of each group" if self.group == EACH else f" of {self.group}"
        value = written(self.value, self.quantity.unit)
        return f"{self.metric}{source}{group} {self.op} {value}" + (" after warm-up" if self.after_warm_up else "")


def evaluate(result: SimulationResult, assertions: Sequence[Assertion]) -> list[AssertionResult]:
    """Judge each of them."""
    return [AssertionResult(each.text, *_judge(result, each)) for each in assertions]


def holds(result: SimulationResult) -> bool:
    """Whether the run did all that its scenario states, and the ledger agrees with the devices."""
    return all(each.holds for each in result.assertions) and not result.cloud.ledger_violations


def _judge(result: SimulationResult, claim: Assertion) -> tuple[bool, str]:
    groups = [each for each in result.groups if claim.group in ("", EACH, each.name)]
    if not groups:
        return False, f"no group is called {claim.group}"
    if claim.group != EACH:
        return _compare(claim, Scope(result, groups, claim.source, claim.after_warm_up), "")
    judged = [_compare(claim, Scope(result, [each], claim.source, claim.after_warm_up), f" ({each.name})") for each in groups]
    return next((each for each in judged if not each[0]), judged[0])


def _compare(claim: Assertion, asked: Scope, whose: str) -> tuple[bool, str]:
    value = claim.quantity.measure(asked)
    if value is None:
        return False, f"{claim.metric}: {_why_not(claim, asked)}{whose}"
    return _OPERATORS[claim.op](value, claim.value), f"{claim.metric} {written(value, claim.quantity.unit)}{whose}"


def _why_not(claim: Assertion, asked: Scope) -> str:
    if claim.metric.endswith("over budget"):
        return "no budget is in force"
    if not sum(answers_of(each, asked.sources) for each in asked.groups):
        return f"no {asked.source} answers".replace("  ", " ")
    return "nothing after the warm-up" if asked.settled else "was not measured"
