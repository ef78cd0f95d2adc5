"""Do hints pay? The items that ask for help go to the cloud LLM twice, with and without the redacted local steps.

Verdict. Over the pairs in which both calls were answered: hints *pay* where (1) the accuracy is equal: the low end of the difference
(with - without) lies above -margin, where the ends are those of 95 % Wilson intervals of the two kinds of pairs that differ; and (2) a
right answer costs less: the 97.5 % quantile of the ratio of costs per right answer (with / without) over resampled pairs lies below 1.
They *do not pay* where the accuracy is shown to be lower by more than the margin, or the ratio's 2.5 % quantile is at least 1. Everything
else is *not known*, and hints stay off. Cost is spend; where nothing is charged or an answer came out of a cache, it is tokens, input and
output together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edge.cloud.group_calls import CloudOutcome
from edge.cloud.hints import with_hint
from edge.core.concurrency import all_of
from edge.core.errors import ContextOverflow
from edge.core.rng import derive_seed, stream
from edge.core.types import LocalResponse
from edge.dagrpo.metrics import wilson_interval
from edge.evaluation.evaluate import EvalRoles
from edge.evaluation.judging import CLOUD_TEMPERATURE, Candidate, RolloutSettings, call_key, cloud_messages, composed_text, judge
from edge.routing.policy import asks
from edge.rpc.client import CloudCall

Verdict = Literal["pays", "does not pay", "not known"]
_RESAMPLES = 2000
_CALLS_AT_ONCE = 8
_FEWEST_PAIRS = 20


@dataclass(frozen=True, slots=True)
class Reply:
    """One arm's answer to an item: whether it was right, and what it cost."""

    right: bool
    input_tokens: int
    output_tokens: int
    spend_uusd: int
    cached: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """One item's two replies; `failure`: why one of them is missing."""

    key: str
    without: Reply | None
    hinted: Reply | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm summed up over the complete pairs; `interval` is 95 % Wilson."""

    right: int
    accuracy: float
    interval: tuple[float, float]
    input_tokens: int
    output_tokens: int
    spend_uusd: int
    cost_per_right: float | None


@dataclass(frozen=True, slots=True)
class HintReport:
    """What came out. Of the `items`, `asked` asked for help, `tried` of them with steps to pass on, and `pairs` were answered both ways.

    `difference`: accuracy with minus without, with its ends; `ratio` of the costs per right answer, with its ends.
    """

    hint_chars: int
    margin: float
    items: int
    asked: int
    tried: int
    pairs: int
    failures: int
    first_failure: str
    without: Arm
    hinted: Arm
    cost_unit: Literal["uusd", "tokens"]
    difference: tuple[float, float, float]
    ratio: tuple[float, float, float] | None
    verdict: Verdict
    why: str

    @property
    def setting(self) -> str:
        """The line of the configuration that follows from it."""
        return f"coordinator.hint_chars={self.hint_chars if self.verdict == 'pays' else 0}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field, and the setting."""
        return {**asdict(self), "setting": self.setting}


class HintTrial:
    """Asks both ways for every item whose response asks."""

    def __init__(self, roles: EvalRoles, settings: RolloutSettings, hint_chars: int, tag: str) -> None:
        """`tag` marks this trial's calls. The roles have a cloud."""
        if roles.cloud is None:
            raise ValueError("a trial of hints needs a cloud")
        self._roles = roles
        self._cloud = roles.cloud
        self._settings = settings
        self._hint_chars = hint_chars
        self._tag = tag
        self.asked = 0
        """Items whose response asked so far, with steps to pass on or without."""

    async def run(self, candidates: Sequence[Candidate], on_item: Callable[[int], None] = lambda done: None) -> list[Pair]:
        """One pair for each item that asks and has steps to pass on, in order."""
        calls, done = asyncio.Semaphore(_CALLS_AT_ONCE), 0

        async def one(candidate: Candidate) -> Pair | None:
            nonlocal done
            pair = await self._pair(candidate, calls)
            done += 1
            on_item(done)
            return pair

        return [pair for pair in await all_of(one(candidate) for candidate in candidates) if pair is not None]

    async def _pair(self, candidate: Candidate, calls: asyncio.Semaphore) -> Pair | None:
        response = await self._asking(candidate)
        if response is None:
            return None
        self.asked += 1
        settings, item = self._settings, candidate.item
        plain = cloud_messages(item, settings.cloud_prompt_form)
        hinted = with_hint(plain, response.text, self._hint_chars, settings.hint_cut)
        if hinted == plain:
            return None
        outcomes: list[CloudOutcome] = []
        async with calls:
            for arm, messages in (("without", plain), ("hinted", hinted)):
                call = CloudCall(
                    call_key=call_key(settings.run_id, f"hints {self._tag} {arm}", 0, 0, candidate.key),
                    task=item.task,
                    step=-1,
                    prompt_id=f"eval:hints {self._tag} {arm}:{candidate.key}",
                    help_units=1,
                    messages=messages,
                    max_output_tokens=settings.max_output_tokens,
                    model_alias=settings.model_alias,
                    temperature=CLOUD_TEMPERATURE,
                )
                outcomes.append(await self._cloud.ask(call))
        replies: list[Reply | None] = []
        for completion in (outcome.completion for outcome in outcomes):
            if completion is None:
                replies.append(None)
                continue
            right, usage = (
                await judge(self._roles.verifier, item, composed_text(response.text, completion.text)),
                completion.usage,
            )
            cost = (usage.input_tokens, usage.output_tokens, completion.charged_uusd, completion.cached)
            replies.append(Reply(right, *cost))
        failure = next((outcome.reason for outcome in outcomes if outcome.completion is None), "")
        return Pair(candidate.key, replies[0], replies[1], failure)

    async def _asking(self, candidate: Candidate) -> LocalResponse | None:
        """The response to an item, where it asks for help."""
        settings, item = self._settings, candidate.item
        sampling = settings.sampling(item)
        seed = derive_seed(settings.seed, "eval", candidate.key)
        try:
            messages = settings.messages(item)
            group = await self._roles.backend.sample_group(messages, sampling, [seed])
        except ContextOverflow:
            return None
        response = group.responses[0]
        return response if asks(self._roles.policy, item, response) else None


