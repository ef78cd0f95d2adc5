"""The scores of one evaluation and its report.

kept_accuracy: right among the answers that did not ask, with its coverage. forced_local_accuracy: right on all items when asking is
impossible. joint_accuracy: right after composition with the cloud. Every accuracy travels with the realised assist rate. Shares are
weighted means; their intervals are 95 % Wilson intervals at Kish's effective number of items, which is the number of items when all
weigh the same.

The JSON object (`edge-agent eval --json`; `schema` 1; fields are only ever added) holds

- what was measured: `schema`, `sources`, `tasks`, `model`, `model_sha256`, `adapter` (folder or null), `adapter_version` (0: the bare
  model, null: not known), `temperature`, `seed`, `max_tokens`, `max_steps` (null: each item's own), `per_level` (null: the sources' own
  mix of levels), `seconds`;
- `repeated`: how many items were dropped because an earlier source had them;
- `cloud`: "coordinator", "replay" or "none"; `cloud_all`: whether every item was asked; `with_cloud`: whether anything could be asked;
  `extra`: what asking the items that had not asked for it cost (`calls`, `tokens`, `spend_uusd`; `cached` of the calls cost
  nothing); `missing_recordings`;
- `scores`: all items together (`Scores`), with `intervals` and `math` (the mathematical
  items alone, with their own `assist_rate` and `coverage`);
- `families`: a list of {`family`, `scores`, `levels`: [{`level`, `scores`}]}.

Shares lie in [0, 1] and are null where nothing was counted. Money is micro-USD; a replay repeats what was charged at its recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edge.core.types import AnswerKind
from edge.dagrpo.metrics import effective_trials, oracle_router_bound, wilson_interval_of_share
from edge.dagrpo.ranking import Ranking, ranked
from edge.evaluation.judging import Bill, Judged, JudgedItem, Verdict

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Kept, forced-local and joint accuracy; None where nothing was counted or nobody compared."""

    kept: float | None
    forced_local: float | None
    joint: float | None


@dataclass(frozen=True, slots=True)
class MathScores:
    """Mathematics only, read both ways: the exact string, which is the paper's, and equivalence. The rates are of these items."""

    items: int
    assist_rate: float
    coverage: float
    exact: Accuracies
    equivalent: Accuracies


@dataclass(frozen=True, slots=True)
class Intervals:
    """95 % intervals of the shares of the same names; None where the share is None."""

    assist_rate: Interval
    kept_accuracy: Interval | None
    forced_local_accuracy: Interval
    joint_accuracy: Interval | None
    cloud_accuracy: Interval | None
    format_ok: Interval


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares in [0, 1] over `items`; None where nothing was counted.

    `cloud_accuracy` is measured on the `cloud_answers` items where an answer of the cloud is known, and `oracle_bound` follows from it:
    the best joint accuracy at this assist rate. Of the items that asked, `cloud_calls` got an answer, `cloud_cached` of them out of a
    cache, and `cloud_failures` got none: refused, failed or not recorded. `cloud_tokens` and `spend_uusd` (micro-USD) are what those
    answers cost; a cached one costs nothing. `too_long`: questions that do not fit into the context. `ranking`: how the help log-odds
    order the items that are right and wrong when asking is impossible (`Ranking.to_json`), all items alike.
    """

    items: int
    assist_rate: float
    coverage: float
    kept_accuracy: float | None
    forced_local_accuracy: float
    joint_accuracy: float | None
    oracle_bound: float | None
    cloud_accuracy: float | None
    cloud_answers: int
    format_ok: float
    mean_response_tokens: float
    cloud_failures: int
    too_long: int
    cloud_calls: int
    cloud_cached: int
    cloud_tokens: int
    spend_uusd: int
    intervals: Intervals
    math: MathScores | None
    ranking: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Share:
    """A weighted share and its interval."""

    value: float
    interval: Interval


def score(judged: Sequence[JudgedItem]) -> Scores:
    """The scores of at least one item."""
    known = [one for one in judged if one.judged.cloud is not None]
    asks = _share_of_some(judged, lambda one: one.asked)
    kept = share([one for one in judged if not one.judged.asked], lambda one: one.own.right)
    forced = _share_of_some(judged, lambda one: one.forced.right)
    cloud = share(known, lambda one: one.cloud is not None and one.cloud.right)
    joint = share(judged, lambda one: one.joint is not None and one.joint.right) if knows_joint(judged) else None
    formatted = _share_of_some(judged, lambda one: one.format_ok)
    bill = total_bill(one for one in judged if one.judged.asked)
    return Scores(
        items=len(judged),
        assist_rate=asks.value,
        coverage=1.0 - asks.value,
        kept_accuracy=_value(kept),
        forced_local_accuracy=forced.value,
        joint_accuracy=_value(joint),
        oracle_bound=None if cloud is None else oracle_router_bound(asks.value, forced.value, cloud.value),
        cloud_accuracy=_value(cloud),
        cloud_answers=len(known),
        format_ok=formatted.value,
        mean_response_tokens=weighted_mean(judged, lambda one: one.tokens),
        cloud_failures=sum(one.judged.asked and bool(one.judged.failure) for one in judged),
        too_long=sum(one.judged.too_long for one in judged),
        cloud_calls=bill.calls,
        cloud_cached=bill.cached,
        cloud_tokens=bill.tokens,
        spend_uusd=bill.spend_uusd,
        intervals=Intervals(
            asks.interval, _interval(kept), forced.interval, _interval(joint), _interval(cloud), formatted.interval
        ),
        math=_math([one for one in judged if one.item.kind is AnswerKind.MATH]),
        ranking=_ranking(judged).to_json(),
    )


def _ranking(judged: Sequence[JudgedItem]) -> Ranking:
    known = [(one.candidate.key, one.judged.help_log_odds, one.judged.forced.right) for one in judged]
    return Ranking((ranked((key, odds, right) for key, odds, right in known if odds is not None),))


def total_bill(judged: Iterable[JudgedItem]) -> Bill:
    """What all of them cost together."""
    return sum((one.judged.bill for one in judged), Bill())


def weighted_mean(judged: Sequence[JudgedItem], value: Callable[[Judged], float]) -> float:
    """Σ w·value / Σ w of at least one item; exactly the plain mean where all weigh the same."""
    first = judged[0].weight
    if all(one.weight == first for one in judged):
        return sum(value(one.judged) for one in judged) / len(judged)
    return sum(one.weight * value(one.judged) for one in judged) / sum(one.weight for one in judged)


def share(judged: Sequence[JudgedItem], is_true: Callable[[Judged], bool]) -> Share | None:
    """The weighted share for which it is true, None of no items."""
    return _share_of_some(judged, is_true) if judged else None


def _share_of_some(judged: Sequence[JudgedItem], is_true: Callable[[Judged], bool]) -> Share:
    value = min(1.0, weighted_mean(judged, is_true))
    return Share(value, wilson_interval_of_share(value, effective_items(judged)))


def effective_items(judged: Sequence[JudgedItem]) -> float:
    """Kish's effective number of items; their number where all weigh the same."""
    weights = [one.weight for one in judged]
    return len(weights) if len(set(weights)) == 1 else effective_trials(weights)


