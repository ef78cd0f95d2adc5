"""What the agent's own routes take and give, and with it `AgentControl`: pydantic models.

Of the responses the fields that clients may rely on; the agent may add others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from edge.core.errors import UsageError
from edge.core.periods import Period
from edge.core.units import BUDGET_UNITS, Unit
from edge.serve.schemas import AS_WRITTEN, Count, RequestBody, ResponseBody, Share, TaskLabel, Text, explain, field_error
from edge.state.feedback import MOST_CORRECTION_CHARS, steers

_MAX_ANSWERS, _MAX_RATES = 100_000, 128
Amount = Annotated[int, Field(ge=0, le=2**53)]
Verdict = Literal["good", "bad", "none"]


def _plain(text: str) -> str:
    if steers(text):
        raise field_error("", "holds control characters; only line ends and tabs are allowed")
    return text


# -- requests ------------------------------------------------------------------------------------------------------------------------


class FeedbackRequest(RequestBody):
    """A person's rating of an answer; none takes it back."""

    id: Annotated[Text, Field(min_length=1)]
    verdict: Verdict
    correction: Annotated[Text, AfterValidator(_plain), Field(max_length=MOST_CORRECTION_CHARS)] | None = None


class DialRequest(RequestBody):
    """The rate τ of a task (null or empty: of every task); the rate null takes it off."""

    target_rate: Annotated[Share | None, AS_WRITTEN]
    task: TaskLabel | None = None


class LimitRequest(RequestBody):
    """Hard limits to set, null for none; what is left out stays. `off`: only the configuration's hold again."""

    calls_limit: Amount | None = None
    tokens_limit: Amount | None = None
    spend_limit_uusd: Amount | None = None
    period: Period | None = None
    off: bool = False

    @property
    def changes(self) -> dict[str, Any] | None:
        """What is set (None: nothing but what the configuration has). Raises UsageError where nothing, or both, is given."""
        given = self.model_dump(exclude_unset=True, exclude={"off"})
        if self.off == bool(given) or given.get("period", "") is None:
            raise UsageError(
                "a limit is set or taken off",
                hint="give calls_limit, tokens_limit, spend_limit_uusd or period, or off: true alone",
            )
        return given or None


class WhatIfRequest(RequestBody):
    """Rates to compare on the last answers to a task."""

    target_rate: Annotated[
        Share | Annotated[list[Share], Field(min_length=1, max_length=_MAX_RATES)],
        AS_WRITTEN,
        explain(f"must be a number from 0 to 1, or a list of 1 to {_MAX_RATES} of them"),
    ]
    task: TaskLabel | None = None
    last: Annotated[int, Field(ge=1, le=_MAX_ANSWERS)] = 1000


# -- state and use -------------------------------------------------------------------------------------------------------------------


class LivenessView(ResponseBody):
    """The endpoint answers."""

    status: Literal["ok"]
    instance: str


class ReadinessView(ResponseBody):
    """Whether questions can be answered, and what of the agent works."""

    ready: bool
    model: str | None
    """None: no agent runs."""
    adapter_version: Count
    coordinator: Literal["reached", "away"]
    learning: str


class AmountsView(ResponseBody):
    """What is used of calls, tokens and spend in micro-USD (null: not known), the limits (null: none) and what is left of them.

    `*_period`: what a limit holds for ("": there is none).
    """

    calls: Count | None = None
    calls_limit: Count | None = None
    calls_left: Count | None = None
    calls_period: str | None = ""
    tokens: Count | None = None
    tokens_limit: Count | None = None
    tokens_left: Count | None = None
    tokens_period: str | None = ""
    spend_uusd: Count | None = None
    spend_limit_uusd: Count | None = None
    spend_left_uusd: Count | None = None
    spend_period: str | None = ""

    @property
    def units(self) -> Sequence[Unit]:
        """The units that it is about."""
        return BUDGET_UNITS


