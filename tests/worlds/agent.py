"""A small world for agent tests: questions "What is N + 1?", scripted model, learner and coordinator, and an agent over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from edge.agent import Agent
from edge.answering.draft import AnswerSettings
from edge.budget.daily import NO_LIMITS, DailyBudget, DailyLimits, DaysUse
from edge.cloud.client import CoordinatorProcess
from edge.config.schema import GateConfig, ImitationConfig, LearningConfig, PhaseConfig, UseConfig
from edge.core.events import Event, MemorySink
from edge.core.rng import stream
from edge.core.tool_calls import CallFormat
from edge.core.types import AnswerKind, Message, Sampling, TaskItem
from edge.evaluation.judging import RolloutSettings
from edge.learning.activity import activity_report
from edge.learning.components import AgentComponents, AgentSettings
from edge.learning.conditions import LearningConditions
from edge.learning.curriculum import Curriculum
from edge.learning.methods import DaGrpo, Method
from edge.learning.own_use import OwnUse
from edge.learning.rollout import Batch
from edge.learning.step_reporter import OpenStep
from edge.learning.watched_folder import WatchedFolder
from edge.routing.policy import SelfOffload
from edge.rpc.client import CloudCall
from edge.state.answer_record import AnswerDelta, AnswerRecord, AnswerRequest
from edge.state.events import Notice, StepFinished
from edge.state.feedback import Feedback, FeedbackBook
from edge.state.folder import StateFolder
from edge.tasks.source import TaskSource
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from edge.testing.learner import ScriptedLearner
from edge.training.floor import StepMeasure
from edge.verifiers.by_kind import VerifierByKind
from edge.verifiers.math_answer import ExactMathAnswer

HELP = "<think>\nStep 1: hard\n</think>\nI need external assistance."
BROKEN_HELP = "I need external assistance."


QUESTION = (Message("user", "What is 4 + 1?"),)


def local_answer(value: object) -> str:
    return f"<think>\nStep 1: add\n</think>\n<answer>\\boxed{{{value}}}</answer>"


def always_asks(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    """A script that asks wherever it may, and answers 3 where it may not."""
    return local_answer(3) if sampling.suppress_help else HELP


def recorded(agent: Agent, answer_id: str) -> AnswerRecord:
    """The stored record of an answer ("": of the last one)."""
    return AnswerRecord(**agent.components.state.request(answer_id))


def give_feedback(agent: Agent, feedback: Feedback) -> Feedback:
    """Keep what a person thinks of an answer, now."""
    return FeedbackBook(agent.components.state).give(feedback, agent.components.clock.now())


def reported(agent: Agent, since: float) -> dict[str, Any]:
    """The activity report since a time."""
    return activity_report(agent.components.state.database, since, agent.components.clock.now())


def used_by(agent: Agent) -> DaysUse:
    """What an agent's learning has asked for and paid today."""
    return DailyBudget(agent.components.state, agent.components.clock, DailyLimits()).today()


class Crash(BaseException):
    """Simulates kill -9: nothing after it runs."""


def crash_at(place: str, times: int) -> Callable[[str], None]:
    """A failpoint that crashes where this place is reached for the nth time."""
    seen = 0

    def reached(here: str) -> None:
        nonlocal seen
        seen += here == place
        if here == place and seen == times:
            raise Crash

    return reached


def number_in(text: str) -> int:
    return int(text.split()[2])


def item(number: int, task: str = "math") -> TaskItem:
    return TaskItem(
        id=f"{task}-{number}",
        task=task,
        family="sums",
        level=1 + number % 3,
        split="train",
        question=f"What is {number} + 1?",
        answer=str(number + 1),
        kind=AnswerKind.MATH,
        max_steps=4,
    )


class Sums:
    """A TaskSource of consecutive sums."""

    def __init__(self, name: str = "sums", task: str = "math") -> None:
        self.name = name
        self._task = task

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        return (item(1000 * seed + number, self._task) for number in itertools.count(start))

    def test(self, limit: int) -> Sequence[TaskItem]:
        return [item(900_000 + number, self._task) for number in range(limit)]


