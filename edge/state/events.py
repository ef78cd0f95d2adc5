"""What an agent reports: typed events for the terminal, the web page, the run folder and plots.

Rates and accuracies are shares in [0, 1]; None where there was nothing to count. The four numbers that must never be mixed up
have their own fields: `assist_rate` (per response), `cloud_calls` (billed), `cloud_tokens`, `spend_uusd` (micro-USD).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from edge.core.events import Event
from edge.dagrpo.ranking import RankedAnswers

Source = Literal["local", "cloud", "local-fallback"]
StopReason = Literal["done", "max_steps", "stopped"]


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """Learning begins or goes on: the state's run id, how many steps it has done, and how many it has to do (None: endless)."""

    kind: ClassVar[str] = "run_started"
    run_id: str
    model: str
    steps_done: int
    steps_planned: int | None
    adapter_version: int
    at: float


@dataclass(frozen=True, slots=True)
class PhaseStarted(Event):
    """A phase begins (or goes on at `phase_step` after a restart). `phase` counts from 0, `phases` is how many there are."""

    kind: ClassVar[str] = "phase_started"
    phase: int
    source: str
    task: str
    target_rate: float
    steps: int | None
    phase_step: int
    phases: int = 1


StepPart = Literal["rollout", "given", "update", "imitation", "close", "gate"]
"""What a step is at: it samples, looks at given answers, learns from its responses and from given answers, reports, and is judged."""


@dataclass(frozen=True, slots=True)
class StepProgress(Event):
    """Inside a step, at most once a second: what it is at, and how much of how much of it is done.

    `done` counts responses (rollout, given, gate), tokens (update) or updates (imitation). `of` is 0 where nobody knows how many there
    will be, and 1 for a part that shows no more than that it has begun.
    """

    kind: ClassVar[str] = "step_progress"
    step: int
    part: StepPart
    done: int
    of: int
    tokens: int = 0
    """Sampled in this part."""
    left_s: float | None = None
    """Seconds until this part ends, if it goes on like this; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Where a step's time went, in seconds."""

    rollout: float
    cloud: float
    """From the first call to the last reply; overlaps with `rollout`."""
    update: float
    save: float
    close: float
    swap: float
    """The step's commit and the change to its adapter; 0 for a step that is read back from the state folder."""
    gate: float = 0.0
    """Judging the new adapter, where that was due."""

    @property
    def total(self) -> float:
        """All parts one after the other."""
        return self.rollout + self.update + self.save + self.close + self.swap + self.gate


@dataclass(frozen=True, slots=True)
class FamilyScores:
    """One family's part of a step: its prompts, and the step's shares counted over its responses alone."""

    family: str
    prompts: int
    assist_rate: float
    kept_accuracy: float | None
    joint_accuracy: float | None


@dataclass(frozen=True, slots=True)
class BandShares:
    """What became of the responses to practice questions of one band (known, learnable, beyond): shares of `responses` that were answered
    right on this device, that asked for help, and that were wrong. They add up to 1."""

    band: str
    responses: int
    right: float
    asked: float
    wrong: float


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    """A question of a step whose questions were drawn by what they can teach, and what its responses showed."""

    question: str
    """The item's id."""
    probability: float
    """With which it was to be among the step's."""
    responses: int
    right: int
    """Right alone."""


@dataclass(frozen=True, slots=True)
class StepControl:
    """The assist rate of a step, and λ."""

    assist_rate: float
    """Share of responses that asked."""
    target_rate: float
    dual_before: float
    """λ that the step was learned at."""
    dual_after: float
    """λ of the task's next step."""
    offline: bool
    """λ could not be moved at the coordinator; the report waits."""
    help_bias: float | None = None
    """Nats that the step's rollouts had on the decision to ask; None: λ alone holds the rate."""
    own_rate: float | None = None
    """The share that would have asked without the bias, which λ then acts on."""
    help_gain: float | None = None
    """By how much asking raised the reward in groups where some asked and some did not; None: there were none."""
    cost_rate: float | None = None
    """`assist_rate` weighted by what each response's call is expected to cost, which is then held at τ; None: all count the same."""
    source_rate: float | None = None
    """The assist rate over all questions of the source, where the step's were drawn by what they can teach, which is then held at τ; None:
    they are a sample as it comes."""
    expected_rate: float | None = None
    """What the held rate was expected to be under the help bias, by the log-odds of the steps before; None: these were not known."""
    ask_covariance: float = 0.0
    """Σ (c - mean c)(r - mean r) over the groups; divided by `ask_variance` it is what asking gained where the policy was undecided."""
    ask_variance: float = 0.0
    """Σ (c - mean c)² over the groups; 0 where each group asked as a whole, or not at all."""

    @property
    def ask_slope(self) -> tuple[float, float]:
        """The two sums of what asking gained (edge.dagrpo.dual.asking_slope)."""
        return self.ask_covariance, self.ask_variance

    @property
    def held_rate(self) -> float:
        """What is held at τ: the cost-weighted rate where calls are weighted, that of the source where questions are drawn."""
        return next(rate for rate in (self.cost_rate, self.source_rate, self.assist_rate) if rate is not None)