class QuotaView(AmountsView):
    """What one task may still ask. `target_rate`: the dial's τ (null: the model decides alone), `realised_rate` the share of the last
    answers that asked, `dual` λ; `as_of` when the coordinator reported it, in seconds since the epoch. `line` is for people."""

    task: str
    state: str
    line: str
    target_rate: Share | None
    realised_rate: Share | None
    dual: float | None
    as_of: float | None


class LedgerBudgetView(AmountsView):
    """A task's budget with its λ, as the coordinator reported it."""

    version: Count
    dual: float
    target_rate: float


class ModelView(ResponseBody):
    """The model that is loaded. `context_tokens`: the context that it was trained for; `sha256`: of its file."""

    name: str
    architecture: str
    parameters: Count
    context_tokens: Count
    file_bytes: Count
    sha256: str
    prompt_form: str


class TextTaskView(ResponseBody):
    """What is asked about each text of a task; without options any answer is possible."""

    ask: str
    options: tuple[str, ...]


class StepProgressView(ResponseBody):
    """How far a step has come."""

    step: Count
    part: str
    """rollout, given (answers looked at), update, imitation (of given answers), close (reported) or gate (judged)."""
    done: Count
    """Responses of a rollout, given answers or the gate, tokens of an update, updates of an imitation."""
    of: Count
    """0 where nobody knows how many there will be, 1 for a part that shows no more than that it has begun."""
    tokens: Count
    """Sampled in this part."""
    left_s: float | None
    """Seconds until this part ends, if it goes on like this; null where nobody knows."""


class StatusView(ResponseBody):
    """What the agent is doing now, or what its state folder holds while no agent runs; null where that is not known then."""

    running: bool = True
    address: str | None = None
    """Where the agent was found, with its process; null in a response of the agent itself."""
    pid: int | None = None
    run_id: str | None = None
    model: ModelView | None = None
    adapter_version: Count
    """The adapter that answers."""
    trained_version: Count
    """The latest adapter: training goes on from it."""
    mode: str
    learning: str
    """idle, learning, paused or off (`waiting` has the reason), stopped or finished."""
    online: bool
    offline_reason: str
    coordinator: str = ""
    task: str
    target_rate: float | None
    dual: float | None
    phase: Count
    phases: Count
    steps_done: Count
    steps_planned: Count | None
    waiting_reports: Count
    """Step reports that wait for the coordinator."""
    answers: Count | None = None
    total_cloud_calls: Count | None = None
    total_cloud_tokens: Count | None = None
    total_spend_uusd: Count | None = None
    uptime_s: float | None = None
    waiting: str
    """Why no step is begun, as "paused by you" or "waiting: on battery"; "" where nothing is waited for."""
    paused: bool
    """A person has paused learning."""
    progress: StepProgressView | None = None
    """How far the step under way has come; null between steps."""
    quota: QuotaView | None = None
    """What people may still ask of the cloud, for the task that serving uses."""
    unsettled_calls: Count | None = None
    """Cloud calls for people whose end is not known yet."""
    budget: LedgerBudgetView | None = None
    """The budget of the task at hand, with its λ; null where the coordinator was not asked, or cannot be."""
    text_tasks: dict[str, TextTaskView] = Field(default_factory=dict)
    """By label the tasks that sort texts: a message with such a label (`metadata.task`) is the text alone."""


class UnitsView(ResponseBody):
    """Calls, tokens and spend in micro-USD."""

    calls: Count
    tokens: Count
    spend_uusd: Count


class UnitLimitsView(ResponseBody):
    """The same as limits; null is unlimited."""

    calls: Count | None
    tokens: Count | None
    spend_uusd: Count | None


class UsedView(ResponseBody):
    """This device's own records."""

    answers: Count
    serving: UnitsView
    learning: UnitsView


class LedgerUsageView(ResponseBody):
    """What the coordinator counts."""

    used: UnitsView
    limits: UnitLimitsView
    left: UnitLimitsView
    dual: float
    target_rate: float


class UsageView(ResponseBody):
    """What was used and what is left."""

    object: Literal["edge.usage"] = "edge.usage"
    day: date
    today: UsedView
    all: UsedView
    ledger: LedgerUsageView | None
    online: bool
    offline_reason: str


