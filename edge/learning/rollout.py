"""Collecting groups: G local responses per prompt, at most one cloud call per prompt, a reward and a cost for each response.

All prompts of a batch run at once: the engine batches their responses, and a group's cloud call overlaps with
the generation of the others. A failed call is data: its responses are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from edge.cloud.group_calls import CloudOutcome, GroupCalls
from edge.cloud.hints import with_hint
from edge.core.clock import Clock
from edge.core.concurrency import all_of
from edge.core.errors import EdgeError
from edge.core.rng import derive_seed, stream
from edge.core.types import LocalResponse, PromptGroup, Sampling, TaskItem
from edge.dagrpo.dual import help_rate
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import prompt_messages
from edge.dagrpo.reward import Outcome, response_cost, task_reward
from edge.evaluation.judging import (
    UNFINISHED,
    RolloutSettings,
    call_key,
    cloud_messages,
    composed_text,
    is_judged,
    is_well_formed,
    judge,
)
from edge.inference.backend import InferenceBackend
from edge.learning.curriculum import StepPlan
from edge.learning.step_reporter import OpenStep
from edge.routing.policy import OffloadPolicy
from edge.rpc.client import CloudCall, CloudCompletion, StepUnits
from edge.verifiers.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Batch:
    """The prompts of one step. `step` numbers the run's steps, `task_step` the task's at the coordinator.

    `offline`: the coordinator does not know of this step, so its cloud is not asked and requests for help are masked. `stay_here`: ids of
    items whose questions must not leave this device; requests for help with them are masked, too. `help_bias`: nats on every decision to
    ask; it belongs to the policy that is sampled from, and that learns.
    """

    step: int
    task: str
    task_step: int
    items: tuple[TaskItem, ...]
    offline: bool = False
    stay_here: frozenset[str] = frozenset()
    help_bias: float = 0.0

    @classmethod
    def of(cls, plan: StepPlan, opened: OpenStep) -> Batch:
        """Of a step that is open at the coordinator, or made offline."""
        return cls(plan.step, plan.task, opened.task_step, plan.items, opened.offline, plan.stay_here, opened.help_bias or 0.0)


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
    """One prompt's scored responses, and the cloud's completion where one was asked for and came.

    `lost_uusd`: what a call cost that brought no answer (None: no such call). `prompt_dual`: the λ that the prompt states (None: none).
    `cloud_sample`: the completion as a turn of the SLM, in its tokens, where it is right, well formed and to be learned from (else ()).
    """

    item: TaskItem
    prompt_ids: tuple[int, ...]
    responses: tuple[ScoredResponse, ...]
    completion: CloudCompletion | None
    cloud_reason: str = ""
    prompt_dual: float | None = None
    cloud_sample: tuple[int, ...] = ()
    lost_uusd: int | None = None

    @property
    def unmasked(self) -> tuple[ScoredResponse, ...]:
        """The responses that count."""
        return tuple(scored for scored in self.responses if not scored.masked)


@dataclass(slots=True)
class CloudSpan:
    """From the first call to the last reply of a batch, in seconds of the clock."""

    began: float | None = None
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """0 when nothing was asked."""
        return 0.0 if self.began is None else self.ended - self.began


class Rollout:
    """Samples and scores the groups of one batch."""

    def __init__(
        self,
        backend: InferenceBackend,
        cloud: GroupCalls,
        verifier: Verifier,
        policy: OffloadPolicy,
        clock: Clock,
        settings: RolloutSettings,
    ) -> None:
        self._backend = backend
        self._cloud = cloud
        self._verifier = verifier
        self._policy = policy
        self._clock = clock
        self._settings = settings
        self.cloud_span = CloudSpan()
        self.left_out: list[str] = []

    async def collect(self, batch: Batch, on_group: Callable[[int], None] = lambda done: None) -> list[ScoredGroup]:
        """The scored groups in the order of the batch. `on_group` gets how many are done.

        A prompt that the engine refuses (too long for its context) is left out; `left_out` says why, a line each. Raises EdgeError
        when no prompt is left.
        """
        self.cloud_span, self.left_out = CloudSpan(), []
        done = 0

        async def one(index: int) -> ScoredGroup | EdgeError:
            nonlocal done
            try:
                return await self._collect_one(batch, index)
            except EdgeError as error:
                return error
            finally:
                done += 1
                on_group(done)

        collected = await all_of(one(index) for index in range(len(batch.items)))
        groups = [group for group in collected if isinstance(group, ScoredGroup)]
        failures = [failure for failure in collected if isinstance(failure, EdgeError)]
        if not groups:
            raise failures[0]
        self.left_out = [str(failure) for failure in failures]
        return groups

    async def _collect_one(self, batch: Batch, index: int) -> ScoredGroup:
        item = batch.items[index]
        prompt_dual = drawn_dual(self._settings, batch.step, index)
        group = await self._sample(batch, index, item, prompt_dual)
        asking = [self._asks(item, response) for response in group.responses]
        if self._settings.skip_unanimous_calls and all(asking):
            uncalled = tuple(_uncalled(response) for response in group.responses)
            return ScoredGroup(item, group.prompt_ids, uncalled, None, prompt_dual=prompt_dual)
        outcome = await self._ask(batch, index, _asking(group, asking)) if any(asking) else CloudOutcome(None)
        scored = [
            await self._score(item, response, asked, outcome) for response, asked in zip(group.responses, asking, strict=True)
        ]
        sample = await self._cloud_sample(item, len(group.prompt_ids), outcome.completion)
        responses = tuple(scored)
        return ScoredGroup(
            item, group.prompt_ids, responses, outcome.completion, outcome.reason, prompt_dual, sample, outcome.lost_uusd
        )

    async def _sample(self, batch: Batch, index: int, item: TaskItem, prompt_dual: float | None) -> PromptGroup:
        settings = self._settings
        sampling = Sampling(
            settings.temperature, settings.max_tokens, max_steps=item.max_steps, help_bias=batch.help_bias, exact=True
        )
        seeds = [derive_seed(settings.seed, "rollout", batch.step, index, sample) for sample in range(settings.group_size)]
        return await self._backend.sample_group(prompt_messages(item, settings.prompt_form, prompt_dual), sampling, seeds)

    def _asks(self, item: TaskItem, response: LocalResponse) -> bool:
        """c: a valid request for help. An unfinished response is a format violation and asks for nothing."""
        return self._settings.may_ask and response.finish not in UNFINISHED and self._policy.wants_cloud(item, response)

    async def _ask(self, batch: Batch, index: int, asking: Sequence[LocalResponse]) -> CloudOutcome:
        if batch.offline:
            return CloudOutcome(None, reason="the coordinator is away")
        if batch.items[index].id in batch.stay_here:
            return CloudOutcome(None, reason="this question was asked of this device alone", unsent=True)
        call = cloud_call(self._settings, batch, index, asking)
        if self.cloud_span.began is None:
            self.cloud_span.began = self._clock.monotonic()
        outcome = await self._cloud.ask(call)
        self.cloud_span.ended = self._clock.monotonic()
        return outcome

    async def _cloud_sample(self, item: TaskItem, prompt_tokens: int, completion: CloudCompletion | None) -> tuple[int, ...]:
        """What was paid for anyway, where the SLM could have said it: right, in its format, and no longer than its own responses."""
        if not self._settings.cloud_samples or completion is None:
            return ()
        text = completion.text.strip()
        form = check_format(text, item.max_steps)
        if not form.ok or form.asks_help:
            return ()
        tokens = self._backend.response_tokens(text)
        if len(tokens) > min(self._settings.max_tokens, self._backend.tokenizer.context_tokens - prompt_tokens):
            return ()
        known = await is_judged(self._verifier, item, text)
        return tokens if known and await judge(self._verifier, item, text) else ()

    async def _score(self, item: TaskItem, response: LocalResponse, asked: bool, cloud: CloudOutcome) -> ScoredResponse:
        """r and c of a response, composed with the cloud's completion where it asked."""
        format_ok = is_well_formed(item, response) and (self._settings.may_ask or not _asks_for_help(item, response))
        if asked and cloud.completion is None:
            if cloud.refused:
                reward = task_reward(Outcome(False, format_ok, asked))
                return ScoredResponse(response, format_ok, ResponseOutcome.REFUSED, False, reward, response_cost(asked))
            outcome = ResponseOutcome.UNSENT if cloud.unsent else ResponseOutcome.MASKED
            return ScoredResponse(response, format_ok, outcome, False, 0.0, 0)
        cloud_text = cloud.completion.text if asked and cloud.completion else None
        composed = composed_text(response.text, cloud_text)
        if not await is_judged(self._verifier, item, composed):
            outcome = ResponseOutcome.MASKED if asked else ResponseOutcome.UNRATED
            return ScoredResponse(response, format_ok, outcome, False, 0.0, response_cost(asked))
        correct = await judge(self._verifier, item, composed)
        outcome = ResponseOutcome.ASKED if asked else ResponseOutcome.KEPT
        reward = task_reward(Outcome(correct, format_ok, asked))
        return ScoredResponse(response, format_ok, outcome, correct, reward, response_cost(asked))


