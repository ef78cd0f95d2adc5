"""The values that a state folder keeps."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from edge.rpc.client import StepUnits
from edge.state.events import StepFinished

AdapterOutcome = Literal["serves", "waits", "promoted", "refused"]
"""What becomes of a step's adapter: it serves at once (no gate), waits for the gate, or has passed or failed it."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """`latest`: training goes on from it. `serving`: it answers people. `refusals` in a row; `kept`: to go back to, oldest first."""

    latest: int
    serving: int
    refusals: int = 0
    kept: tuple[int, ...] = ()

    def after_step(self, step: int, base: int, outcome: AdapterOutcome, *, max_refusals: int = 1, keep: int = 3) -> Lineage:
        """After the step that was trained from `base`. One whose base was left meanwhile changes nothing.

        The refusal number `max_refusals` in a row takes training back to the version that serves.
        """
        if base != self.latest:
            return self
        if outcome == "serves":
            return replace(self, latest=step, serving=step, refusals=0)
        if outcome == "waits":
            return replace(self, latest=step)
        if outcome == "promoted":
            return Lineage(step, step, 0, _newest((*self.kept, self.serving, step), keep))
        if self.refusals + 1 >= max_refusals:
            return replace(self, latest=self.serving, refusals=0)
        return replace(self, latest=step, refusals=self.refusals + 1)

    def after_collapse(self, good: int, *, serves: bool) -> Lineage:
        """After a step that showed a collapse: training goes on from `good`, which `serves`, too, where there is no gate."""
        return replace(self, latest=good, serving=good if serves else self.serving, refusals=0)

    def back_to(self, version: int) -> Lineage:
        """Serve and train on from `version`; what is left stays on disk until later promotions take its place."""
        kept = (*self.kept, self.serving, self.latest, version)
        return Lineage(version, version, 0, _newest(kept, len(kept)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; on disk and in answers of the API the latest version is called `head`."""
        fields = asdict(self)
        return {"head": fields.pop("latest"), **fields}

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Lineage:
        """From what `to_json` made."""
        fields: Mapping[str, Any] = json.loads(text)
        return cls(fields["head"], fields["serving"], fields["refusals"], tuple(fields["kept"]))


def version_name(version: int) -> str:
    """How a version of the adapter is spoken of."""
    return f"adapter {version}" if version else "the bare model"


def _newest(versions: tuple[int, ...], keep: int) -> tuple[int, ...]:
    """The last `keep` different versions, each at its last place; the bare model needs no keeping."""
    ordered = dict.fromkeys(version for version in reversed(versions) if version)
    return tuple(reversed(list(ordered)[: max(keep, 1)]))


@dataclass(frozen=True, slots=True)
class Position:
    """How far learning has come: steps done in all, the phase, and steps done in it."""

    steps_done: int = 0
    phase: int = 0
    phase_step: int = 0


@dataclass(frozen=True, slots=True)
class StoredTerms:
    """Task terms: a task's last τ and λ, and the step that the coordinator expects next, which waiting reports come to first."""

    task: str
    target_rate: float
    dual: float
    next_step: int


LEAST_RECORDED = 32
"""Responses that a `HelpRecord` has at the least, once there were so many: those of a smaller step alone are too few to solve b on."""


@dataclass(frozen=True, slots=True)
class HelpRecord:
    """How much the responses of a task's newest rollouts wished to ask, oldest first; what the next step's help bias is solved on."""

    log_odds_N: tuple[float | None, ...] = ()
    """Log-odds (nats) of asking at each response's decision, without the bias; None: it reached none."""
    weights_N: tuple[float, ...] = ()
    """What each counts in the rate: what its call is expected to cost, in calls of mean cost, times the weight of its question's draw."""

    def followed_by(self, newer: HelpRecord) -> HelpRecord:
        """The newer responses, and of these as many as are needed: a step moves the policy, so old ones mislead."""
        kept = max(LEAST_RECORDED, len(newer.log_odds_N))
        return HelpRecord((*self.log_odds_N, *newer.log_odds_N)[-kept:], (*self.weights_N, *newer.weights_N)[-kept:])


@dataclass(frozen=True, slots=True)
class Report:
    """A step report: what the coordinator is sent when a step is closed."""

    task: str
    task_step: int
    planned_prompts: int
    group_size: int
    target_rate: float
    units: StepUnits
    refused: str = ""
    """Why the coordinator refused it; it is sent again when its task is learned again. "" for a report that was not refused."""


@dataclass(frozen=True, slots=True)
class ExamAnswer:
    """What a version made of one item with asking made impossible. `help_log_odds`: log p/(1-p) that it asks where it may, None where that
    is not known. `answer`: its final answer, shortened."""

    right: bool
    help_log_odds: float | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Exam:
    """What a version made of the items of one source, by their keys."""

    adapter_version: int
    source: str
    task: str
    answers: Mapping[str, ExamAnswer]

    def answers_json(self) -> str:
        """The answers as JSON text."""
        return json.dumps({key: asdict(answer) for key, answer in self.answers.items()})


def exam_answers(text: str, keys: Collection[str] | None = None) -> dict[str, ExamAnswer]:
    """From what `answers_json` made, those of `keys` (None: all)."""
    found: dict[str, Any] = json.loads(text)
    if keys is not None:
        found = {key: found[key] for key in keys if key in found}
    return {key: ExamAnswer(**one) for key, one in found.items()}


@dataclass(frozen=True, slots=True)
class WentBackRow:
    """That at some time another version was made to serve: by a person, or by what found the first worse (anchors, feedback, damage,
    collapse)."""

    at: float
    from_version: int
    to_version: int
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class SimilarAnswer:
    """What the model answers to a question like that of an item whose answer is given, and goes on answering."""

    item: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Commit:
    """All that one finished step changes."""

    event: StepFinished
    task_step: int
    position: Position
    cursor_source: str
    cursor_seed: int
    cursor: int
    terms: StoredTerms
    waiting_report: Report | None
    lineage: Lineage
    help_records: Mapping[str, HelpRecord] = field(default_factory=dict)
    """How much the newest responses wished to ask, by task; of others it is unchanged."""
    gate_memory: str = ""
    """What the promotion gate remembers, as JSON; "": unchanged."""
    exams: tuple[Exam, ...] = ()
    collapse_memory: str = ""
    """What is remembered of the steps to notice a collapse, as JSON; "": unchanged."""
    went_back: WentBackRow | None = None
    """That a collapse made another version serve."""
    used: tuple[str, ...] = ()
    """Keys of one's own items that were learned from, each one use more."""
    demonstrated: tuple[str, ...] = ()
    """Keys of the items whose given answer was shown."""
    kept: tuple[SimilarAnswer, ...] = ()