# -- answers -------------------------------------------------------------------------------------------------------------------------


class RankingView(ResponseBody):
    """How well the help log-odds of a label's judged local answers order right and wrong ones."""

    right: Count
    wrong: Count
    auc: Share | None
    """The probability that a wrong answer has higher help log-odds than a right one; null where nothing can be compared."""
    interval: tuple[float, float] | None
    """95 %."""
    words: str
    """What it says, for people."""


class LedgerEntryView(ResponseBody):
    """A cloud call in the coordinator's ledger, or as the answer's record has it (`reported_by`)."""

    reported_by: Literal["coordinator", "record"]
    state: str
    tokens: Count
    charged_uusd: Count
    model: str
    call_key: str
    note: str


class ExplanationView(ResponseBody):
    """How one answer came about: its whole record, a person's rating of it, the decision in words, and its call in the ledger."""

    id: str
    source: str
    reason: str
    final: str = ""
    decision: str = ""
    help_log_odds: float | None = None
    ranking: RankingView | None = None
    """Of the answer's label, now."""
    dual: float | None = None
    calls_left: int | None = None
    ledger: LedgerEntryView | None = None
    quota: dict[str, Any] | None = None
    """What might still be asked when the answer was finished."""
    charged_uusd: Count = 0
    cached: bool = False
    model: str = ""
    cloud_model: str = ""
    adapter_version: Count = 0
    prompt_tokens: Count = 0
    prompt_cached: Count = 0
    """How many of prompt_tokens this device had read for an earlier conversation."""
    verdict: Verdict = "none"
    correction: str | None = None
    local_text: str = ""
    cloud_text: str = ""


class FeedbackView(ResponseBody):
    """The rating that counts. `outlook`: when it is learned from, or why it is not; empty where it was taken back."""

    id: str
    verdict: Verdict
    correction: str | None = None
    outlook: str = ""


class SentEntryView(ResponseBody):
    """A request that left the device. `times`: how often the same bytes left, until `last_at`; `replaced`: private values by kind;
    `outcome`: why it did not leave after all, or ""; `ended`: what came of a question, or ""."""

    id: Count
    at: float
    kind: str
    why: str
    method: str
    answer_id: str
    call_key: str
    bytes: Count
    replaced: Mapping[str, int]
    times: Count
    last_at: float
    outcome: str
    ended: str


class SentRequestView(SentEntryView):
    """One of these with its content: as a JSON object (null: not readable any more), and the very bytes."""

    payload: dict[str, Any] | None
    payload_base64: str


class DroppedView(ResponseBody):
    """Entries that are no longer kept, the last of them of this time."""

    entries: Count
    until: float


class WaitingReportView(ResponseBody):
    """A report of a learning step that the coordinator has not taken; `refused`: why it was refused, or ""."""

    id: Count
    task: str
    task_step: Count
    planned_prompts: Count
    group_size: Count
    target_rate: float
    total_units: Count
    help_units: Count
    uncalled_units: Count
    own_rate: float | None
    refused: str


class SentView(ResponseBody):
    """What left the device, newest first, and the step reports that wait."""

    sent: list[SentEntryView]
    next_before: Count | None
    dropped: DroppedView
    waiting_reports: list[WaitingReportView]


# -- learning ------------------------------------------------------------------------------------------------------------------------


class StepView(ResponseBody):
    """A finished learning step, with all that it reports."""

    step: Annotated[int, Field(ge=1)]
    assist_rate: Share
    target_rate: Share


class StepsView(ResponseBody):
    """Learning steps, oldest first."""

    steps: list[StepView]


class AdapterVersionView(ResponseBody):
    """An adapter on disk; null where nothing is known of it."""

    version: Count
    folder: str
    at: float | None
    phase: Count | None
    task: str | None
    source: str | None
    base: Count | None
    size_bytes: Count
    gate: str
    gate_reason: str
    gate_before: float | None
    gate_after: float | None
    kept_accuracy: float | None
    joint_accuracy: float | None
    assist_rate: float | None
    serving: bool
    """It answers people."""
    head: bool
    """Training goes on from it."""
    on_line: bool
    """The version in training came from it."""
    damage: str
    """One line; "" where all can be read."""


