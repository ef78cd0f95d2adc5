"""Collecting groups: G local responses per prompt, at most one cloud call per prompt, a reward and a cost for each response.

All prompts of a batch run at once: the engine batches their responses, and a group's cloud call overlaps with
the generation of the others. A failed call is data: its responses are masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from edge.cloud.group_calls import CloudOutcome, GroupCalls
from edge.cloud.hints import with_hint
from edge.core.choices import chosen_option, first_number
from edge.core.clock import Clock
from edge.core.concurrency import all_of
from edge.core.errors import EdgeError
from edge.core.forms import PlainForm
from edge.core.rng import derive_seed
from edge.core.types import LocalResponse, PromptGroup, Sampling, TaskItem, Turn
from edge.dagrpo.advantages import mean
from edge.dagrpo.answers import final_answer
from edge.dagrpo.costs import CallCost, weighted_rate
from edge.dagrpo.demonstrations import demonstration
from edge.dagrpo.dual import help_rate
from edge.dagrpo.format import asks_help, check_format, is_well_formed
from edge.dagrpo.reward import Outcome, response_cost, task_reward
from edge.evaluation.judging import (
    CLOUD_TEMPERATURE,
    RolloutSettings,
    call_key,
    cloud_messages,
    composed_text,
    is_judged,
    judge,
)
from edge.inference.backend import InferenceBackend
from edge.learning.step_reporter import OpenStep
from edge.learning.teaching import Draw
from edge.routing.policy import OffloadPolicy, asks
from edge.rpc.client import CloudCall, CloudCompletion, StepUnits, question_chars
from edge.state.rows import HelpRecord
from edge.verifiers.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Batch:
    """The prompts of one step."""

    step: int
    """Counts the run's steps."""
    items: tuple[TaskItem, ...]
    opened: OpenStep
    """Where the coordinator does not know of it, its cloud is not asked and requests for help are masked."""
    stay_here: frozenset[str] = frozenset()
    """Ids of items whose questions must not leave this device; requests for help with them are masked, too."""
    call_cost: CallCost | None = None
    """What a call costs where λ acts on tokens or money; None: each call counts the same."""
    draws: tuple[Draw, ...] = ()
    """How each item was drawn, where they were drawn by what they can teach."""

    def draw(self, index: int) -> Draw | None:
        """That of one item; None where it is the next one of a stream."""
        return self.draws[index] if self.draws else None


class ResponseOutcome(StrEnum):
    """What became of one sampled response.

    KEPT: it did not ask. ASKED: it asked, and the cloud answered. REFUSED: it asked, and a hard limit refused (r = 0, c = 1).
    UNCALLED: it asked, and so did all of its group, so no call was made: Â = 0 whatever the answer. Those that leave their group:
    MASKED: it asked, and the call failed. UNSENT: it asked, and this device did not pass it on. UNRATED: nobody knows whether it is right.
    """

    KEPT = "kept"
    ASKED = "asked"
    REFUSED = "refused"
    UNCALLED = "uncalled"
    MASKED = "masked"
    UNSENT = "unsent"
    UNRATED = "unrated"


_LEAVES_THE_GROUP = (ResponseOutcome.MASKED, ResponseOutcome.UNSENT, ResponseOutcome.UNRATED)


@dataclass(frozen=True, slots=True)
class ScoredResponse:
    """A local response with its outcome, reward r and cost c. `correct` judges the composed response."""

    response: LocalResponse
    format_ok: bool
    outcome: ResponseOutcome
    correct: bool
    reward: float
    cost: int

    @property
    def asked(self) -> bool:
        """Whether it validly asked for help: what Ĵ_c counts, whatever came of it."""
        return self.outcome not in (ResponseOutcome.KEPT, ResponseOutcome.UNRATED)

    @property
    def masked(self) -> bool:
        """Whether it leaves its group: it has no reward."""
        return self.outcome in _LEAVES_THE_GROUP

    @property
    def judged(self) -> bool:
        """Whether it is known to be right or wrong."""
        return not self.masked and self.outcome is not ResponseOutcome.UNCALLED


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """One prompt's scored responses, and the cloud's completion where one was asked for and came."""

    item: TaskItem
    prompt_ids: tuple[int, ...]
    responses: tuple[ScoredResponse, ...]
    completion: CloudCompletion | None
    cloud_reason: str = ""
    cloud_sample: Turn | None = None
    """The completion as a turn of the SLM, where it is right, well formed and to be learned from."""
    lost_uusd: int | None = None
    """What a call cost that brought no answer; None: no such call."""
    given: Turn | None = None
    """Its right answer as a turn of the SLM, where that is learned in place of the sampled ones."""
    cost_weight: float = 1.0
    """w, what its call is expected to cost, in calls of mean cost; 1 where each call counts the same."""
    draw: Draw | None = None
    """How its question was drawn by what it can teach; None: it is the next one of a stream."""

    @property
    def draw_weight(self) -> float:
        """For how many questions of the source it stands in a rate or share, 1 on average."""
        return 1.0 if self.draw is None else self.draw.weight

    @property
    def rate_weight(self) -> float:
        """What each of its responses counts in the rate that is held at τ."""
        return self.draw_weight * self.cost_weight

    @property
    def right_alone(self) -> float:
        """Share of the responses that are right by themselves, 0 to 1."""
        right = sum(one.outcome is ResponseOutcome.KEPT and one.correct and one.format_ok for one in self.responses)
        return right / len(self.responses)

    @property
    def unmasked(self) -> tuple[ScoredResponse, ...]:
        """The responses that count."""
        return tuple(scored for scored in self.responses if not scored.masked)