def knows_joint(judged: Sequence[JudgedItem]) -> bool:
    """Whether every item that asked could ask somebody."""
    return all(one.judged.joint is not None for one in judged)


def _math(judged: Sequence[JudgedItem]) -> MathScores | None:
    if not judged:
        return None
    asks = _share_of_some(judged, lambda one: one.asked).value
    return MathScores(
        items=len(judged),
        assist_rate=asks,
        coverage=1.0 - asks,
        exact=_accuracies(judged, lambda verdict: verdict.exact),
        equivalent=_accuracies(judged, lambda verdict: verdict.equivalent),
    )


def _accuracies(judged: Sequence[JudgedItem], reading: Callable[[Verdict], bool | None]) -> Accuracies:
    def accuracy(members: Sequence[JudgedItem], of: Callable[[Judged], Verdict | None]) -> float | None:
        verdicts = [of(one.judged) for one in members]
        if not members or any(verdict is None or reading(verdict) is None for verdict in verdicts):
            return None
        return weighted_mean(members, lambda one: bool((verdict := of(one)) and reading(verdict)))

    return Accuracies(
        kept=accuracy([one for one in judged if not one.judged.asked], lambda one: one.own),
        forced_local=accuracy(judged, lambda one: one.forced),
        joint=accuracy(judged, lambda one: one.joint),
    )


def _value(one: Share | None) -> float | None:
    return None if one is None else one.value


def _interval(one: Share | None) -> Interval | None:
    return None if one is None else one.interval


SCHEMA = 1
CloudSource = Literal["coordinator", "replay", "none"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What an evaluation measures, and how. `max_steps` None: each item's own; `per_level` None: the sources' own mix of levels."""

    sources: tuple[str, ...]
    model: str
    model_sha256: str
    adapter: str | None
    adapter_version: int | None
    temperature: float
    seed: int
    max_tokens: int
    max_steps: int | None
    per_level: int | None
    cloud: CloudSource
    cloud_all: bool
    policy: str = "self"


@dataclass(frozen=True, slots=True)
class LevelScores:
    """The scores of one difficulty level of a family."""

    level: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class MeasuredFamily:
    """The scores of one family, and of each of its levels."""

    family: str
    scores: Scores
    levels: tuple[LevelScores, ...]


@dataclass(frozen=True, slots=True)
class EvalReport:
    """One evaluation. `extra` is what was spent on items that had not asked."""

    measured: Measured
    tasks: tuple[str, ...]
    scores: Scores
    families: tuple[MeasuredFamily, ...]
    extra: Bill
    missing_recordings: int = 0
    first_failure: str = ""
    seconds: float = 0.0
    repeated: int = 0

    def to_json(self) -> dict[str, Any]:
        """The JSON object that the module describes."""
        body = asdict(self)
        measured = body.pop("measured")
        return {"schema": SCHEMA, **measured, "with_cloud": self.measured.cloud != "none", **body}


def build_report(measured: Measured, judged: Sequence[JudgedItem], missing_recordings: int = 0) -> EvalReport:
    """Sum up at least one judged item."""
    families = list(dict.fromkeys(one.item.family for one in judged))
    return EvalReport(
        measured=measured,
        tasks=tuple(dict.fromkeys(one.item.task for one in judged)),
        scores=score(judged),
        families=tuple(_family(name, [one for one in judged if one.item.family == name]) for name in families),
        extra=total_bill(one for one in judged if not one.judged.asked),
        missing_recordings=missing_recordings,
        repeated=sum(one.candidate.repeats for one in judged),
        first_failure=next((one.judged.failure for one in judged if one.judged.failure), ""),
    )


def _family(name: str, judged: Sequence[JudgedItem]) -> MeasuredFamily:
    levels = sorted({one.item.level for one in judged})
    return MeasuredFamily(
        name,
        score(judged),
        tuple(LevelScores(level, score([one for one in judged if one.item.level == level])) for level in levels),
    )