class AdapterVersionsView(ResponseBody):
    """All of them, oldest first."""

    adapters: list[AdapterVersionView]


class LineageView(ResponseBody):
    """The version that training goes on from, and the one that answers."""

    head: Count
    serving: Count


class LearningPausedView(ResponseBody):
    """Whether learning is paused, and what it waits for."""

    paused: bool
    waiting: str


class InTheEndView(ResponseBody):
    """The share of validation questions that is right in the end, before and after."""

    items: Count
    before: float
    after: float


class SourceInTheEndView(InTheEndView):
    """Of one source: at the rate that it is held to, and with the share of the cloud's answers that were right."""

    rate: float
    cloud_accuracy: float | None


class ExampleView(ResponseBody):
    """A question that changed, with what was made of it before and after."""

    question: str
    change: str
    before: str
    after: str
    right_before: bool
    right_after: bool


class ComparedView(ResponseBody):
    """Validation questions that were examined before and after."""

    items: Count
    right_then: Count
    right_now: Count
    gained: Count
    lost: Count
    new: Count
    in_the_end: InTheEndView | None


class SourceComparedView(ComparedView):
    """Those of one source. `own`: they are the person's; `learned_from`: none of the source is held out."""

    source: str
    task: str
    own: bool
    learned_from: bool
    new_right: Count
    in_the_end: SourceInTheEndView | None
    examples: list[ExampleView]


class ForgottenSourceView(ResponseBody):
    """Of a source: how many of its questions an earlier adapter had right."""

    source: str
    questions: Count
    of: Count


class ForgottenExampleView(ExampleView):
    """One of them, with the newest such adapter."""

    source: str
    adapter: Count


class ForgottenView(ResponseBody):
    """What the active version has wrong and an earlier one had right."""

    by_source: list[ForgottenSourceView]
    examples: list[ForgottenExampleView]


class SourceLearningView(ResponseBody):
    """The steps of one source and task."""

    source: str
    task: str
    steps: Count
    assist_rate: float | None
    target_rate: float
    refused: Count
    dual: float


class LearningView(ResponseBody):
    """Steps and what became of their adapters."""

    steps: Count
    promotions: Count
    refusals: Count
    refused_because: list[str]
    by_source: list[SourceLearningView]


class BandSharesView(ResponseBody):
    """What became of the attempts."""

    right: float
    asked: float
    wrong: float


class BandView(ResponseBody):
    """Practice questions of one band, in the first and in the last steps."""

    source: str
    band: str
    steps: Count
    first: BandSharesView
    last: BandSharesView


class WentBackView(ResponseBody):
    """That another version was made to serve. `by`: a person, or what found the first worse."""

    at: float
    from_version: Count
    to_version: Count
    by: str
    reason: str


class AnswersView(ResponseBody):
    """Answers of one source, and people's ratings of them."""

    source: str | None
    answers: Count
    good: Count
    bad: Count
    corrected: Count


class PurposesView(ResponseBody):
    """Cloud calls for answers to people, and for learning."""

    serving: UnitsView
    learning: UnitsView


class StretchView(ResponseBody):
    """What was charged in a stretch of time."""

    began: float
    serving_uusd: Count
    learning_uusd: Count


class SpendView(ResponseBody):
    """Spend over time; a stretch of `stretch_s` seconds without a charge is left out."""

    stretch_s: Count
    stretches: list[StretchView]


class TaskRateView(ResponseBody):
    """Of a task's answers in which the model could ask: how many did, with the dial's newest τ (null: the model decided alone)."""

    task: str
    answers: Count
    asked: Count
    rate: float
    target_rate: float | None


class WaitView(ResponseBody):
    """How long and how often learning waited for one reason."""

    reason: str
    times: Count
    seconds: float


