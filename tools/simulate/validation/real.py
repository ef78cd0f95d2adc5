"""The real run: the agent as a person has it, its embedded coordinator, the bundled models, and the clock on the wall.

First facts, then stretches of the stream with a portion of the calibration before each and after the last, so that what else the machine
does hits both; then the learning steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from edge.agent import Agent
from edge.answering.draft import AnswerSettings
from edge.app.agents import build_agent
from edge.app.engines import open_backend
from edge.app.judging import build_verifier
from edge.app.settings import agent_settings, model_file
from edge.config.schema import AgentConfig
from edge.core.clock import Clock, SystemClock
from edge.core.errors import EdgeError
from edge.core.events import MemorySink
from edge.core.rng import derive_seed, stream
from edge.core.types import LocalResponse, Message, Mode, Sampling, TaskItem
from edge.core.worker import EngineWorker, Priority
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import compact_question, local_messages, prompt_messages
from edge.evaluation.judging import judge
from edge.inference.backend import InferenceBackend
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.state.events import StepFinished
from edge.tasks.registry import open_source
from edge.verifiers.verifier import Verifier
from tools.experiments.dial import mixed_items
from tools.simulate.fleet.mind import sigmoid
from tools.simulate.validation.replay import answered
from tools.simulate.validation.seen import Answered, Facts, Run, Sampled, Taken, Timed

STRETCHES = 8
LABEL = "validation"
_CALIBRATION = "calibration"
_WARM_UPS = 2
_AT_ONCE = 8
_BEYOND = 0.2
"""Nats by which a response is pushed beyond its decision to ask; as a dial does it, so that it asks at this decision and at none before."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked: the stream with its times in seconds, and questions of the same kinds for the calibration."""

    items: tuple[TaskItem, ...]
    arrivals_s: tuple[float, ...]
    local_calibration: tuple[TaskItem, ...]
    cloud_calibration: tuple[TaskItem, ...]
    dial: float | None
    steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Known:
    """What holds of models and questions, measured without a look at the clock."""

    facts: tuple[Facts, ...]
    prompts: tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the clock on the wall said: the run that is validated, and the calibrations."""

    run: Run
    local: tuple[Timed, ...]
    cloud: tuple[Timed, ...]
    cloud_tokens: tuple[int | None, ...]
    """Of the stream's questions; None where the cloud was not asked."""


