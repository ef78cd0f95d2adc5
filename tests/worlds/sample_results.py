"""Results of a run that never was, made from a seed: as plausible as reports need them, and the same every time."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from edge.core.rng import stream
from tools.simulate.reports.result import (
    FORMAT,
    CloudResult,
    GroupResult,
    LatencyHistogram,
    Series,
    SimulationResult,
    bin_of,
    rounded,
)

INTERVAL_S = 900.0
_SHARES = {"local": 0.72, "cloud": 0.25, "local-fallback": 0.03}


def histogram(seconds: list[float]) -> LatencyHistogram:
    """Of these latencies."""
    counts: dict[int, int] = {}
    for each in seconds:
        counts[bin_of(each)] = counts.get(bin_of(each), 0) + 1
    return LatencyHistogram(counts, rounded(sum(seconds)))


def sample_series(seed: int, name: str, devices: int, target: float, hours: int = 24) -> Series:
    """A day with an evening peak; nights without answers."""
    rng, count = stream(seed, "series", name), int(hours * 3600 / INTERVAL_S)
    at = [INTERVAL_S * (number + 1) for number in range(count)]
    busy = [max(0.0, math.sin(math.pi * (each / 3600 - 5) / 18)) for each in at]
    answers = [int(devices * 2 * share * rng.uniform(0.8, 1.2)) for share in busy]
    rate = [rounded(target + 0.25 * math.exp(-number / 12) + rng.gauss(0, 0.02)) for number in range(count)]
    shown = [share if each else None for each, share in zip(answers, rate, strict=True)]
    return Series(
        at_s=at,
        assist_rate=shown,
        training_assist_rate=[rounded(share + 0.03) if number % 3 else None for number, share in enumerate(rate)],
        dual=[rounded(0.5 + 0.4 * (1 - math.exp(-number / 20)) + rng.gauss(0, 0.01)) for number in range(count)],
        joint_accuracy=[rounded(min(1.0, 0.78 + number / 1000)) if each else None for number, each in enumerate(answers)],
        local_accuracy=[rounded(min(1.0, 0.62 + number / 800)) if each else None for number, each in enumerate(answers)],
        answers=answers,
        online_share=[1.0 if 6 < each / 3600 < 23 else 0.6 for each in at],
    )


def calls_of(series: Series) -> list[int]:
    """Cloud calls of each interval."""
    return [int(each * (share or 0.0)) for each, share in zip(series.answers, series.assist_rate, strict=True)]


def sample_group(
    seed: int,
    name: str,
    devices: int = 100,
    median_s: float = 1.5,
    target: float = 0.2,
    profile: str = "laptop-avx2",
    link: str = "home-wifi",
) -> GroupResult:
    """A group whose answers take about `median_s` seconds."""
    rng, series = stream(seed, "group", name), sample_series(seed, name, devices, target)
    factor = {"local": 1.0, "cloud": 1.8, "local-fallback": 3.0}
    drawn = {
        source: [median_s * factor[source] * math.exp(rng.gauss(0, 0.5)) for _ in range(max(1, int(1000 * share)))]
        for source, share in _SHARES.items()
    }
    whole = sum(series.answers)
    answers = {source: int(whole * share) for source, share in _SHARES.items()}
    calls = sum(calls_of(series))
    return GroupResult(
        name=name,
        devices=devices,
        profile=profile,
        link=link,
        target_rate=target,
        answers=answers,
        latency_first={source: histogram([each / 4 for each in latencies]) for source, latencies in drawn.items()},
        latency_total={source: histogram(latencies) for source, latencies in drawn.items()},
        assist_rate=rounded(target + 0.04),
        settled_assist_rate=rounded(target + 0.01),
        training_assist_rate=rounded(target + 0.06),
        settled_training_assist_rate=rounded(target + 0.02),
        accuracy=0.81,
        local_accuracy=0.66,
        dual=0.88,
        steps=12 * devices,
        calls=calls,
        spend_uusd=160 * calls,
        refused={"BUDGET_EXHAUSTED": int(devices / 10)},
        energy_wh=rounded(60.0 * devices),
        battery_empty_s=0.0,
        series=series,
        lost=0,
    )


def sample_cloud(groups: list[GroupResult], limit_uusd: int | None = 1_500_000) -> CloudResult:
    """The cloud side of these groups: an outage at noon, after which the queue is long."""
    at = groups[0].series.at_s
    calls = [sum(of_groups) for of_groups in zip(*(calls_of(group.series) for group in groups), strict=True)]
    return CloudResult(
        at_s=at,
        queue=[180 if 12 < each / 3600 <= 12.75 else calls[number] // 40 for number, each in enumerate(at)],
        in_flight=[min(64, each // 8) for each in calls],
        up=[0.4 if 12 < each / 3600 <= 12.25 else 1.0 for each in at],
        spend_uusd=[160 * sum(calls[: number + 1]) for number in range(len(at))],
        limit_uusd=[limit_uusd for _ in at],
        calls=[sum(calls[: number + 1]) for number in range(len(at))],
        limit_calls=[None for _ in at],
        fleet_dual=[None for _ in at],
        errors={"UPSTREAM_FAILED": 7},
        ledger_violations=0,
        jain_index=0.86,
    )


def sample_result(seed: int = 1, groups: list[GroupResult] | None = None, **changed: Any) -> SimulationResult:
    """Laptops, jetsons and phones in one day."""
    groups = groups or [
        sample_group(seed, "laptops", 100, 1.5, 0.2),
        sample_group(seed, "jetsons", 60, 2.4, 0.1, "jetson-orin-nano-8gb", "office"),
        sample_group(seed, "phones", 40, 4.0, 0.3, "phone", "lte-poor"),
    ]
    result = SimulationResult(
        format=FORMAT,
        scenario="mixed-200",
        about="A made-up day of 200 devices with a cloud outage at noon.",
        seed=seed,
        virtual_s=86_400.0,
        warm_up_s=14_400.0,
        devices=sum(group.devices for group in groups),
        groups=groups,
        cloud=sample_cloud(groups),
        events=[(43_200.0, "cloud down for 30 min"), (64_800.0, "budget cut to $1.20")],
        assertions=[],
    )
    return msgspec.structs.replace(result, **changed)