class TokenLimit:
    """Ends the sampling of a step: a group counts where those before it in the batch have fewer tokens than the limit.

    So no group is left out for its own length or for being slow, and the same seeds give the same step. The groups are sampled at the same
    time; one goes on to ask and be scored once it is known that it counts.
    """

    def __init__(self, groups: int, most: int) -> None:
        """`most`: 0 is no limit."""
        self._most = most
        self._before = [asyncio.get_running_loop().create_future() for _ in range(groups)]
        self._count(0, 0)

    async def within(self, index: int, sampling: Coroutine[Any, Any, PromptGroup]) -> PromptGroup | None:
        """What is sampled for this group; None where it does not count. Raises what the sampling does."""
        if not self._most:
            return await sampling
        task, tokens = asyncio.ensure_future(sampling), 0
        try:
            before: int = await self._before[index]
            if before >= self._most:
                return None
            try:
                group = await task
                tokens = sum(len(response.token_ids) for response in group.responses)
                return group
            finally:
                self._count(index + 1, before + tokens)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _count(self, index: int, tokens: int) -> None:
        """The groups before this one have so many tokens; where these are enough, none from here on counts."""
        for before in self._before[index:] if tokens >= self._most > 0 else self._before[index : index + 1]:
            if not before.done():
                before.set_result(tokens)