def drawn_dual(settings: RolloutSettings, step: int, index: int) -> float | None:
    """The λ that prompt `index` of a step states (`learning.price_levels`); the same one where the step is made again."""
    return stream(settings.seed, "price", step, index).choice(settings.price_levels) if settings.price_levels else None


def _asking(group: PromptGroup, asking: Sequence[bool]) -> list[LocalResponse]:
    return [response for response, asks in zip(group.responses, asking, strict=True) if asks]


def _asks_for_help(item: TaskItem, response: LocalResponse) -> bool:
    return check_format(response.text, item.max_steps).asks_help


def _uncalled(response: LocalResponse) -> ScoredResponse:
    """One of a group that all asked: c = 1, and any one reward that all of them share gives Â = 0."""
    return ScoredResponse(response, True, ResponseOutcome.UNCALLED, False, 0.0, 1)


def cloud_call(settings: RolloutSettings, batch: Batch, index: int, asking: Sequence[LocalResponse]) -> CloudCall:
    """The one call of a prompt group, for the responses that ask. Its key depends on run, task, step and prompt only, so a repeated step
    never pays twice; repeated with another hint it is refused (KEY_REUSED).
    """
    item = batch.items[index]
    return CloudCall(
        call_key=call_key(settings.run_id, batch.task, batch.task_step, index, item.id),
        task=batch.task,
        step=batch.task_step,
        prompt_id=f"{index}:{item.id}",
        help_units=len(asking),
        messages=with_hint(
            cloud_messages(item, settings.cloud_prompt_form), asking[0].text, settings.hint_chars, settings.hint_cut
        ),
        max_output_tokens=settings.max_output_tokens,
        model_alias=settings.model_alias,
    )


def step_units(groups: Sequence[ScoredGroup], *, with_bias: bool = False) -> StepUnits:
    """What Ĵ_c is made of: the responses, and those that validly asked; of rollouts with a help bias also how many would have without.

    Requests that failed, were refused or were not called for count: they are demand. Leaving failures out would let λ fall during
    an outage, and every device would come back asking for everything.
    """
    responses = [scored for group in groups for scored in group.responses]
    uncalled = sum(scored.outcome in (ResponseOutcome.UNCALLED, ResponseOutcome.UNSENT) for scored in responses)
    own_rate = help_rate([scored.response.help_log_odds for scored in responses]) if with_bias else None
    return StepUnits(len(responses), sum(scored.asked for scored in responses), uncalled, own_rate)
