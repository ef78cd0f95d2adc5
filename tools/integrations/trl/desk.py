"""The main process's side of a step: opened at the coordinator, scored with at most one cloud call per prompt, closed, recorded.

A killed run resumes from TRL's last checkpoint, so steps may be repeated. A step that was opened but not recorded keeps its number at the
coordinator, and with it its call keys, so nothing is paid twice; a recorded one is neither opened nor reported again: it gets its original
λ, and its calls are answered from the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.core.clock import Clock
from edge.core.errors import CoordinatorUnavailable, EdgeError
from edge.core.events import EventSink
from edge.core.types import FinishReason, LocalResponse
from edge.dagrpo.advantages import has_signal
from edge.inference.decisions import opens_step
from edge.learning.curriculum import StepPlan
from edge.learning.methods import DaGrpo, GroupAdvantages, StepTerms
from edge.learning.rollout import Batch, ResponseOutcome, ScoredGroup, step_units
from edge.learning.step_event import StepResult, step_event
from edge.learning.step_reporter import ClosedStep, OpenStep, StepReporter
from edge.state.events import Notice, PhaseStarted, RunFinished, RunStarted, StepSeconds, StopReason
from edge.state.folder import StateFolder
from edge.state.rows import Commit, Position
from edge.training.learner import LearnerReport
from tools.integrations.scoring import Scorer

OPENED = "trl_opened"
"""Under this name the state folder keeps the step that was opened last, from before anything was asked in it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One response as TRL sampled it: the place of its prompt in the run, its ids with the one that ended it, and its text."""

    position: int
    token_ids: tuple[int, ...]
    text: str
    ended: bool


@dataclass(frozen=True, slots=True)
class Reader:
    """From TRL's ids to text: `decode` leaves control tokens out, `ends` are the ids that end a response."""

    decode: Callable[[Sequence[int]], str]
    ends: frozenset[int]

    def read(self, position: int, token_ids: Sequence[int]) -> Completion:
        """One completion."""
        ids = tuple(token_ids)
        return Completion(position, ids, self.decode(ids), bool(ids) and ids[-1] in self.ends)