def open_sums(name: str) -> Sums:
    return Sums(name, task="code" if name == "other" else "math")


def mixed_script(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    """Right, wrong, asking or badly formatted, by the seed alone."""
    right = number_in(messages[-1].content[messages[-1].content.index("What is") :]) + 1
    choice = stream(seed, "script").random()
    if choice < 0.3:
        return HELP if not sampling.suppress_help else local_answer(right)
    if choice < 0.6:
        return local_answer(right)
    if choice < 0.9:
        return local_answer(right + 7)
    return "no format at all"


def cloud_answer(call: CloudCall) -> str:
    return local_answer(number_in(call.messages[-1].content) + 1)


@dataclass
class World:
    """The parts that survive a crash: the state folder and the coordinator. `agent` makes the rest, as a new process would."""

    folder: Path
    script: Any = mixed_script
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(source="sums", target_rate=0.3, steps=4),)
    prompts_per_step: int = 3
    group_size: int = 4
    terms: ScriptedTerms = field(default_factory=lambda: ScriptedTerms(dual_lr=0.1, step_credit_kappa=None))
    mode: str = "auto"
    switched_off: str = ""
    dial: float | None = None
    seconds_per_token: float = 0.0
    coordinator: CoordinatorProcess | None = None
    gate: GateConfig | None = None
    measure: StepMeasure | None = None
    skip_unanimous_calls: bool = False
    temperature: float | None = None
    hint_chars: int = 0
    method: Method = field(default_factory=DaGrpo)
    own: UseConfig | None = None
    imitates: bool = True
    tasks_folder: Path | None = None
    conditions: LearningConditions | None = None
    daily_limits: DailyLimits = NO_LIMITS
    cloud_samples: bool = False
    skills: tuple[str, ...] = ()
    context_tokens: int = 1 << 20
    open_source: Callable[[str], TaskSource] = field(default_factory=lambda: open_sums)
    calls: CallFormat | None = None
    teaching: bool = False
    step_tokens: int = 0
    cloud_prompt_form: str = "compact"

    def __post_init__(self) -> None:
        self.client = ScriptedCoordinatorClient(cloud_answer, terms=self.terms)
        self.sink = MemorySink()
        self.learners: list[ScriptedLearner] = []
        self.opened: list[str] = []
        self.serving = self.rollouts = ScriptedBackend(self.script)
        self.clock = ManualClock()

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.sink.events if isinstance(event, kind)]

    def rollout_settings(self, run_id: str) -> RolloutSettings:
        settings = RolloutSettings(run_id, 7, self.group_size, 1.0, 64, "auto", "compact", 64)
        return replace(
            settings,
            skip_unanimous_calls=self.skip_unanimous_calls,
            may_ask=self.method.may_ask,
            hint_chars=self.hint_chars,
            cloud_samples=self.cloud_samples,
            step_tokens=self.step_tokens,
        )

    def answer_settings(self) -> AnswerSettings:
        settings = AnswerSettings(
            self.mode, "", self.temperature, 64, None, "auto", "compact", 64, 5.0, switched_off=self.switched_off
        )  # type: ignore[arg-type]
        return replace(settings, hint_chars=self.hint_chars, cloud_prompt_form=self.cloud_prompt_form)

    def settings(self, run_id: str) -> AgentSettings:
        return AgentSettings(
            self.rollout_settings(run_id),
            self.answer_settings(),
            self.terms.dual_init,
            self.method,
            5.0,
            self.dial,
            0.0,
            self.gate,
            self.daily_limits,
        )

    def agent(self, failpoint: Callable[[str], None] = lambda name: None) -> Agent:
        state = StateFolder(self.folder)
        curriculum = Curriculum(
            self.phases,
            self.open_source,
            state,
            seed=7,
            prompts_per_step=self.prompts_per_step,
            demonstrates=lambda source: source == "facts",
            skills=self.skills,
            drawn_questions=state.drawn_questions if self.teaching else None,
        )
        parts = AgentComponents(
            state=state,
            curriculum=curriculum,
            open_backend=self._open_backend,
            open_learner=self._open_learner,
            client=_StaysOpen(self.client),
            coordinator=self.coordinator,
            coordinator_name="scripted",
            verifier=ExactMathAnswer() if self.own is None else VerifierByKind(),
            policy=SelfOffload(),
            sink=self.sink,
            clock=self.clock,
            failpoint=failpoint,
            open_rollouts=self._open_rollouts,
            step_measure=lambda: self.measure,
            own_use=None if self.own is None else self._own_use(state, curriculum, self.own),
            conditions=self.conditions,
        )
        return Agent(parts, self.settings(state.run_id))

    async def learn(self, max_steps: int | None = None, failpoint: Callable[[str], None] = lambda name: None) -> list[Any]:
        """Run a new agent's learning; returns all steps in the state folder."""
        async with self.agent(failpoint) as agent:
            await agent.learn(max_steps=max_steps)
            return list(agent.components.state.steps())

    async def ask(self, **request: Any) -> tuple[AnswerRecord, list[AnswerDelta]]:
        """Ask a new agent `QUESTION`; returns the stored record of the answer, and its pieces."""
        async with self.agent() as agent, aclosing(agent.answerer.stream(AnswerRequest(QUESTION, **request))) as deltas:
            pieces = [delta async for delta in deltas]
            record = pieces[-1].record
            assert record is not None and recorded(agent, record.id) == record
            assert all(piece.record is None for piece in pieces[:-1])
            assert "".join(piece.text for piece in pieces) == record.text
        return record, pieces

    def _own_use(self, state: StateFolder, curriculum: Curriculum, use: UseConfig) -> OwnUse:
        folder = None if self.tasks_folder is None else WatchedFolder(self.tasks_folder, self._notice)
        imitation = ImitationConfig(demonstrations="own" if self.imitates else "none")
        learning = LearningConfig(seed=7, prompts_per_step=self.prompts_per_step, imitation=imitation)
        return OwnUse(state, use, learning, folder, curriculum.rate_of)

    def _notice(self, text: str) -> None:
        self.sink.emit(Notice(text, self.clock.now()))

    async def _open_backend(self) -> ScriptedBackend:
        options: Any = {
            "seconds_per_token": self.seconds_per_token,
            "calls": self.calls,
            "context_tokens": self.context_tokens,
        }
        self.serving = self.rollouts = ScriptedBackend(self.script, **options)
        return self.serving

    async def _open_rollouts(self, serving: object) -> ScriptedBackend:
        self.opened.append("rollouts")
        self.rollouts = ScriptedBackend(self.script, seconds_per_token=self.seconds_per_token, context_tokens=self.context_tokens)
        return self.rollouts

    async def _open_learner(self) -> ScriptedLearner:
        self.opened.append("learner")
        self.learners.append(ScriptedLearner())
        return self.learners[-1]


