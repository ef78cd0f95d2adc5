"""Evaluating a model or adapter on held-out items.

Each item is answered once by the model's own decision and, where it mentions the help phrase, once more with asking made impossible:
with the same seed, so that only the decision differs. The cloud is asked once for an item that asks, or for every item (`cloud_all`).
What the scores mean, and the report, are in edge.evaluation.scores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from typing import Protocol

from edge.cloud.group_calls import CloudOutcome
from edge.cloud.hints import with_hint
from edge.core.concurrency import all_of
from edge.core.errors import ContextOverflow
from edge.core.formatting import shown
from edge.core.rng import derive_seed
from edge.core.types import AnswerKind, LocalResponse, TaskItem
from edge.dagrpo.format import is_well_formed
from edge.dagrpo.prompts import HELP_PHRASE
from edge.evaluation.cloud import CloudAnswers
from edge.evaluation.judging import (
    CLOUD_TEMPERATURE,
    WRONG,
    Bill,
    Candidate,
    Judged,
    JudgedItem,
    RolloutSettings,
    Verdict,
    call_key,
    cloud_messages,
    composed_text,
    judge,
)
from edge.inference.backend import InferenceBackend
from edge.inference.channels import readable_answer
from edge.routing.policy import OffloadPolicy, asks
from edge.rpc.client import CloudCall
from edge.verifiers.math_answer import MathVerdict
from edge.verifiers.verifier import Verifier

__all__ = [
    "Candidate",
    "EvalRoles",
    "Evaluation",
    "Example",
    "JudgedItem",
    "bill_of",
    "candidates_of",
    "counted_once",
    "examples_of",
]

_ITEMS_AT_ONCE = 256
_CALLS_AT_ONCE = 16
"""A call waits for its turn here and not at the coordinator, where its deadline would run."""


class MathJudge(Protocol):
    """Reads a mathematical answer both ways."""

    def verdict(self, item: TaskItem, response: str) -> MathVerdict:
        """Exact and equivalent; callable from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class EvalRoles:
    """Who answers and judges. `math` adds the two readings of mathematical answers; `cloud` None: nobody can be asked."""

    backend: InferenceBackend
    verifier: Verifier
    policy: OffloadPolicy
    cloud: CloudAnswers | None
    math: MathJudge | None = None


@dataclass(slots=True)
class Evaluation:
    """Judges items one by one with whatever adapter the backend uses.

    Temperature, seed, lengths and prompt forms are those of `settings`.
    """

    roles: EvalRoles
    settings: RolloutSettings
    _: KW_ONLY
    cloud_all: bool = False

    async def judge_all(
        self,
        candidates: Sequence[Candidate],
        tag: str,
        known: Mapping[str, Judged] | None = None,
        on_judged: Callable[[Candidate, Judged], None] = lambda candidate, judged: None,
    ) -> list[JudgedItem]:
        """All items in order. `tag` marks this evaluation's cloud calls; what is `known` by its key is not done again."""
        slots, calls = asyncio.Semaphore(_ITEMS_AT_ONCE), asyncio.Semaphore(_CALLS_AT_ONCE)

        async def one(candidate: Candidate) -> JudgedItem:
            if known and (judged := known.get(candidate.key)) is not None:
                return JudgedItem(candidate, judged)
            async with slots:
                judged = await self._judge(candidate, tag, calls)
            on_judged(candidate, judged)
            return JudgedItem(candidate, judged)

        return await all_of(one(candidate) for candidate in candidates)

    async def _judge(self, candidate: Candidate, tag: str, calls: asyncio.Semaphore) -> Judged:
        item = candidate.item
        try:
            response = await self._sample(candidate, suppress_help=False)
            mentions_help = HELP_PHRASE.rstrip(".").lower() in response.text.lower()
            forced = await self._sample(candidate, suppress_help=True) if mentions_help else response
        except ContextOverflow:
            return Judged(False, False, WRONG, WRONG, WRONG, None, 0, None, too_long=True)
        format_ok = is_well_formed(response, item.max_steps)
        asked = asks(self.roles.policy, item, response)
        own = WRONG if asked or not format_ok else await self._verdict(item, response.text)
        forced_verdict = own
        if asked or forced is not response:
            forced_verdict = await self._verdict(item, forced.text) if is_well_formed(forced, item.max_steps) else WRONG
        outcome = None
        if self.roles.cloud is not None and (asked or self.cloud_all):
            call = self._call(candidate, tag, response.text if asked else "")
            async with calls:
                outcome = await self.roles.cloud.ask(call)
        completion = outcome.completion if outcome else None
        joint: Verdict | None = own
        if asked and outcome is None:
            joint = None
        elif asked:
            joint = await self._verdict(item, composed_text(response.text, completion.text)) if completion else WRONG
        return Judged(
            asked=asked,
            format_ok=format_ok,
            own=own,
            forced=forced_verdict,
            joint=joint,
            cloud=await self._verdict(item, completion.text) if completion else None,
            tokens=len(response.token_ids),
            help_log_odds=response.help_log_odds,
            bill=bill_of(outcome) if outcome else Bill(),
            failure=outcome.reason if outcome and completion is None else "",
            answer=shown(" ".join(readable_answer(forced.text).split())),
            doubt=response.doubt,
        )

    async def _sample(self, candidate: Candidate, suppress_help: bool) -> LocalResponse:
        settings, item = self.settings, candidate.item
        sampling = settings.sampling(item, suppress_help=suppress_help)
        seed = derive_seed(settings.seed, "eval", candidate.key)
        messages = settings.messages(item)
        group = await self.roles.backend.sample_group(messages, sampling, [seed])
        return group.responses[0]

    async def _verdict(self, item: TaskItem, text: str) -> Verdict:
        right = await judge(self.roles.verifier, item, text)
        if item.kind is not AnswerKind.MATH or self.roles.math is None:
            return Verdict(right)
        both = await asyncio.to_thread(self.roles.math.verdict, item, text)
        return Verdict(right, both.exact, both.equivalent)

    def _call(self, candidate: Candidate, tag: str, local: str) -> CloudCall:
        settings, item = self.settings, candidate.item
        return CloudCall(
            call_key=call_key(settings.run_id, f"eval {tag}", 0, 0, candidate.key),
            task=item.task,
            step=-1,
            prompt_id=f"eval:{tag}:{candidate.key}",
            help_units=1,
            messages=with_hint(cloud_messages(item, settings.cloud_prompt_form), local, settings.hint_chars, settings.hint_cut),
            max_output_tokens=settings.max_output_tokens,
            model_alias=settings.model_alias,
            temperature=CLOUD_TEMPERATURE,
        )


