"""The main process's side of a step: opened at the coordinator, scored with at most one cloud call per prompt, closed.

A killed run resumes from TRL's last checkpoint, so steps may be repeated. A step that was opened but not recorded keeps its number at the
coordinator, and with it its call keys, so nothing is paid twice; a recorded one is neither opened nor reported again: it gets its original
λ, and its calls are answered from the ledger.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.core.clock import Clock
from edge.core.errors import CoordinatorUnavailable, EdgeError
from edge.core.events import EventSink
from edge.core.types import FinishReason, LocalResponse
from edge.dagrpo.advantages import has_signal
from edge.inference.decisions import opens_step
from edge.learning.curriculum import StepPlan
from edge.learning.methods import DaGrpo, StepTerms
from edge.learning.rollout import Batch, ResponseOutcome, ScoredGroup, step_units
from edge.learning.step_event import StepResult, step_event
from edge.learning.step_reporter import OpenStep, StepReporter
from edge.state.events import Notice, PhaseStarted, RunFinished, RunStarted, StepSeconds, StopReason
from edge.state.folder import StateFolder
from edge.state.rows import Commit, Position
from edge.training.learner import LearnerReport
from tools.integrations.scoring import Scorer

OPENED = "trl_opened"
"""Under this name the state folder keeps the step that was opened last, from before anything was asked in it."""


@dataclass(frozen=True, slots=True)
class ResponseReader:
    """From TRL's ids to responses: `decode` leaves control tokens out, `ends` are the ids that end a response."""

    decode: Callable[[Sequence[int]], str]
    ends: frozenset[int]

    def read(self, token_ids: Sequence[int]) -> LocalResponse:
        """One response; its log-probabilities are TRL's and not included."""
        ids = tuple(token_ids)
        finish = FinishReason.EOS if ids and ids[-1] in self.ends else FinishReason.LENGTH
        return LocalResponse(self.decode(ids), ids, (0.0,) * len(ids), finish)