@dataclass(frozen=True, slots=True)
class StepScores:
    """What the responses were worth."""

    prompts: int
    responses: int
    kept_accuracy: float | None
    """Share right among responses that did not ask."""
    coverage: float
    """Share that did not ask."""
    joint_accuracy: float | None
    """Share right after composition, over all that were judged."""
    reward_mean: float
    reward_std: float
    format_ok: float
    truncated: float
    masked: int
    """Left their group because the cloud failed."""
    refused: int
    """Asked, but the budget refused."""
    uncalled: int = 0
    """All of their group asked, so that no call was made and they were not judged."""
    families: tuple[FamilyScores, ...] = ()
    """The same shares for each family of questions, by name."""
    bands: tuple[BandShares, ...] = ()
    """Of practice questions alone."""
    beyond_limit: int = 0
    """Prompts that were left out because those before them had as many tokens as a step may sample."""
    ranked: RankedAnswers | None = None
    """How the help log-odds order the responses that did not ask, right and wrong; None: a step of before this was counted."""
    drawn: tuple[DrawnQuestion, ...] = ()
    """Its questions, where they were drawn by what they can teach; the shares above are of these."""
    source_right: float | None = None
    """Share of the responses right alone over all questions of the source, where they were."""


@dataclass(frozen=True, slots=True)
class StepCloud:
    """Billed calls, their tokens and micro-USD: of this step, and of the run so far (`total_*`).

    `cloud_samples`: cloud answers that were learned from as responses, of `cloud_sample_tokens` tokens; they count as responses nowhere.
    """

    cloud_calls: int
    cloud_tokens: int
    spend_uusd: int
    total_cloud_calls: int
    total_cloud_tokens: int
    total_spend_uusd: int
    cloud_samples: int = 0
    cloud_sample_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """What the learner reports (edge.training.learner.LearnerReport)."""

    groups_trained: int
    frac_reward_zero_std: float
    loss: float
    grad_norm: float
    entropy: float
    mean_abs_logprob_diff: float
    kl: float
    effective_sample_share: float
    clipped_share: float
    learning_rate: float
    learner_skipped: str
    demonstrations: int = 0
    """Given answers that were imitated."""
    given_known: int = 0
    """Given answers that the model would have given before."""
    imitation_updates: int = 0
    """The further updates in which they were."""


@dataclass(frozen=True, slots=True)
class StepAdapter:
    """The adapter of the step, and what became of it."""

    adapter_version: int
    base_version: int = -1
    """The version that it was trained on; -1: the step before."""
    serving_version: int = -1
    """The version that serves after the step; -1: this step's."""
    gate: str = ""
    """promoted, refused, rolled back (training goes back: after too many refusals to the active adapter, after a collapse to the last good
    one), left (a person went back to another version); "": no judgement was due."""
    gate_reason: str = ""
    gate_before: float | None = None
    """Share of all anchors right before."""
    gate_after: float | None = None
    """Share of all anchors right with this adapter."""
    gate_rate: float | None = None
    """The share that asks."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds and sampled tokens. `floor_s`: the least time this step could take on this device (edge.training.floor), and
    `times_floor` = seconds / floor_s; None where the device was not measured."""

    tokens: int
    tokens_per_s: float
    seconds: float
    seconds_by_part: StepSeconds
    floor_s: float | None = None
    times_floor: float | None = None