class _StaysOpen:
    """The scripted coordinator outlives the agent's connection to it."""

    def __init__(self, client: ScriptedCoordinatorClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def aclose(self) -> None:
        return None


def batch_of(*items: TaskItem, stay_here: frozenset[str] = frozenset()) -> Batch:
    """The prompts of the first step of task math."""
    opened = OpenStep("math", 0, dual=0.5, target_rate=0.3, planned_prompts=len(items), group_size=2, offline=False)
    return Batch(1, items, opened, stay_here)


def numbers(event: Any) -> Any:
    """The event without the fields that depend on the machine or the time."""
    quiet = dict.fromkeys(("rollout", "cloud", "update", "save", "close", "swap", "gate"), 0.0)
    return changed(event, seconds=0.0, tokens_per_s=0.0, at=0.0, seconds_by_part=quiet)


def changed(event: StepFinished, **fields: Any) -> StepFinished:
    """The event with other fields, by their names in JSON."""
    return StepFinished.from_json({**event.to_json(), **{name: _plain(value) for name, value in fields.items()}})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def asks_about_even_numbers(messages: Any, sampling: Any, seed: int) -> str:
    """A script that asks for help with even numbers and answers the others right."""
    number = number_in(messages[-1].content)
    return HELP if number % 2 == 0 and not sampling.suppress_help else local_answer(number + 1)