def reader_of(tokenizer: Any, ends: Iterable[int]) -> Reader:
    """From ids to text with a transformers tokenizer; some models have more than one id that ends a response."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return Reader(decode, frozenset(map(int, ends)))


def as_response(completion: Completion, max_steps: int) -> LocalResponse:
    """The response with the reason for its end: one beyond the step limit counts as stopped there, as the agent's engine does, and one
    without an end as truncated; both are format violations. Its log-probabilities are TRL's and not included."""
    finish = FinishReason.EOS if completion.ended else FinishReason.LENGTH
    if opens_step(completion.text, max_steps + 1) is not None:
        finish = FinishReason.STEP_LIMIT
    silent = (0.0,) * len(completion.token_ids)
    return LocalResponse(completion.text, completion.token_ids, silent, finish)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the reward functions return for one response: r and c, both times `weight`. None for a response that left its group."""

    reward: float
    cost: int
    weight: float


@dataclass(frozen=True, slots=True)
class TrainerNumbers:
    """TRL's numbers of an update. `loss` and `grad_norm` in the paper's scale, `entropy` in nats per token.

    `sampler_gap`: mean |log π_trainer - log π_sampler| of the tokens, in nats; 0 where TRL samples with the weights it trains.
    """

    loss: float = 0.0
    grad_norm: float = 0.0
    entropy: float = 0.0
    clipped_share: float = 0.0
    learning_rate: float = 0.0
    sampler_gap: float = 0.0


@dataclass(slots=True)
class _Underway:
    """A step between its opening and its end. `again`: it was written down before."""

    plan: StepPlan
    opened: OpenStep
    began_s: float
    again: bool
    groups: list[ScoredGroup]
    scored_s: float = 0.0
    cloud_s: float = 0.0
    update_s: float = 0.0
    close_s: float = 0.0
    closed: ClosedStep | None = None


class Desk:
    """The desk over a coordinator: open, verdicts, close and write_down of one step, then of the next; steps count from 1.

    Everything runs on the loop that awaits its methods; synchronous trainers use it through `SharedSteps`.
    """

    def __init__(
        self,
        state: StateFolder,
        reporter: StepReporter,
        scorer: Scorer,
        sink: EventSink,
        clock: Clock,
        plans: Sequence[StepPlan],
        phases: Sequence[int] = (),
    ) -> None:
        """`phases`: how many steps each phase has."""
        self._state, self._reporter, self._scorer, self._sink, self._clock = state, reporter, scorer, sink, clock
        self._plans = plans
        self._group_size = scorer.settings.group_size
        self._phases = tuple(phases)
        self._now: _Underway | None = None
        self._was_refused = False

    async def begin(self, model: str) -> None:
        """Report that the run starts or resumes."""
        state, done = self._state, self._state.position().steps_done
        self._sink.emit(RunStarted(state.run_id, model, done, len(self._plans), done, self._clock.now()))

    async def open(self, step: int) -> float:
        """Open it; returns λ for the whole of it. Raises EdgeError."""
        plan = self._plans[step - 1]
        began, again = self._clock.monotonic(), step <= self._state.position().steps_done
        opened = self._as_written_down(plan) if again else await self._opened(plan)
        if plan.phase_step == 1 and not again:
            steps = self._phases[plan.phase] if plan.phase < len(self._phases) else None
            fields = (plan.phase, plan.source, plan.task, opened.target_rate, steps, plan.phase_step, max(1, len(self._phases)))
            self._sink.emit(PhaseStarted(*fields))
        self._now = _Underway(plan, opened, began, again, [])
        return opened.dual

    async def verdicts(self, step: int, completions: Sequence[Completion]) -> list[Verdict | None]:
        """Score its responses, G in a row for each prompt; at most one cloud call for each prompt.

        Raises EdgeError where the responses are not those of the step's prompts.
        """
        now = self._underway(step)
        items, size = now.plan.items, self._group_size
        _require_places(step, [completion.position for completion in completions], len(items), size)
        responses = [
            [as_response(one, item.max_steps) for one in completions[index * size : (index + 1) * size]]
            for index, item in enumerate(items)
        ]
        batch = Batch(step, now.plan.task, now.opened.task_step, items, now.opened.offline)
        now.groups, now.cloud_s = await self._scorer.score(batch, responses)
        now.scored_s = self._clock.monotonic()
        self._report_refused(now.groups)
        return verdicts_of(now.groups)

    async def close(self, step: int) -> None:
        """Report it; the coordinator moves λ. A step made again was reported before."""
        now = self._underway(step)
        ended = self._clock.monotonic()
        now.update_s = ended - now.scored_s
        if now.again:
            self._report_difference(now)
        else:
            now.closed = await self._reporter.close(now.opened, step_units(now.groups))
        now.close_s = self._clock.monotonic() - ended

    async def write_down(self, step: int, numbers: TrainerNumbers) -> None:
        """Commit the step's result to the state folder, and report it."""
        now, state = self._underway(step), self._state
        plan, closed, self._now = now.plan, now.closed, None
        if closed is None:
            return
        seconds = StepSeconds(now.scored_s - now.began_s, now.cloud_s, now.update_s, 0.0, now.close_s, 0.0)
        before = next(iter(state.steps(last=1)), None)
        advantages = DaGrpo().advantages(now.groups, now.opened.dual, StepTerms(plan.step, plan.task, now.opened.target_rate))
        report = _learner_report(now, advantages, numbers)
        event = step_event(StepResult(plan, now.opened, now.groups, advantages, report), seconds, before)
        control = replace(event.control, dual_after=closed.terms.dual, offline=closed.unreported is not None)
        event = replace(event, control=control, at=self._clock.now())
        state.commit_step(
            Commit(
                event=event,
                task_step=now.opened.task_step,
                position=Position(plan.step, plan.phase, plan.phase_step),
                cursor_source=plan.source,
                cursor_seed=plan.cursor_seed,
                cursor=plan.cursor_after,
                terms=closed.terms,
                unreported=closed.unreported,
                lineage=state.lineage().after_step(plan.step, plan.step - 1, "serves"),
            )
        )
        self._sink.emit(event)

    async def finish(self, reason: StopReason, seconds: float, adapter_version: int = 0) -> RunFinished:
        """Send pending reports, and report the run's result; `adapter_version` 0 where no adapter was written."""
        try:
            await self._reporter.deliver()
        except CoordinatorUnavailable:
            self._notice("the coordinator is away; reports that wait are delivered when the run goes on")
        state, clock = self._state, self._clock
        steps = state.steps(last=1)
        totals = (
            (steps[0].cloud.total_cloud_calls, steps[0].cloud.total_cloud_tokens, steps[0].cloud.total_spend_uusd)
            if steps
            else (0, 0, 0)
        )
        done = state.position().steps_done
        finished = RunFinished(state.run_id, reason, done, adapter_version, *totals, seconds, clock.now())
        self._sink.emit(finished)
        return finished

    async def _opened(self, plan: StepPlan) -> OpenStep:
        """The step at the coordinator, durably noted before anything is asked under its number."""
        state = self._state
        known = json.loads(state.meta(OPENED) or "null")
        if known is not None and known["step"] == plan.step:
            return OpenStep(**known["opened"])
        opened = await self._reporter.open(plan.task, len(plan.items), self._group_size, plan.target_rate)
        state.set_meta(OPENED, json.dumps({"step": plan.step, "opened": asdict(opened)}))
        return opened

    def _as_written_down(self, plan: StepPlan) -> OpenStep:
        state = self._state
        event = state.step_at(plan.step)
        if event is None:
            raise EdgeError(f"step {plan.step} is missing in {state.folder}", hint="begin again with another folder (out)")
        ((task_step,),) = state.rows("SELECT task_step FROM steps WHERE step = ?", (plan.step,))
        size = self._group_size
        return OpenStep(
            event.task,
            int(task_step),
            event.control.dual_before,
            event.control.target_rate,
            len(plan.items),
            size,
            offline=event.control.offline,
        )

    def _report_difference(self, now: _Underway) -> None:
        before, asked = self._state.step_at(now.plan.step), step_units(now.groups)
        if before is not None and round(before.control.assist_rate * before.scores.responses) != asked.help:
            self._notice(
                f"step {now.plan.step} was made again and turned out otherwise ({asked.help} of {asked.total} asked); "
                "its first report stands"
            )

    def _report_refused(self, groups: Sequence[ScoredGroup]) -> None:
        """Once per run of steps with refusals."""
        refused = [group for group in groups if any(scored.outcome is ResponseOutcome.REFUSED for scored in group.responses)]
        if refused and not self._was_refused:
            self._notice(refused[0].cloud_reason)
        self._was_refused = bool(refused)

    def _notice(self, text: str) -> None:
        self._sink.emit(Notice(text, self._clock.now()))

    def _underway(self, step: int) -> _Underway:
        if self._now is None or self._now.plan.step != step:
            raise EdgeError(f"step {step} is not under way")
        return self._now