def hint_report(pairs: Sequence[Pair], items: int, asked: int, hint_chars: int, margin: float, rng: random.Random) -> HintReport:
    """Sum up a trial over `items` items of which `asked` asked; `rng` resamples the pairs."""
    complete = [(pair.without, pair.hinted) for pair in pairs if pair.without is not None and pair.hinted is not None]
    unit: Literal["uusd", "tokens"] = (
        "uusd" if complete and all(one.spend_uusd > 0 and not one.cached for two in complete for one in two) else "tokens"
    )
    gained = sum(hinted.right and not without.right for without, hinted in complete)
    lost = sum(without.right and not hinted.right for without, hinted in complete)
    gains, losses = (
        wilson_interval(gained, len(complete)),
        wilson_interval(lost, len(complete)),
    )  # of no pairs: everything is possible
    value = (gained - lost) / len(complete) if complete else 0.0
    difference = (gains[0] - losses[1], value, gains[1] - losses[0])
    ratio = _ratio(complete, unit, rng)
    verdict, why = _verdict(len(complete), difference, ratio, margin)
    failed = [pair.failure for pair in pairs if pair.failure]
    return HintReport(
        hint_chars=hint_chars,
        margin=margin,
        items=items,
        asked=asked,
        tried=len(pairs),
        pairs=len(complete),
        failures=len(failed),
        first_failure=failed[0] if failed else "",
        without=_arm([two[0] for two in complete], unit),
        hinted=_arm([two[1] for two in complete], unit),
        cost_unit=unit,
        difference=difference,
        ratio=ratio,
        verdict=verdict,
        why=why,
    )


def _verdict(
    pairs: int, difference: tuple[float, float, float], ratio: tuple[float, float, float] | None, margin: float
) -> tuple[Verdict, str]:
    low, _, high = difference
    if pairs < _FEWEST_PAIRS:
        return "not known", f"{pairs} pairs are too few; at least {_FEWEST_PAIRS} are needed"
    if high < -margin:
        return "does not pay", "answers are right less often with hints"
    if ratio is None:
        return "not known", "an arm has no right answer, so that a right answer has no cost"
    if ratio[0] >= 1.0:
        return "does not pay", "a right answer costs as much with hints, or more"
    if low <= -margin:
        return "not known", "so few pairs do not show that answers are right as often with hints"
    if ratio[2] >= 1.0:
        return "not known", "so few pairs do not show that a right answer costs less with hints"
    return "pays", "answers are right as often, and a right answer costs less"


def _cost(reply: Reply, unit: str) -> int:
    return reply.spend_uusd if unit == "uusd" else reply.input_tokens + reply.output_tokens


def _arm(replies: Sequence[Reply], unit: str) -> Arm:
    right, cost = sum(reply.right for reply in replies), sum(_cost(reply, unit) for reply in replies)
    return Arm(
        right=right,
        accuracy=right / len(replies) if replies else 0.0,
        interval=wilson_interval(right, len(replies)),
        input_tokens=sum(reply.input_tokens for reply in replies),
        output_tokens=sum(reply.output_tokens for reply in replies),
        spend_uusd=sum(reply.spend_uusd for reply in replies),
        cost_per_right=cost / right if right else None,
    )


def _ratio(pairs: Sequence[tuple[Reply, Reply]], unit: str, rng: random.Random) -> tuple[float, float, float] | None:
    """Cost per right answer, with hints over without: 2.5 % quantile, value and 97.5 % quantile; None where an arm has no right answer."""
    value = _ratio_of(pairs, unit)
    if value is None:
        return None
    drawn = (_ratio_of(rng.choices(pairs, k=len(pairs)), unit) for _ in range(_RESAMPLES))
    ordered = sorted(ratio if ratio is not None else float("inf") for ratio in drawn)
    return ordered[int(0.025 * _RESAMPLES)], value, ordered[int(0.975 * _RESAMPLES)]


def _ratio_of(pairs: Sequence[tuple[Reply, Reply]], unit: str) -> float | None:
    costs = [sum(_cost(two[arm], unit) for two in pairs) for arm in (0, 1)]
    right = [sum(two[arm].right for two in pairs) for arm in (0, 1)]
    return costs[1] * right[0] / (right[1] * costs[0]) if all(right) and all(costs) else None


def trial_rng(seed: int) -> random.Random:
    """What resamples a trial's pairs."""
    return stream(seed, "hints")
