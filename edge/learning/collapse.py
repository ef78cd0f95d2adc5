"""Noticing that learning has collapsed, by what its steps report, and the version to go back to.

Two signs among the steps of one source that led to the version in training:

- **stuck**: in the last steps every response asks, or none asks and none is right, so that no group has an advantage and λ moves nothing;
  and it was otherwise before.
- **worse**: the share right alone has fallen from an earlier stretch of steps to the last ones beyond chance, both of all responses and of
  those that did not ask: where a model only asks more, or less, one of the two rises.

The version to go back to is the newest one from which `WATCHED` further steps were made without becoming doubtful. Own use is not watched:
its questions change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

from edge.dagrpo.dual import EXPLORED_RATE
from edge.learning.own_use import is_own_use
from edge.state.events import StepFinished

REMEMBERED = 128
"""Steps of the line that are compared."""
WATCHED = 8
"""Steps between two versions of which the first may become the one to go back to; and the shortest stretch that is compared."""
STUCK_STEPS, STUCK_LEVEL, DEAD = 5, 1e-4, 0.9
"""Stuck are at least so many steps in a row with this share of dead groups, if a policy that asks at τ would ask about so many prompts in a
row (or about none) with a probability of at most the level."""
WORSE, DOUBTFUL = 5.0, 2.5
"""Standard errors by which the share right alone has fallen where it is worse, and where a version is not gone back to. So many because
thousands of stretches are compared in a run: in one of about a hundred with 300 steps of 8 x 8 that only vary is a collapse found. In the
62,760 recorded steps of the experiments there is one, from 62 to 25 %."""
MOST_COLLAPSES = 3
"""So many in a row, without a later version to go back to in between, end learning."""


class CountedStep(NamedTuple):
    """What one step showed of the version that it was sampled from."""

    source: str
    step: int
    """Its own version: the adapter that it left."""
    prompts: int
    responses: int
    asked: int
    kept: int
    """Responses that did not ask."""
    right: int
    """Of these."""
    dead: float
    """Share of its groups without an advantage."""
    target_rate: float

    @classmethod
    def of(cls, event: StepFinished) -> CountedStep:
        """Counted from its event; where questions were drawn by what they can teach, over all questions of the source."""
        scores, control = event.scores, event.control
        asked = control.assist_rate if control.source_rate is None else control.source_rate
        kept = round((1.0 - asked) * scores.responses)
        right = round((scores.kept_accuracy or 0.0) * kept)
        if scores.source_right is not None:
            right = min(kept, round(scores.source_right * scores.responses))
        return cls(
            event.source,
            event.step,
            scores.prompts,
            scores.responses,
            scores.responses - kept,
            kept,
            right,
            event.update.frac_reward_zero_std,
            event.control.target_rate,
        )


def stuck(steps: Sequence[CountedStep]) -> str:
    """What holds the last of these steps of one source, in a few words; "" where nothing does or it was never otherwise."""
    if held := _held(steps, _all_ask):
        chance, words = math.prod(step.target_rate**step.prompts for step in held), "every response asks"
    else:
        held = _held(steps, _none_asks_or_is_right)
        chance = math.prod((1.0 - step.target_rate) ** step.prompts for step in held)
        words = "no response asks and none is right"
    if not STUCK_STEPS <= len(held) < len(steps) or chance > STUCK_LEVEL:
        return ""
    return f"in {len(held)} steps {words}, and no group has an advantage"


def _held(steps: Sequence[CountedStep], holds: Callable[[CountedStep], bool]) -> Sequence[CountedStep]:
    """The last steps in a row, of dead groups, of which something holds."""
    first = len(steps)
    while first and steps[first - 1].dead >= DEAD and holds(steps[first - 1]):
        first -= 1
    return steps[first:]


def _all_ask(step: CountedStep) -> bool:
    return step.asked >= (1.0 - EXPLORED_RATE) * step.responses


def _none_asks_or_is_right(step: CountedStep) -> bool:
    return step.asked + step.right <= EXPLORED_RATE * step.responses


@dataclass(frozen=True, slots=True)
class Fall:
    """From an earlier stretch of steps to the last one: by how many standard errors, and the shares right alone of all responses."""

    errors: float = 0.0
    before: float = 0.0
    after: float = 0.0
    steps: int = 0
    """Length of the last stretch."""


def worst_fall(steps: Sequence[CountedStep]) -> Fall:
    """The fall to the last of these steps of one source that is most beyond chance, of all from an earlier stretch of them.

    Stretches are 8, 16, 32 or 64 steps long, the last one 8 or 16. `Fall()` where there are too few steps.
    """
    of_all, of_kept = [(step.right, step.responses) for step in steps], [(step.right, step.kept) for step in steps]
    noise_of_all, noise_of_kept = overdispersion(of_all), overdispersion(of_kept)
    sums_of_all, sums_of_kept = _sums(of_all), _sums(of_kept)
    worst, last = Fall(), len(steps)
    for now, then in product((WATCHED, 2 * WATCHED), (WATCHED, 2 * WATCHED, 4 * WATCHED, 8 * WATCHED)):
        for end in range(then, last - now + 1):
            all_then, all_now = _between(sums_of_all, end - then, end), _between(sums_of_all, last - now, last)
            kept_then, kept_now = _between(sums_of_kept, end - then, end), _between(sums_of_kept, last - now, last)
            errors = min(standard_errors(all_then, all_now, noise_of_all), standard_errors(kept_then, kept_now, noise_of_kept))
            if errors > worst.errors:
                worst = Fall(errors, all_then[0] / all_then[1], all_now[0] / all_now[1], now)
    return worst


def standard_errors(then: tuple[int, int], now: tuple[int, int], noise: float) -> float:
    """By how many standard errors the share of the first of two (right, of) counts lies above that of the second: the two-proportion
    z-test, whose variance is `noise` times the binomial one. 0 where nothing was counted or the shares are the same."""
    (right, of), (right_now, of_now) = then, now
    if not of or not of_now or not 0 < right + right_now < of + of_now:
        return 0.0
    share = (right + right_now) / (of + of_now)
    error = math.sqrt(noise * share * (1.0 - share) * (1.0 / of + 1.0 / of_now))
    return (right / of - right_now / of_now) / error


def overdispersion(counts: Sequence[tuple[int, int]]) -> float:
    """How many times the binomial variance (right, of) counts of steps have, at least 1: the responses to one question are alike.

    From the mean of the squared differences of neighbours, to which a trend adds nothing and a fall only once.
    """
    squares = [standard_errors(then, now, 1.0) ** 2 for then, now in pairwise(counts)]
    return max(1.0, math.fsum(squares) / len(squares)) if squares else 1.0


def _sums(counts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of the first 0, 1, 2, ... counts."""
    return list(accumulate(counts, lambda sums, one: (sums[0] + one[0], sums[1] + one[1]), initial=(0, 0)))