@dataclass(slots=True)
class Rollout:
    """Samples and scores the groups of one batch. Of the last batch: `cloud_s` are the seconds from its first call to its last reply (0:
    nothing was asked), `left_out` why prompts were left out, a line each, `beyond_limit` the places of those that came after the step's
    limit of tokens was reached."""

    backend: InferenceBackend
    cloud: GroupCalls
    verifier: Verifier
    policy: OffloadPolicy
    clock: Clock
    settings: RolloutSettings
    cloud_s: float = field(default=0.0, init=False)
    left_out: list[str] = field(default_factory=list, init=False)
    beyond_limit: frozenset[int] = field(default=frozenset(), init=False)
    _first_call: float | None = field(default=None, init=False)

    async def collect(self, batch: Batch, on_group: Callable[[int], None] = lambda done: None) -> list[ScoredGroup]:
        """The scored groups in the order of the batch. `on_group` gets how many are done.

        A prompt that cannot be answered or judged (too long for the context, a sandbox that does not start) is left out, and `left_out`
        has the reason. So are those beyond the limit of tokens. Raises EdgeError when no prompt is left.
        """
        self.cloud_s, self._first_call, done = 0.0, None, 0
        limit = TokenLimit(len(batch.items), self.settings.step_tokens)

        async def one(index: int) -> ScoredGroup | EdgeError | None:
            nonlocal done
            try:
                sampling = self.settings.sampling(batch.items[index], help_bias=batch.opened.help_bias or 0.0)
                sampled = await limit.within(index, self._sampled(batch, index, sampling))
                return None if sampled is None else await self._scored(batch, index, sampled)
            except EdgeError as error:
                return error
            finally:
                done += 1
                on_group(done)

        collected = await all_of(one(index) for index in range(len(batch.items)))
        groups = [group for group in collected if isinstance(group, ScoredGroup)]
        failures = [failure for failure in collected if isinstance(failure, EdgeError)]
        self.left_out = [str(failure) for failure in failures]
        self.beyond_limit = frozenset(index for index, group in enumerate(collected) if group is None)
        if not groups:
            raise failures[0]
        return groups

    async def log_odds(self, batch: Batch) -> HelpRecord:
        """The log-odds of asking for each prompt of a batch, from its first response, as far as they can be had."""

        async def one(index: int) -> list[tuple[float | None, float]]:
            item, seed = batch.items[index], derive_seed(self.settings.seed, "rollout", batch.step, index, 0)
            sampling = self.settings.sampling(item)
            try:
                group = await self.backend.sample_group(self.settings.messages(item), sampling, [seed])
            except EdgeError:  # `collect` leaves it out, and says so
                return []
            draw = batch.draw(index)
            return [(group.responses[0].help_log_odds, draw.weight if draw else 1.0)]

        found = [look for looks in await all_of(one(index) for index in range(len(batch.items))) for look in looks]
        return HelpRecord(tuple(log_odds for log_odds, _ in found), tuple(weight for _, weight in found))

    async def _sampled(self, batch: Batch, index: int, sampling: Sampling) -> PromptGroup:
        """One prompt's responses. The help bias in `sampling` is a part of the policy that is sampled from, and that learns."""
        settings = self.settings
        seeds = [derive_seed(settings.seed, "rollout", batch.step, index, sample) for sample in range(settings.group_size)]
        return await self.backend.sample_group(settings.messages(batch.items[index]), sampling, seeds)

    async def _scored(self, batch: Batch, index: int, sampled: PromptGroup) -> ScoredGroup:
        """Ask, compose, verify: one prompt's group."""
        item, settings, weight = batch.items[index], self.settings, 1.0
        if batch.call_cost is not None:
            weight = batch.call_cost.weight(question_chars(cloud_messages(item, settings.cloud_prompt_form)))
        asks_G = [self._asks(item, response) for response in sampled.responses]
        asking = [response for response, asks in zip(sampled.responses, asks_G, strict=True) if asks]
        outcome = CloudOutcome(None)
        if settings.skip_unanimous_calls and all(asks_G):  # any one reward that all of them share gives Â = 0
            scored = [ScoredResponse(response, True, ResponseOutcome.UNCALLED, False, 0.0, 1) for response in asking]
        else:
            outcome = await self._ask(batch, index, asking) if asking else outcome
            pairs = zip(sampled.responses, asks_G, strict=True)
            scored = [await self._score(item, response, asks, outcome) for response, asks in pairs]
        given = self._given(item, len(sampled.prompt_ids))
        return ScoredGroup(
            item=item,
            prompt_ids=sampled.prompt_ids,
            responses=tuple(scored),
            completion=outcome.completion,
            cloud_reason=outcome.reason,
            cloud_sample=None if given else await self._cloud_sample(item, len(sampled.prompt_ids), outcome.completion),
            lost_uusd=outcome.lost_uusd,
            given=given,
            cost_weight=weight,
            draw=batch.draw(index),
        )

    def _asks(self, item: TaskItem, response: LocalResponse) -> bool:
        return self.settings.may_ask and asks(self.policy, item, response)

    async def _ask(self, batch: Batch, index: int, asking: Sequence[LocalResponse]) -> CloudOutcome:
        if batch.opened.offline:
            return CloudOutcome(None, reason="the coordinator is away")
        if batch.items[index].id in batch.stay_here:
            return CloudOutcome(None, reason="this question was asked of this device alone", unsent=True)
        call = cloud_call(self.settings, batch, index, asking)
        if self._first_call is None:
            self._first_call = self.clock.monotonic()
        outcome = await self.cloud.ask(call)
        self.cloud_s = self.clock.monotonic() - self._first_call
        return outcome

    async def _cloud_sample(self, item: TaskItem, prompt_tokens: int, completion: CloudCompletion | None) -> Turn | None:
        """What was paid for anyway, where the SLM could have answered it: right, in its format, and no longer than its own responses."""
        if not self.settings.cloud_samples or completion is None:
            return None
        text = completion.text.strip()
        turn = as_a_turn(self.backend, self.settings, item, text, prompt_tokens)
        known = turn is not None and await is_judged(self.verifier, item, text)
        return turn if known and await judge(self.verifier, item, text) else None

    def _given(self, item: TaskItem, prompt_tokens: int) -> Turn | None:
        form = self.settings.form_of(item)
        if not self.settings.given_options or not isinstance(form, PlainForm) or not form.options:
            return None
        return as_a_turn(self.backend, self.settings, item, demonstration(item), prompt_tokens)

    async def _score(self, item: TaskItem, response: LocalResponse, asked: bool, cloud: CloudOutcome) -> ScoredResponse:
        """r and c of a response, composed with the cloud's completion where it asked."""
        format_ok = is_well_formed(response, item.max_steps)
        if not self.settings.may_ask and asks_help(response, item.max_steps):
            format_ok = False

        def scored(outcome: ResponseOutcome, cost: int, correct: bool = False, reward: float = 0.0) -> ScoredResponse:
            return ScoredResponse(response, format_ok, outcome, correct, reward, cost)

        cost = response_cost(asked)
        if asked and cloud.completion is None:
            if cloud.refused:
                return scored(ResponseOutcome.REFUSED, cost, reward=task_reward(Outcome(False, format_ok, asked)))
            return scored(ResponseOutcome.UNSENT if cloud.unsent else ResponseOutcome.MASKED, 0)
        composed = composed_text(response.text, cloud.completion.text if asked and cloud.completion else None)
        if not await is_judged(self.verifier, item, composed):
            return scored(ResponseOutcome.MASKED if asked else ResponseOutcome.UNRATED, cost)
        correct = await judge(self.verifier, item, composed)
        reward = task_reward(Outcome(correct, format_ok, asked))
        return scored(ResponseOutcome.ASKED if asked else ResponseOutcome.KEPT, cost, correct, reward)