def verdicts_of(groups: Sequence[ScoredGroup]) -> list[Verdict | None]:
    """r, c and weight of every response, in order.

    TRL divides by G and by all prompts, regardless of dropped responses. The weight converts this to the agent's scale: a group with G'
    left counts 1/(G'-1), and the mean is over the groups that still have a baseline. A group with fewer than two left does not count.
    """
    usable = [group for group in groups if len(group.unmasked) >= 2]
    verdicts: list[Verdict | None] = []
    for group in groups:
        left = len(group.unmasked)
        weight = len(groups) / len(usable) * (len(group.responses) - 1) / (left - 1) if left >= 2 else 0.0
        verdicts += [None if one.masked or left < 2 else Verdict(one.reward, one.cost, weight) for one in group.responses]
    return verdicts


def _require_places(step: int, places: Sequence[int], prompts: int, size: int) -> None:
    """Raises EdgeError unless these are the step's prompts, each G times in a row."""
    first = (step - 1) * prompts
    if list(places) != [first + index for index in range(prompts) for _ in range(size)]:
        raise EdgeError(
            f"step {step}: the trainer handed out other prompts than this step's",
            hint="was the number of processes, prompts or responses changed? begin again with another folder (out)",
        )


def _learner_report(now: _Underway, groups: Sequence[GroupAdvantages], numbers: TrainerNumbers) -> LearnerReport:
    """Without vLLM, TRL samples with the trained weights and nothing differs; with it, TRL reports only the mean gap."""
    dead = sum(not has_signal(group.advantages_G) for group in groups)
    return LearnerReport(
        groups=len(groups),
        frac_reward_zero_std=dead / len(groups) if groups else 0.0,
        tokens=sum(len(scored.response.token_ids) for group in now.groups for scored in group.responses),
        loss=numbers.loss,
        grad_norm=numbers.grad_norm,
        entropy=numbers.entropy,
        mean_abs_logprob_diff=numbers.sampler_gap,
        kl=0.0,
        effective_sample_share=1.0,
        clipped_share=numbers.clipped_share,
        learning_rate=numbers.learning_rate,
        seconds=now.update_s,
    )
