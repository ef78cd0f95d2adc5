"""What an agent is made of, and how it works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge.answering.draft import AnswerSettings
from edge.budget.daily import NO_LIMITS, DailyLimits
from edge.budget.limits import NO_BUDGET_LIMITS, BudgetLimits
from edge.budget.pace import DualUnit
from edge.cloud.client import CoordinatorProcess
from edge.config.schema import GateConfig, Switch
from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.dagrpo.dual import HelpBiasRule
from edge.evaluation.judging import RolloutSettings
from edge.inference.backend import InferenceBackend, ModelInfo
from edge.learning.conditions import LearningConditions
from edge.learning.curriculum import Curriculum
from edge.learning.methods import Method
from edge.learning.own_use import OwnUse
from edge.routing.policy import OffloadPolicy
from edge.rpc.client import CoordinatorClient
from edge.state.folder import StateFolder
from edge.training.floor import StepMeasure
from edge.training.learner import Learner
from edge.verifiers.verifier import Verifier


@dataclass(frozen=True, slots=True)
class AgentComponents:
    """What an agent is made of. Heavy parts are opened by async factories when they are needed, the learner when learning begins.

    `coordinator_name` is shown to people: the address, or "embedded".
    """

    state: StateFolder
    curriculum: Curriculum
    open_backend: Callable[[], Awaitable[InferenceBackend]]
    open_learner: Callable[[], Awaitable[Learner]]
    client: CoordinatorClient
    coordinator: CoordinatorProcess | None
    coordinator_name: str
    verifier: Verifier
    policy: OffloadPolicy
    sink: EventSink
    clock: Clock
    failpoint: Callable[[str], None] = lambda name: None
    release: Callable[[], None] = lambda: None
    """Called last, after every part is closed."""
    open_rollouts: Callable[[InferenceBackend], Awaitable[InferenceBackend]] | None = None
    """A second engine over the same weights for learning, so that another adapter can be trained than serves; a gate needs it."""
    sound: Callable[[Path], None] = lambda adapter_folder: None
    """Reads an adapter's files through. Raises AdapterError when they are damaged."""
    own_use: OwnUse | None = None
    """What is learned in addition to the phases: feedback on answers, watched task files."""
    conditions: LearningConditions | None = None
    """When learning may use the machine; None: always."""
    fit_threads: Callable[[Sequence[InferenceBackend], Learner | None], None] | None = None
    """Called every few seconds: uses as many threads as other programs leave cores for. None: their number stays as it is."""
    step_measure: Callable[[], StepMeasure | None] = lambda: None
    """What the least time of a step is computed from, where the device was measured; asked once, when learning begins."""
    learning_off: str = ""
    """Why the model answers and cannot learn; "" where it can."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How it works. Prompt forms are "auto" (of the model) or fixed; `answers.prompt_form` likewise."""

    rollout: RolloutSettings
    answers: AnswerSettings
    dual_init: float
    method: Method
    call_deadline_s: float
    dial_rate: float | None
    offline_retry_s: float = 10.0
    gate: GateConfig | None = None
    """None: every step's adapter is active immediately."""
    daily_limits: DailyLimits = NO_LIMITS
    help_bias_rule: HelpBiasRule | None = None
    """How the rollouts' help bias holds their assist rate at τ; None: they have none."""
    estimates_dual: bool = False
    """A step's λ is what asking gained in the last steps, in place of the coordinator's."""
    limits: BudgetLimits = NO_BUDGET_LIMITS
    """The hard limits of the configuration, of a coordinator of one's own."""
    cloud_name: str = ""
    """What the cloud is called where money is shown, "" where it charges."""
    dual_unit: DualUnit = "calls"
    """What λ acts on; of tokens and spend, a budget that renews sets τ."""
    learning_rate: float = 0.0
    """The configured one, of which a collapse takes half."""
    live_group_scaling: Switch = "off"
    """Whether a step's learning rate is multiplied by the share of its groups that have an advantage; auto: where responses are guided."""
    watches_collapse: bool = True
    """Whether a collapse takes training back to the last good version."""


def with_prompt_form(settings: AgentSettings, model: ModelInfo) -> AgentSettings:
    """The settings with "auto" prompt forms replaced by what the loaded model reads."""
    if settings.rollout.prompt_form != "auto":
        return settings
    form = model.prompt_form
    guided = form != "compact" if settings.rollout.guided is None else settings.rollout.guided
    rollout = replace(settings.rollout, prompt_form=form, guided=guided)
    answers = replace(settings.answers, prompt_form=form, guided=guided and form != "compact")
    return replace(settings, rollout=rollout, answers=answers)
