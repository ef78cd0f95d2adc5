"""What happened on the devices of a group, counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge.state.answer_record import AnswerRecord
from edge.state.events import StepFinished
from tools.simulate.fleet.hardware import LinkModel, SimulatedSpeed
from tools.simulate.fleet.scenario import GroupPart
from tools.simulate.reports.result import SOURCES, GroupResult, LatencyHistogram, Series, bin_of, rounded


@dataclass(slots=True)
class Interval:
    """Counts of one interval; `..._right` of those, `units` and `asking` responses of training."""

    answers: int = 0
    from_cloud: int = 0
    right: int = 0
    stayed: int = 0
    stayed_right: int = 0
    units: int = 0
    asking: int = 0

    def plus(self, other: Interval) -> Interval:
        """Both together."""
        return Interval(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(slots=True)
class DeviceFigures:
    """One device's totals. `dual`: λ as it was last reported; `asked`: questions put to the agent; calls and spend are the ledger's."""

    dual: float
    calls: int = 0
    spend_uusd: int = 0
    steps: int = 0
    asked: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """What is read at the end of an interval, not counted in it. `online_share`: of the interval, on average over the devices."""

    at_s: float
    dual: float | None
    target_rate: float
    training_target_rate: float | None
    online_share: float


class GroupTally:
    """What the agents of one group did, answer by answer."""

    def __init__(self, report_every_s: float, lasts_s: float, warm_up_s: float) -> None:
        self.samples: list[Sample] = []
        self.refused: Counter[str] = Counter()
        self._settled = Interval()
        """What came after the warm-up."""
        self._every_s = report_every_s
        self._lasts_s = lasts_s
        self._warm_up_s = warm_up_s
        self._intervals: defaultdict[int, Interval] = defaultdict(Interval)
        self._first: dict[str, Counter[int]] = {source: Counter() for source in SOURCES}
        self._total: dict[str, Counter[int]] = {source: Counter() for source in SOURCES}
        self._first_s: Counter[str] = Counter()
        self._total_s: Counter[str] = Counter()

    def answered(self, figures: DeviceFigures, at_s: float, record: AnswerRecord, right: bool) -> None:
        """Somebody was answered."""
        source = record.source
        stayed = source != "cloud"
        self._add(at_s, Interval(1, not stayed, right, stayed, stayed and right))
        first_s = record.latency_s if record.first_token_s is None else record.first_token_s
        self._first[source][bin_of(first_s)] += 1
        self._total[source][bin_of(record.latency_s)] += 1
        self._first_s[source] += first_s  # type: ignore[assignment]
        self._total_s[source] += record.latency_s  # type: ignore[assignment]
        figures.dual = figures.dual if record.dual is None else record.dual
        if source == "local-fallback":
            self.refused[why_refused(record.reason)] += 1

    def stepped(self, figures: DeviceFigures, at_s: float, event: StepFinished) -> None:
        """A learning step was committed."""
        asking = round(event.control.assist_rate * event.scores.responses)
        self._add(at_s, Interval(units=event.scores.responses, asking=asking))
        figures.steps += 1
        figures.dual = event.control.dual_after

    def result(
        self,
        group: GroupPart,
        speed: SimulatedSpeed,
        link: LinkModel,
        *,
        calls: int,
        spend_uusd: int,
        target_rate: float,
        energy_wh: float,
        training_target_rate: float | None,
        dual: float | None,
        steps: int,
        battery_empty_s: float,
        lost: int,
    ) -> GroupResult:
        """Everything together, with τ and λ as they are at the end."""
        intervals, samples, total, settled = self._each_interval(), self.samples, Interval(), self._settled
        for interval in intervals:
            total = total.plus(interval)
        latencies = self._latencies(first=False)
        series = Series(
            at_s=[rounded(sample.at_s) for sample in samples],
            assist_rate=[share(each.from_cloud, each.answers) for each in intervals],
            training_assist_rate=[share(each.asking, each.units) for each in intervals],
            dual=[rounded(sample.dual) for sample in samples],
            joint_accuracy=[share(each.right, each.answers) for each in intervals],
            local_accuracy=[share(each.stayed_right, each.stayed) for each in intervals],
            answers=[each.answers for each in intervals],
            online_share=[rounded(sample.online_share) for sample in samples],
            target_rate=changing_rates([sample.target_rate for sample in samples], target_rate),
            training_target_rate=changing_rates([sample.training_target_rate for sample in samples], training_target_rate),
        )
        return GroupResult(
            name=group.name,
            devices=group.devices,
            profile=speed.name,
            link=link.name,
            target_rate=rounded(target_rate),
            answers={source: histogram.count for source, histogram in latencies.items()},
            latency_first=self._latencies(first=True),
            latency_total=latencies,
            assist_rate=share(total.from_cloud, total.answers),
            settled_assist_rate=share(settled.from_cloud, settled.answers),
            training_assist_rate=share(total.asking, total.units),
            settled_training_assist_rate=share(settled.asking, settled.units),
            accuracy=share(total.right, total.answers),
            local_accuracy=share(total.stayed_right, total.stayed),
            dual=dual,
            steps=steps,
            calls=calls,
            spend_uusd=spend_uusd,
            refused=dict(sorted((reason, count) for reason, count in self.refused.items() if count)),
            energy_wh=rounded(energy_wh),
            battery_empty_s=rounded(battery_empty_s),
            series=series,
            lost=lost,
            training_target_rate=rounded(training_target_rate),
        )

    def _add(self, at_s: float, counts: Interval) -> None:
        place = int(min(at_s, self._lasts_s - 1e-6) // self._every_s)
        self._intervals[place] = self._intervals[place].plus(counts)
        if at_s >= self._warm_up_s:
            self._settled = self._settled.plus(counts)

    def _each_interval(self) -> list[Interval]:
        """One for each sample."""
        return [self._intervals[place] for place in range(len(self.samples))]

    def _latencies(self, *, first: bool) -> dict[str, LatencyHistogram]:
        """Of the sources that answered, in the order of SOURCES; `first`: to the first visible letter."""
        counts, sums = (self._first, self._first_s) if first else (self._total, self._total_s)
        return {
            source: LatencyHistogram(dict(sorted(counts[source].items())), rounded(float(sums[source]), 6))
            for source in SOURCES
            if counts[source]
        }


def changing_rates(rates: Sequence[float | None], last: float | None) -> list[float]:
    """τ by interval as a result has it: nothing where it was the same, or there was none, all the time."""
    known = [rounded(rate) for rate in rates if rate is not None]
    return known if any(rate != rounded(last) for rate in known) else []


def why_refused(reason: str) -> str:
    """A short word for why somebody who should have had the cloud's answer had a local one."""
    words = {"budget": "the budget is used up", "invalid": "the coordinator cannot take it", "withheld": "nothing was sent"}
    return next((word for word, told in words.items() if told in reason), "unreachable")


def mean(values: Iterable[float]) -> float | None:
    """None without any."""
    known = list(values)
    return rounded(sum(known) / len(known)) if known else None


def jain_index(values: Sequence[float]) -> float | None:
    """(Σx)² / (n Σx²): 1 where all have the same, 1/n where one has all; None where nobody has any."""
    squares = sum(value * value for value in values)
    return rounded(sum(values) ** 2 / (len(values) * squares)) if squares else None


def share(part: int, whole: int) -> float | None:
    """part / whole, None where there is no whole."""
    return rounded(part / whole) if whole else None