class ReportView(ResponseBody):
    """What was learned, gained, forgotten and spent."""

    since: float
    now: float
    serving_version: Count
    serving_version_then: Count
    tasks: list[SourceComparedView]
    total: ComparedView
    forgotten: ForgottenView
    learning: LearningView
    bands: list[BandView]
    went_back: list[WentBackView]
    answers: list[AnswersView]
    cloud: PurposesView
    spend: SpendView
    rates: list[TaskRateView]
    waits: list[WaitView]
    paused: bool
    target: str
    cloud_name: str


class PracticeView(ResponseBody):
    """Validation questions of practice, separately."""

    right_in_the_end: Share | None
    gained: float | None
    validation_questions: Count
    learned_from: Count


class HeadlineView(ResponseBody):
    """Of this month's answers the share that came from this device; of the stored validation questions the share that is right in the end
    at the present rate, and what of it was gained since the beginning; spend in micro-USD. Null where nothing was counted.

    `own`: the validation questions are the person's own, and those of practice are counted in `practice`. `learned_from`: how many of them
    are learned from, too."""

    answers: Count
    answered_locally: Share | None
    right_in_the_end: Share | None
    gained: float | None
    validation_questions: Count
    learned_from: Count
    own: bool
    practice: PracticeView | None
    spent_today_uusd: Count
    spent_this_month_uusd: Count
    cloud_name: str


# -- budgets -------------------------------------------------------------------------------------------------------------------------


class DialView(ResponseBody):
    """How often a task has asked: over the last 200 counted answers, and over all since τ was set."""

    task: str
    target_rate: Share | None
    own: bool
    """τ was set for this task alone."""
    bias: float
    realised_rate: Share | None
    realised_since_set: Share | None
    questions: Count
    asked: Count
    without_decision: Share | None
    """Share of the last answers that no bias could make ask."""
    known_log_odds: Count
    set_at: float | None
    ranking: RankingView


class TaskBudgetView(QuotaView):
    """The budget of one task, its dial, and what the task alone has used by this device's records."""

    dial: DialView
    used: UnitsView


class DeviceBudgetView(AmountsView):
    """The units that the tasks share; those that they do not share are left out."""

    as_of: float

    @property
    def units(self) -> Sequence[Unit]:
        """The shared ones."""
        return [unit for unit in BUDGET_UNITS if unit.name in self.model_fields_set]

    @model_serializer(mode="wrap")
    def _shared_alone(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if name in self.model_fields_set}


class LimitsView(ResponseBody):
    """Hard limits of this device's own ledger. `renews_at`: when they begin again (null: never); `words` for people."""

    calls_limit: Count | None
    tokens_limit: Count | None
    spend_limit_uusd: Count | None
    period: str
    renews_at: float | None
    words: str


class BudgetsView(ResponseBody):
    """The budgets of all tasks, and how often each may ask."""

    device: DeviceBudgetView | None
    origin: Literal["agent", "coordinator", "stored"]
    """Reported by a running agent, by the coordinator, or the last known values in the state folder."""
    serving_task: str
    target_rate: Share | None
    """The dial of tasks without one of their own."""
    paused: bool
    switched_off: str
    """Why the cloud may not be asked, or ""."""
    waiting_reports: Count
    """Step reports that wait for the coordinator."""
    unsettled_calls: Count
    tasks: list[TaskBudgetView]
    limits: LimitsView | None
    """Null: another coordinator's operator sets them."""
    cloud_name: str
    """What the cloud is called where money is shown, "" where it charges."""
    target: str
    """What asking is held to, in one line."""


class OutlookView(ResponseBody):
    """What one rate means for the same answers; null where the answers do not show it."""

    target_rate: Share | None
    """Null: as it was."""
    rate: Share
    calls: Count
    threshold: float | None
    spend_uusd: float | None
    spend_interval_uusd: tuple[float, float] | None
    good_share: Share | None
    good_interval: tuple[float, float] | None
    judged_local: Count
    judged_cloud: Count
    latency_p50_s: float
    latency_p90_s: float
    notes: list[str]


class WhatIfView(ResponseBody):
    """What other rates would have meant."""

    task: str
    answers: Count
    without_decision: Count
    present: OutlookView
    outlooks: list[OutlookView]