def as_a_turn(backend: InferenceBackend, settings: RolloutSettings, item: TaskItem, text: str, prompt_tokens: int) -> Turn | None:
    """A text that the SLM could have written, as its turn: an answer in its format, no longer than its own responses; else None. Of a
    text with reasoning a plain turn is the final answer."""
    form, verdict = settings.form_of(item), check_format(text, item.max_steps)
    if isinstance(form, PlainForm):
        text = final_answer(text)
        chosen = chosen_option(text, form.options, first_number(item.question, form.options)) if form.options else None
        text = text if chosen is None else form.options[chosen]
    elif not verdict.ok or verdict.asks_help:
        return None
    longest = min(settings.max_tokens, backend.tokenizer.rollout_tokens - prompt_tokens)
    turn = None if not text else Turn(backend.response_tokens(text)) if form is None else backend.guided_turn(text, form, longest)
    return turn if turn is not None and len(turn.token_ids) <= longest else None


def cloud_call(settings: RolloutSettings, batch: Batch, index: int, asking: Sequence[LocalResponse]) -> CloudCall:
    """The one call of a prompt group, for the responses that ask. Its key depends on run, task, step and prompt only, so a repeated step
    never pays twice; repeated with another hint it is rejected (KEY_REUSED).
    """
    item, opened = batch.items[index], batch.opened
    return CloudCall(
        call_key=call_key(settings.run_id, opened.task, opened.task_step, index, item.id),
        task=opened.task,
        step=opened.task_step,
        prompt_id=f"{index}:{item.id}",
        help_units=len(asking),
        messages=with_hint(
            cloud_messages(item, settings.cloud_prompt_form), asking[0].text, settings.hint_chars, settings.hint_cut
        ),
        max_output_tokens=settings.max_output_tokens,
        model_alias=settings.model_alias,
        temperature=CLOUD_TEMPERATURE,
    )


def step_units(groups: Sequence[ScoredGroup], *, with_bias: bool = False, by_cost: bool = False) -> StepUnits:
    """What Ĵ_c is made of: the responses, and those that validly asked; of rollouts with a help bias also how many would have without.

    `by_cost`: λ acts on a rate in which each response weighs what its call is expected to cost. Where questions were drawn by what they can
    teach, it acts on the rate over all questions of the source; the counts are of those that were drawn.

    Requests that failed, were refused or were not called for count: they are demand. Leaving failures out would let λ fall during
    an outage, and every device would come back asking for everything.
    """
    responses = [scored for group in groups for scored in group.responses]
    uncalled = sum(scored.outcome in (ResponseOutcome.UNCALLED, ResponseOutcome.UNSENT) for scored in responses)
    own_rate, weighted = None, by_cost or any(group.draw for group in groups)
    if weighted and with_bias:
        own_rate = weighted_rate([_rate_without_bias(group.responses) for group in groups], _weights(groups))
    elif weighted:
        own_rate = asked_share(groups)
    elif with_bias:
        own_rate = _rate_without_bias(responses)
    return StepUnits(len(responses), sum(scored.asked for scored in responses), uncalled, own_rate)


def asked_share(groups: Sequence[ScoredGroup]) -> float:
    """Ĵ_w: the share of responses that validly asked, each weighted by what its call is expected to cost, and by its draw."""
    asked = [mean([float(scored.asked) for scored in group.responses]) for group in groups]
    return weighted_rate(asked, _weights(groups))


def _rate_without_bias(responses: Sequence[ScoredResponse]) -> float:
    return help_rate([scored.response.help_log_odds for scored in responses])


def _weights(groups: Sequence[ScoredGroup]) -> list[float]:
    return [group.rate_weight * len(group.responses) for group in groups]
