"""What a simulation found, as values and as JSON.

Equal results are equal bytes. Latencies are kept as histograms whose bins are 1 % wide, so that a result is as large for a thousand devices
as for ten, and a quantile is right within half a percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

FORMAT = 1
LEAST_S = 1e-4
GROWTH = 1.01
SOURCES = ("local", "cloud", "local-fallback")


class LatencyHistogram(msgspec.Struct, frozen=True):
    """`counts` of answers by bin: bin k holds LEAST_S * GROWTH^k <= seconds < LEAST_S * GROWTH^(k+1); less than LEAST_S is bin 0.

    `sum_s`: all latencies together, in seconds.
    """

    counts: dict[int, int]
    sum_s: float

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.counts.values())

    def quantile(self, share: float) -> float | None:
        """Seconds that this share of them does not exceed (middle of its bin); None when there are none."""
        rank, seen = share * self.count, 0
        for place in sorted(self.counts):
            seen += self.counts[place]
            if seen >= rank:
                return float(LEAST_S * GROWTH ** (place + 0.5))
        return None

    def plus(self, other: LatencyHistogram) -> LatencyHistogram:
        """Both together."""
        places = sorted({*self.counts, *other.counts})
        counts = {place: self.counts.get(place, 0) + other.counts.get(place, 0) for place in places}
        return LatencyHistogram(counts, self.sum_s + other.sum_s)


def bin_of(seconds: float) -> int:
    """The histogram's bin of a latency."""
    return max(0, math.floor(math.log(max(seconds, LEAST_S) / LEAST_S) / math.log(GROWTH)))


class Series(msgspec.Struct, frozen=True):
    """What happened over time; all lists are as long as `at_s`: virtual seconds, and an entry is of the interval that ends there.

    `assist_rate` and `dual` are means over the group's devices; `dual` weighs each device the same. None: there was nothing to average.
    `target_rate`: the τ of people's questions in force at the end of each interval; empty where it was the group's `target_rate` all the
    time. `training_target_rate`: the same of learning steps.
    """

    at_s: list[float]
    assist_rate: list[float | None]
    training_assist_rate: list[float | None]
    dual: list[float | None]
    joint_accuracy: list[float | None]
    local_accuracy: list[float | None]
    answers: list[int]
    online_share: list[float]
    target_rate: list[float] = []
    training_target_rate: list[float] = []


class GroupResult(msgspec.Struct, frozen=True):
    """One group of like devices.

    `latency_first` (to the first visible letter) and `latency_total` by source, one histogram each. `assist_rate`: share of people's
    questions that asked and went to the cloud; `settled_...`: after the scenario's warm-up. `accuracy`: of the final answers;
    `local_accuracy`: of those that stayed.
    `lost`: questions that came and were never answered; neither those still waiting at the end nor those that came to an empty battery.
    `training_target_rate`: τ of learning steps, where a dial sets another one for people's questions (None: the
    same).
    """

    name: str
    devices: int
    profile: str
    link: str
    target_rate: float
    answers: dict[str, int]
    latency_first: dict[str, LatencyHistogram]
    latency_total: dict[str, LatencyHistogram]
    assist_rate: float | None
    settled_assist_rate: float | None
    training_assist_rate: float | None
    settled_training_assist_rate: float | None
    accuracy: float | None
    local_accuracy: float | None
    dual: float | None
    steps: int
    calls: int
    spend_uusd: int
    refused: dict[str, int]
    energy_wh: float
    battery_empty_s: float
    series: Series
    lost: int
    training_target_rate: float | None = None

    def target_rates(self, *, training: bool) -> list[float]:
        """τ at the end of each interval, of learning steps or of people's questions."""
        series = self.series
        if training and (series.training_target_rate or self.training_target_rate is not None):
            return series.training_target_rate or [self.training_target_rate or 0.0] * len(series.at_s)
        return series.target_rate or [self.target_rate] * len(series.at_s)


class CloudResult(msgspec.Struct, frozen=True):
    """The cloud side over time (lists as long as `at_s`), and what the ledger says at the end.

    `queue` is the longest number of calls that waited for the upstream in the interval, `in_flight` the most that ran; `up` the share of
    the interval in which the coordinator served. `spend_uusd` and `calls` are what had been charged at the end of the interval, since the
    window of the fleet's budget began (since the start where it never ends). `limit_uusd` and `limit_calls`: the fleet's budget in force
    at the end of the interval (None: none).
    """

    at_s: list[float]
    queue: list[int]
    in_flight: list[int]
    up: list[float]
    spend_uusd: list[int]
    limit_uusd: list[int | None]
    calls: list[int]
    limit_calls: list[int | None]
    fleet_dual: list[float | None]
    errors: dict[str, int]
    ledger_violations: int
    jain_index: float | None


class AssertionResult(msgspec.Struct, frozen=True):
    """One assertion of the scenario as text: whether it holds, and the figures it was judged by."""

    sentence: str
    holds: bool
    found: str


class SimulationResult(msgspec.Struct, frozen=True):
    """A whole run; nothing here depends on the machine that ran it."""

    format: int
    scenario: str
    about: str
    seed: int
    virtual_s: float
    warm_up_s: float
    devices: int
    groups: list[GroupResult]
    cloud: CloudResult
    events: list[tuple[float, str]]
    assertions: list[AssertionResult]

    def to_json(self) -> bytes:
        """The same result gives the same bytes."""
        values = msgspec.to_builtins(self, str_keys=True, order="deterministic")  # the JSON encoder orders no whole numbers
        return msgspec.json.format(msgspec.json.encode(values), indent=1) + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> SimulationResult:
        """Read what `to_json` wrote. Raises msgspec.ValidationError or msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)


def all_sources(histograms: Mapping[str, LatencyHistogram]) -> LatencyHistogram:
    """The histograms of all sources in one."""
    merged = LatencyHistogram({}, 0.0)
    for source in sorted(histograms):
        merged = merged.plus(histograms[source])
    return merged


def rounded(value: Any, digits: int = 9) -> Any:
    """A float without the last bits, which may differ between machines; anything else as it is."""
    return round(value, digits) if isinstance(value, float) else value