@dataclass(frozen=True, slots=True)
class StepFinished(Event):
    """One learning step. `step` counts from 1 over the whole run; `steps_planned` None means endless.

    As JSON it is one flat object with the fields of all parts, on disk and over HTTP.
    """

    kind: ClassVar[str] = "step_finished"
    step: int
    steps_planned: int | None
    phase: int
    phase_step: int
    source: str
    task: str
    at: float
    control: StepControl
    scores: StepScores
    cloud: StepCloud
    update: StepUpdate
    adapter: StepAdapter
    time: StepTime

    def flat(self) -> dict[str, Any]:
        """The fields of all parts by name."""
        whole = asdict(self)
        parts = [whole.pop(name) for name in _PARTS]
        return {name: value for part in (whole, *parts) for name, value in part.items()}

    def to_json(self) -> dict[str, Any]:
        """The event as a flat JSON object with its kind first."""
        return {"kind": self.kind, **self.flat()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepFinished:
        """From a flat object; a field that was added later has its default. Raises KeyError, TypeError for what is none."""
        left = {name: value for name, value in data.items() if name != "kind"}
        left["seconds_by_part"] = StepSeconds(**left["seconds_by_part"])
        left["families"] = tuple(FamilyScores(**one) for one in left.get("families", ()))
        left["bands"] = tuple(BandShares(**one) for one in left.get("bands", ()))
        left["drawn"] = tuple(DrawnQuestion(**one) for one in left.get("drawn", ()))
        left["ranked"] = RankedAnswers(**left["ranked"]) if left.get("ranked") else None
        parts: dict[str, Any] = {}
        for name, part in _PARTS.items():
            own = [field.name for field in fields(part)]
            parts[name] = part(**{field: left.pop(field) for field in own if field in left})
        return cls(**left, **parts)


_PARTS: Mapping[str, Any] = {
    "control": StepControl,
    "scores": StepScores,
    "cloud": StepCloud,
    "update": StepUpdate,
    "adapter": StepAdapter,
    "time": StepTime,
}


@dataclass(frozen=True, slots=True)
class AnswerFinished(Event):
    """One served answer, without its text."""

    kind: ClassVar[str] = "answer_finished"
    id: str
    source: Source
    reason: str
    help_log_odds: float | None
    dual: float | None
    adapter_version: int
    latency_s: float
    cloud_tokens: int
    spend_uusd: int


@dataclass(frozen=True, slots=True)
class Offline(Event):
    """The coordinator or the cloud cannot be reached; answers and learning go on locally. `reason` is one line."""

    kind: ClassVar[str] = "offline"
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Online(Event):
    """The coordinator answers again."""

    kind: ClassVar[str] = "online"
    at: float


@dataclass(frozen=True, slots=True)
class ReportsDelivered(Event):
    """Step reports that waited while the coordinator was away have been delivered, in order; λ is the coordinator's again."""

    kind: ClassVar[str] = "waiting_reports_delivered"
    task: str
    reports: int
    dual: float
    at: float


@dataclass(frozen=True, slots=True)
class AdapterSwapped(Event):
    """The engine serves a new adapter from the next request on."""

    kind: ClassVar[str] = "adapter_swapped"
    version: int
    folder: str


@dataclass(frozen=True, slots=True)
class AnchorsJudged:
    """One source's anchors at the gate: how many, and the shares right with the best adapter so far and with the candidate. `example`: the
    question of one that the candidate lost."""

    source: str
    items: int
    before: float
    after: float
    example: str = ""


@dataclass(frozen=True, slots=True)
class GateJudged(Event):
    """The promotion gate has judged the adapter of `step`."""

    kind: ClassVar[str] = "gate_judged"
    step: int
    verdict: str
    """promoted, refused, rolled back or left (see StepAdapter)."""
    reason: str
    """One line where it was not promoted."""
    serving_version: int
    refusals: int
    """In a row."""
    anchors: tuple[AnchorsJudged, ...]
    target_rate: float
    rate: float
    rate_before: float | None
    """None where it is not known."""
    at: float


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something a person should read, in one line (a resync, a skipped update)."""

    kind: ClassVar[str] = "notice"
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class OwnUseThrough(Event):
    """Every question of one source of one's own ("": of all of them) has been learned from as often as `use.passes` allows; no more steps
    go there until there is more. `not_learned` of them never became right, `example` is one. `is_served`: the newest adapter is the one
    that answers; it is not where the gate refused it."""

    kind: ClassVar[str] = "own_use_through"
    source: str
    questions: int
    passes: int
    at: float
    not_learned: int = 0
    example: str = ""
    is_served: bool = True


@dataclass(frozen=True, slots=True)
class LearningWaits(Event):
    """The next step waits: a person has paused learning, or the machine is not free. `reason` is one line, as "waiting: on battery"."""

    kind: ClassVar[str] = "learning_waits"
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class LearningResumed(Event):
    """What learning waited for is over."""

    kind: ClassVar[str] = "learning_resumed"
    at: float


@dataclass(frozen=True, slots=True)
class WentBack(Event):
    """A version that did worse than an earlier one was rolled back. `cause`: anchors, feedback or damage; `reason`: the evidence."""

    kind: ClassVar[str] = "went_back"
    from_version: int
    to_version: int
    cause: Literal["anchors", "feedback", "damage"]
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class EvalProgress(Event):
    """An evaluation's progress in items."""

    kind: ClassVar[str] = "eval_progress"
    done: int
    of: int


@dataclass(frozen=True, slots=True)
class HeldOutScored(Event):
    """What the adapter after `step` steps makes of held-out items of one source, at temperature 0 and without the cloud.

    forced_local_accuracy: share right on all items when asking is impossible, with its 95 % interval; kept_accuracy: share right of
    what it would have kept, which is the share `coverage`.
    """

    kind: ClassVar[str] = "held_out_scored"
    run_id: str
    step: int
    source: str
    task: str
    adapter_version: int
    items: int
    forced_local_accuracy: float
    forced_local_interval: tuple[float, float]
    kept_accuracy: float | None
    coverage: float
    assist_rate: float
    at: float


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """Learning ended: `reason` is done (all phases), max_steps, or stopped (a signal)."""

    kind: ClassVar[str] = "run_finished"
    run_id: str
    reason: StopReason
    steps_done: int
    adapter_version: int
    total_cloud_calls: int
    total_cloud_tokens: int
    total_spend_uusd: int
    seconds: float
    at: float