def reader_of(tokenizer: Any, ends: Iterable[int]) -> ResponseReader:
    """From ids to text with a transformers tokenizer; some models have more than one id that ends a response."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return ResponseReader(decode, frozenset(map(int, ends)))


@dataclass(frozen=True, slots=True)
class ResponseVerdict:
    """What the reward functions return for one response: r and c, both times `weight`. None for a response that left its group."""

    reward: float
    cost: int
    weight: float


@dataclass(slots=True)
class _Underway:
    """A step between its opening and its end. `again`: it was committed before."""

    plan: StepPlan
    opened: OpenStep
    again: bool
    began_s: float
    scored_s: float = 0.0
    cloud_s: float = 0.0
    groups: Sequence[ScoredGroup] = ()


class TrlSteps:
    """Steps at the coordinator, one after the other, each opened, scored and closed; they count from 1.

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
    ) -> None:
        self._state, self._reporter, self._scorer, self._sink, self._clock = state, reporter, scorer, sink, clock
        self._plans = plans
        self._group_size = scorer.settings.group_size
        self._phases = Counter(plan.phase for plan in plans)  # how many steps each has
        self._now: _Underway | None = None
        self._was_refused = False

    async def begin(self, model: str) -> None:
        """Report that the run starts or resumes."""
        state, done = self._state, self._state.position().steps_done
        self._sink.emit(RunStarted(state.run_id, model, done, len(self._plans), done, self._clock.now()))

    async def open(self, step: int) -> float:
        """Open it; returns λ for the whole of it. Raises EdgeError, also while another one was not closed."""
        if self._now is not None:
            raise EdgeError(f"step {self._now.plan.step} was not closed", hint="leave TRL's logging_steps as it is: one step")
        plan = self._plans[step - 1]
        began_s, again = self._clock.monotonic(), step <= self._state.position().steps_done
        opened = self._as_committed(plan) if again else await self._opened(plan)
        if plan.phase_step == 1 and not again:
            phase = (plan.phase, plan.source, plan.task, opened.target_rate)
            self._sink.emit(PhaseStarted(*phase, self._phases[plan.phase], plan.phase_step, len(self._phases)))
        self._now = _Underway(plan, opened, again, began_s)
        return opened.dual

    async def score(self, sampled: Sequence[tuple[int, LocalResponse]]) -> list[ResponseVerdict | None]:
        """Score the open step's responses, each with the place of its prompt in the run; at most one cloud call for each prompt.

        Raises EdgeError unless they are those of the step's prompts, each G times in a row.
        """
        now = self._underway()
        items, size = now.plan.items, self._group_size
        first = (now.plan.step - 1) * len(items)
        if [place for place, _ in sampled] != [first + index for index in range(len(items)) for _ in range(size)]:
            raise EdgeError(
                f"step {now.plan.step}: the trainer handed out other prompts than this step's",
                hint="was the number of processes, prompts or responses changed? begin again with another folder (out)",
            )
        responses = [
            [_ended_in_time(response, item.max_steps) for _, response in sampled[index * size : (index + 1) * size]]
            for index, item in enumerate(items)
        ]
        batch = Batch(now.plan.step, items, now.opened, now.plan.stay_here)
        now.groups, now.cloud_s = await self._scorer.score(batch, responses)
        now.scored_s = self._clock.monotonic()
        refused = [group for group in now.groups if any(one.outcome is ResponseOutcome.REFUSED for one in group.responses)]
        if refused and not self._was_refused:
            self._notice(refused[0].cloud_reason)
        self._was_refused = bool(refused)
        return verdicts_of(now.groups)

    async def close(self, update: LearnerReport) -> None:
        """Report the open step after its `update` (`report_of`), so that the coordinator moves λ, and commit its result. A step made again
        was reported and committed before."""
        now, clock, state = self._underway(), self._clock, self._state
        plan, opened, groups, self._now = now.plan, now.opened, now.groups, None
        updated_s, units = clock.monotonic(), step_units(now.groups)
        if now.again:
            before = state.step_at(plan.step)
            if before is not None and round(before.control.assist_rate * before.scores.responses) != units.help:
                self._notice(
                    f"step {plan.step} was made again and turned out otherwise ({units.help} of {units.total} asked); "
                    "its first report counts"
                )
            return
        closed = await self._reporter.close(opened, units)
        update_s, close_s = updated_s - now.scored_s, clock.monotonic() - updated_s
        seconds = StepSeconds(now.scored_s - now.began_s, now.cloud_s, update_s, 0.0, close_s, 0.0)
        advantages = DaGrpo().advantages(groups, opened.dual, StepTerms(plan.step, plan.task, opened.target_rate))
        dead = sum(not has_signal(group.advantages_G) for group in advantages)
        report = replace(
            update,
            groups=len(advantages),
            frac_reward_zero_std=dead / len(advantages) if advantages else 0.0,
            tokens=sum(len(scored.response.token_ids) for group in groups for scored in group.responses),
            seconds=update_s,
        )
        event = step_event(StepResult(plan, opened, groups, advantages, report), seconds, next(iter(state.steps(last=1)), None))
        control = replace(event.control, dual_after=closed.terms.dual, offline=closed.waiting_report is not None)
        event = replace(event, control=control, at=clock.now())
        state.commit_step(
            Commit(
                event=event,
                task_step=opened.task_step,
                position=Position(plan.step, plan.phase, plan.phase_step),
                cursor_source=plan.source,
                cursor_seed=plan.cursor_seed,
                cursor=plan.cursor_after,
                terms=closed.terms,
                waiting_report=closed.waiting_report,
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
        state = self._state
        cloud = next((step.cloud for step in state.steps(last=1)), None)
        totals = (cloud.total_cloud_calls, cloud.total_cloud_tokens, cloud.total_spend_uusd) if cloud else (0, 0, 0)
        done = state.position().steps_done
        finished = RunFinished(state.run_id, reason, done, adapter_version, *totals, seconds, self._clock.now())
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

    def _as_committed(self, plan: StepPlan) -> OpenStep:
        state = self._state
        event = state.step_at(plan.step)
        if event is None:
            raise EdgeError(f"step {plan.step} is missing in {state.folder}", hint="begin again with another folder (out)")
        ((task_step,),) = state.rows("SELECT task_step FROM steps WHERE step = ?", (plan.step,))
        dual, target_rate, offline = event.control.dual_before, event.control.target_rate, event.control.offline
        return OpenStep(event.task, int(task_step), dual, target_rate, len(plan.items), self._group_size, offline)

    def _notice(self, text: str) -> None:
        self._sink.emit(Notice(text, self._clock.now()))

    def _underway(self) -> _Underway:
        if self._now is None:
            raise EdgeError("no step is open")
        return self._now


def _ended_in_time(response: LocalResponse, max_steps: int) -> LocalResponse:
    """One beyond the step limit counts as stopped there, as the agent's engine does; like one without an end it violates the format."""
    beyond = opens_step(response.text, max_steps + 1) is not None
    return replace(response, finish=FinishReason.STEP_LIMIT) if beyond else response


def verdicts_of(groups: Sequence[ScoredGroup]) -> list[ResponseVerdict | None]:
    """r, c and weight of every response, in order.

    TRL divides by G and by all prompts, regardless of dropped responses. The weight converts this to the agent's scale: a group with G'
    left counts 1/(G'-1), and the mean is over the groups that still have a baseline. A group with fewer than two left does not count.
    """
    usable = [group for group in groups if len(group.unmasked) >= 2]
    verdicts: list[ResponseVerdict | None] = []
    for group in groups:
        left = len(group.unmasked)
        weight = len(groups) / len(usable) * (len(group.responses) - 1) / (left - 1) if left >= 2 else 0.0
        verdicts += [None if one.masked or left < 2 else ResponseVerdict(one.reward, one.cost, weight) for one in group.responses]
    return verdicts


def report_of(logs: Mapping[str, Any], factor: float) -> LearnerReport:
    """TRL's log of an update as the learner's report, what belongs to the responses left open; `factor`: from TRL's loss and gradient to
    the paper's. Without vLLM, TRL samples with the trained weights and nothing differs; with it, TRL reports only the mean gap."""

    def logged(key: str) -> float:
        """0 where TRL reported nothing, or nothing finite."""
        number = float(logs.get(key) or 0.0)
        return number if math.isfinite(number) else 0.0

    return LearnerReport(
        groups=0,
        frac_reward_zero_std=0.0,
        tokens=0,
        loss=logged("loss") * factor,
        grad_norm=logged("grad_norm") * factor,
        entropy=logged("entropy"),
        mean_abs_logprob_diff=logged("sampling/sampling_logp_difference/mean"),
        kl=0.0,
        effective_sample_share=1.0,
        clipped_share=logged("clip_ratio/region_mean"),
        learning_rate=logged("learning_rate"),
        seconds=0.0,
    )