def candidates_of(items: Iterable[tuple[TaskItem, float]], max_steps: int | None = None) -> list[Candidate]:
    """Candidates of (item, weight) pairs; the weights of a repeated question add up. `max_steps` replaces the items' own limit."""
    found: dict[str, Candidate] = {}
    for item, weight in items:
        candidate = Candidate(item if max_steps is None else replace(item, max_steps=max_steps), weight)
        before = found.get(candidate.key)
        found[candidate.key] = candidate if before is None else replace(before, weight=before.weight + weight)
    return list(found.values())


def counted_once(sources: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """The candidates of several sources in order. One that an earlier source has is dropped, and the earlier one counts it."""
    found: dict[str, Candidate] = {}
    for candidate in chain.from_iterable(sources):
        before = found.get(candidate.key)
        found[candidate.key] = candidate if before is None else replace(before, repeats=before.repeats + 1)
    return list(found.values())


def bill_of(outcome: CloudOutcome) -> Bill:
    """What one call cost; a cached answer was billed before."""
    completion = outcome.completion
    if completion is None:
        return Bill() if outcome.lost_uusd is None else Bill(1, spend_uusd=outcome.lost_uusd)
    if completion.cached:
        return Bill(1, cached=1)
    return Bill(1, completion.usage.input_tokens + completion.usage.output_tokens, completion.charged_uusd)


@dataclass(frozen=True, slots=True)
class Example:
    """An example for a router: one item, the free response to it, and whether the local model fails on it.

    Features come from the free response, the label from the answer with asking made impossible, as a router would meet them: a response
    that asks for help by itself shows nothing of whether the model could have answered.
    """

    item: TaskItem
    response: LocalResponse
    failed: bool


class _Responses:
    """Implements `OffloadPolicy`: keeps everything here and remembers what it was asked about."""

    def __init__(self) -> None:
        self.responses: dict[TaskItem, LocalResponse] = {}

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """Never."""
        self.responses[item] = response
        return False


async def examples_of(
    roles: EvalRoles, settings: RolloutSettings, items: Iterable[TaskItem], on_item: Callable[[int, int], None]
) -> list[Example]:
    """One example of each different item whose response came to an end. `on_item` gets how many of how many are done."""
    noted, candidates = _Responses(), candidates_of((item, 1.0) for item in items)
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        on_item(done, len(candidates))

    evaluation = Evaluation(replace(roles, policy=noted, cloud=None), settings)
    judged = await evaluation.judge_all(candidates, "router", on_judged=count)
    return [
        Example(one.item, noted.responses[one.item], not one.judged.forced.right) for one in judged if one.item in noted.responses
    ]