def _between(sums: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    return sums[end][0] - sums[start][0], sums[end][1] - sums[start][1]


@dataclass(frozen=True, slots=True)
class CollapseMemory:
    """What is remembered from step to step, and committed with each. Version 0 is the bare model."""

    latest: int = 0
    """The version in training."""
    good: int = 0
    """The version to go back to."""
    candidate: int = 0
    """The version that becomes `good` if the steps made from it are no worse."""
    steps: tuple[CountedStep, ...] = ()
    """The steps that led to `latest`, oldest first, without those of own use."""
    collapses: int = 0
    """In a row, without a later `good` in between."""
    rate_share: float = 1.0
    """Share of the configured learning rate that updates are made with: halved by each collapse."""
    learning_rate: float = 0.0
    """The configured one."""

    @classmethod
    def from_json(cls, text: str | None, base: int, learning_rate: float) -> CollapseMemory:
        """From what `to_json` made, for a step from version `base`.

        Where somebody went back to that version, it is the one to go back to from now on, and the steps that came after it do not count.
        Another learning rate is a person's answer to collapses: it holds in full.
        """
        if not text:
            return cls(base, base, base, learning_rate=learning_rate)
        fields: dict[str, Any] = json.loads(text)
        memory = cls(**{**fields, "steps": tuple(CountedStep(*one) for one in fields["steps"])})
        if memory.latest != base:
            memory = replace(memory._back_to(base), collapses=0)
        if memory.learning_rate != learning_rate:
            memory = replace(memory, learning_rate=learning_rate, rate_share=1.0, collapses=0)
        return memory

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self))

    @property
    def versions(self) -> tuple[int, int]:
        """Those whose checkpoints are needed."""
        return self.good, self.candidate

    def _back_to(self, version: int) -> CollapseMemory:
        before = tuple(step for step in self.steps if step.step <= version)
        return replace(self, latest=version, good=version, candidate=version, steps=before)

    def followed_by(self, event: StepFinished) -> Watched:
        """After a step from `latest`. A collapse goes back to `good`."""
        if is_own_use(event.source):
            return Watched(replace(self, latest=event.step))
        steps = (*self.steps, CountedStep.of(event))[-REMEMBERED:]
        own = [step for step in steps if step.source == event.source]
        if reason := collapse_of(own):
            after = replace(self._back_to(self.good), collapses=self.collapses + 1, rate_share=self.rate_share / 2)
            return Watched(after, reason)
        memory = replace(self, latest=event.step, steps=steps)
        since = [step for step in steps if step.step > self.candidate]
        if len(since) < WATCHED:
            return Watched(memory)
        if any(_is_doubtful([step for step in steps if step.source == source]) for source in {step.source for step in since}):
            return Watched(replace(memory, candidate=event.step))
        collapses = 0 if self.candidate > self.good else self.collapses
        return Watched(replace(memory, good=self.candidate, candidate=event.step, collapses=collapses))


@dataclass(frozen=True, slots=True)
class Watched:
    """What is remembered after a step, and why it shows a collapse, in one line; "" where it shows none."""

    memory: CollapseMemory
    collapse: str = ""


def collapse_of(steps: Sequence[CountedStep]) -> str:
    """Why the last of these steps of one source show a collapse, in one line; "" where they show none."""
    if words := stuck(steps):
        return words
    fall = worst_fall(steps)
    if fall.errors < WORSE:
        return ""
    return f"right alone fell from {100 * fall.before:.0f} % of the responses to {100 * fall.after:.0f} % in the last {fall.steps} steps"


def _is_doubtful(steps: Sequence[CountedStep]) -> bool:
    """Whether the last of these steps of one source are no ones to go back to: right alone may have fallen, or more than half of the way
    from τ to always asking is gone."""
    last = steps[-WATCHED:]
    rate = sum(step.asked for step in last) / sum(step.responses for step in last)
    target = last[-1].target_rate
    return rate - target > (1.0 - target) / 2 or worst_fall(steps).errors > DOUBTFUL