def make_plan(questions: int, minutes: float, dial: float | None, steps: int, seed: int) -> Plan:
    """Held-out questions, each once, arriving as a Poisson process over about so many minutes."""
    locally, at_cloud = max(24, questions // 3), max(24, questions // 4)
    wanted = questions + locally + at_cloud
    items = list({compact_question(item): item for item in mixed_items(2 * wanted, seed)}.values())
    if len(items) < wanted:
        raise EdgeError(f"practice has only {len(items)} different held-out questions", hint="give fewer --questions")
    rng, at, arrivals = stream(seed, "arrivals"), 0.0, []
    for _ in range(questions):
        at += rng.expovariate(questions / (60.0 * minutes))
        arrivals.append(at)
    calibration = items[questions:]
    return Plan(
        items=tuple(items[:questions]),
        arrivals_s=tuple(arrivals),
        local_calibration=tuple(calibration[:locally]),
        cloud_calibration=tuple(calibration[locally : locally + at_cloud]),
        dial=dial,
        steps=steps,
        seed=seed,
    )


# -- facts ------------------------------------------------------------------------------------------------------------------------------


async def known_of(config: AgentConfig, plan: Plan, most_prompts: int, tell: Tell) -> Known:
    """Lengths and log-odds of the stream's questions, and what the bare model does at temperature 1 with the prompts to be learned from."""
    worker = EngineWorker()
    try:
        backend = await open_backend(config, model_file(config.model.path), worker)
        try:
            tell(f"facts of {len(plan.items)} questions")
            facts = await facts_of(backend, plan.items, agent_settings(config, LABEL).answers)
            prompts = min(most_prompts, plan.steps * config.learning.prompts_per_step)
            tell(f"the bare model on {prompts} practice prompts")
            sampled = await sampled_of(config, backend, build_verifier(config), prompts) if prompts else []
            return Known(tuple(facts), tuple(sampled))
        finally:
            await backend.aclose()
    finally:
        worker.close()


async def facts_of(backend: InferenceBackend, items: Sequence[TaskItem], settings: AnswerSettings) -> list[Facts]:
    """Greedy responses without the help phrase, and with it where it can be said."""
    facts: list[Facts] = []
    for some in _portions(items, _AT_ONCE):
        facts += await asyncio.gather(*(_facts(backend, item, settings) for item in some))
    return facts


async def _facts(backend: InferenceBackend, item: TaskItem, settings: AnswerSettings) -> Facts:
    form = backend.model.prompt_form if settings.prompt_form == "auto" else settings.prompt_form
    messages = local_messages((Message("user", compact_question(item)),), form)
    sampling = Sampling(temperature=0.0, max_tokens=settings.max_tokens, max_steps=settings.max_steps)
    local = await backend.sample_group(messages, replace(sampling, suppress_help=True), [0], Priority.SERVING)
    kept = local.responses[0]
    bias = _BEYOND - min(0.0, kept.help_log_odds or 0.0)
    asking = await backend.sample_group(messages, replace(sampling, help_bias=bias), [0], Priority.SERVING)
    asked = asking.responses[0]
    return Facts(len(local.prompt_ids), len(kept.token_ids), len(asked.token_ids), kept.help_log_odds)


async def sampled_of(config: AgentConfig, backend: InferenceBackend, verifier: Verifier, prompts: int) -> list[Sampled]:
    """The first prompts of the first phase, each with as many responses as a group has, other ones than learning will see."""
    learning, form = config.learning, agent_settings(config, LABEL).rollout.prompt_form
    form = backend.model.prompt_form if form == "auto" else form
    items = islice(open_source(config.phases[0].source).train(learning.seed), prompts)
    sampled: list[Sampled] = []
    for some in _portions(list(items), _AT_ONCE // 2):
        sampled += await asyncio.gather(*(_sampled(backend, verifier, item, form, learning.group_size) for item in some))
    return sampled


async def _sampled(backend: InferenceBackend, verifier: Verifier, item: TaskItem, form: str, size: int) -> Sampled:
    sampling = Sampling(max_steps=item.max_steps)
    group = await backend.sample_group(
        prompt_messages(item, form), sampling, [derive_seed(0, "bare", item.id, n) for n in range(size)]
    )
    outcomes = [await _outcome(verifier, item, response) for response in group.responses]
    odds = [response.help_log_odds for response in group.responses if response.help_log_odds is not None]
    return Sampled(
        asked=outcomes.count("asked"),
        right=outcomes.count("right"),
        wrong=outcomes.count("wrong"),
        broken=outcomes.count("broken"),
        asks=sum(sigmoid(each) for each in odds) / len(odds) if odds else 0.0,
        prompt_tokens=len(group.prompt_ids),
        response_tokens=sum(len(response.token_ids) for response in group.responses) / len(group.responses),
    )


async def _outcome(verifier: Verifier, item: TaskItem, response: LocalResponse) -> str:
    verdict = check_format(response.text, item.max_steps)
    if not verdict.ok:
        return "broken"
    if verdict.asks_help:
        return "asked"
    return "right" if await judge(verifier, item, response.text) else "wrong"


def _portions(items: Sequence[TaskItem], size: int) -> Iterator[Sequence[TaskItem]]:
    return (items[first : first + size] for first in range(0, len(items), size))


# -- the clock on the wall ----------------------------------------------------------------------------------------------------------


async def measured_run(config: AgentConfig, plan: Plan, tell: Tell) -> Measured:
    """Build the agent, let it answer and learn."""
    sink = MemorySink()
    async with build_agent(config, sink) as agent:
        return await RealRun(agent, plan, tell, SystemClock()).measured(sink)


class RealRun:
    """The stream of a plan put to an agent that runs."""

    def __init__(self, agent: Agent, plan: Plan, tell: Tell, clock: Clock) -> None:
        self._agent = agent
        self._plan = plan
        self._tell = tell
        self._clock = clock
        self._local: list[Timed] = []
        self._cloud: list[Timed] = []
        self._paused_s = 0.0
        self._pauses = stream(plan.seed, "pauses")

    async def measured(self, sink: MemorySink) -> Measured:
        """Stretch by stretch, then the learning steps. Raises EdgeError where the cloud does not answer the calibration."""
        plan = self._plan
        self._agent.access.dials.set(plan.dial, LABEL)
        self._agent.access.dials.set(0.0, _CALIBRATION)
        for item in plan.cloud_calibration[:_WARM_UPS]:  # connections, caches; nothing of it counts
            for mode in _MODES:
                await self._ask(item, "warm-up", mode)
        answers, records = await self._stream()
        if plan.steps:
            self._tell(f"{plan.steps} learning steps")
            await self._agent.learn(max_steps=plan.steps)
        steps = [event for event in sink.events if isinstance(event, StepFinished)]
        taken = tuple(Taken(event.control.assist_rate, event.control.dual_after, event.time.seconds) for event in steps)
        cloud_tokens = tuple(self._count(each.cloud_text) if each.source == "cloud" else None for each in records)
        return Measured(Run(tuple(answers), taken), tuple(self._local), tuple(self._cloud), cloud_tokens)

    async def _stream(self) -> tuple[list[Answered], list[AnswerRecord]]:
        plan = self._plan
        seen: list[Answered] = []
        records: list[AnswerRecord] = []
        began, portions = self._clock.monotonic(), self._calibration()
        per_stretch = -(-len(plan.items) // STRETCHES)
        for number, (item, arrives_s) in enumerate(zip(plan.items, plan.arrivals_s, strict=True)):
            if number % per_stretch == 0:
                self._tell(f"stream: {number} of {len(plan.items)} answered")
                await self._calibrate(next(portions))
            await asyncio.sleep(max(0.0, arrives_s - self._now(began)))
            asked_s = self._now(began)
            record = await self._ask(item, LABEL)
            seen.append(answered(arrives_s, asked_s, record))
            records.append(record)
        for portion in portions:
            await self._calibrate(portion)
        return seen, records

    def _count(self, text: str) -> int:
        """Tokens of the cloud's text, as the SLM's tokenizer has them."""
        return len(self._agent.adapter.backend.text_tokens(text))

    def _now(self, began: float) -> float:
        """Seconds of the stream; the calibration stops its clock."""
        return self._clock.monotonic() - began - self._paused_s

    def _calibration(self) -> Iterator[list[tuple[TaskItem, Mode]]]:
        """The calibration in portions, one before each stretch and one after the last."""
        plan = self._plan
        for place in range(STRETCHES + 1):
            local = [(item, _MODES[0]) for item in plan.local_calibration[place :: STRETCHES + 1]]
            yield local + [(item, _MODES[1]) for item in plan.cloud_calibration[place :: STRETCHES + 1]]

    async def _calibrate(self, portion: Sequence[tuple[TaskItem, Mode]]) -> None:
        """One question at a time, each after a pause as people make it: a machine that has slept answers more slowly at first."""
        began, pause_s = self._clock.monotonic(), self._plan.arrivals_s[-1] / len(self._plan.items)
        for item, mode in portion:
            await asyncio.sleep(self._pauses.expovariate(1.0 / pause_s))
            record = await self._ask(item, _CALIBRATION, mode)
            if record.source == "cloud":
                self._cloud.append(_timed(record, self._count(record.cloud_text)))
            else:
                self._local.append(_timed(record, record.completion_tokens))
        self._paused_s += self._clock.monotonic() - began

    async def _ask(self, item: TaskItem, task: str, mode: Mode | None = None) -> AnswerRecord:
        messages = (Message("user", compact_question(item)),)
        return await self._agent.answerer.answer(AnswerRequest(messages, mode=mode, task=task))


_MODES: tuple[Mode, Mode] = ("auto", "cloud-only")
"""Of the calibration, whose dial of 0 keeps the first one local on the way that the stream's answers go."""


def _timed(record: AnswerRecord, tokens: int) -> Timed:
    first_s = record.latency_s if record.first_token_s is None else record.first_token_s
    return Timed(record.prompt_tokens, tokens, first_s, record.latency_s)


def with_cloud_tokens(facts: Sequence[Facts], cloud_tokens: Sequence[int | None], usual: int) -> tuple[Facts, ...]:
    """The facts with the lengths of the cloud's answers; where it was not asked, the calibration's usual length."""
    return tuple(
        replace(each, cloud_tokens=usual if tokens is None else tokens) for each, tokens in zip(facts, cloud_tokens, strict=True)
    )
