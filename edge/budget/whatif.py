"""What another rate would have meant for the answers that were given.

The help log-odds of an answer were recorded before any bias, so the threshold of another rate is known exactly for these answers: the
questions with the highest log-odds ask. What they would have cost and how long they would have taken is taken from answers that did go the
other way; how good they would have been is only stated where people judged enough answers of both kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from edge.core.errors import TooFewAnswers
from edge.core.formatting import counted
from edge.dagrpo.metrics import wilson_interval
from edge.state.reader import StateReader
from edge.state.usage import is_billed

LEAST_ANSWERS = 20
LEAST_VERDICTS = 10
"""Judged answers of a kind (local, cloud) below which nothing is reported of how good that kind is."""
SWEEP = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
Rating = Literal["good", "bad"]
Interval = tuple[float, float]
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class PastAnswer:
    """What a replay needs of one answer; times in seconds, `cloud_s` None where no call was made. `judged`: a person's rating, if any.
    `billed`: there was a call that the ledger counts, answered or not."""

    log_odds: float | None
    asked: bool
    from_cloud: bool
    charged_uusd: int
    local_s: float
    cloud_s: float | None
    total_s: float
    judged: Rating | None = None
    billed: bool = False


@dataclass(frozen=True, slots=True)
class Outlook:
    """One setting over the same answers. `target_rate` None: as it was. `threshold` in nats, None where none or all ask.

    `calls` go to the cloud (`rate` of the answers), `spend_uusd` is their expected cost with its 95 % interval, None where no answer shows
    what one costs. `good_share`: expected share that people find good, None where too few were judged (`judged_local`, `judged_cloud`).
    """

    target_rate: float | None
    rate: float
    calls: int
    threshold: float | None
    spend_uusd: float | None
    spend_interval_uusd: Interval | None
    good_share: float | None
    good_interval: Interval | None
    judged_local: int
    judged_cloud: int
    latency_p50_s: float
    latency_p90_s: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The present setting compared with others, over `answers` answers of a task ("" for all)."""

    task: str
    answers: int
    without_decision: int
    present: Outlook
    outlooks: tuple[Outlook, ...]


def past_answers(state: StateReader, task: str = "", last: int = 1000) -> list[PastAnswer]:
    """The last answers to a task ("": to any) that the local model had a part in, newest first."""
    return [past for past, is_local in _recorded(state, task, last) if is_local]


def demanded_answers(state: StateReader, task: str = "", last: int = 1000) -> list[PastAnswer]:
    """Those among the last answers that the cloud gave because it was demanded. They decide nothing, but show what it costs, how long it
    takes and how good people find it."""
    return [past for past, is_local in _recorded(state, task, last) if not is_local]


def _recorded(state: StateReader, task: str, last: int) -> list[tuple[PastAnswer, bool]]:
    """The last answers, and whether the local model had a part; those of neither are left out."""
    ratings: dict[str, Rating] = dict(state.rows("SELECT request_id, verdict FROM feedback"))
    found = []
    for record in state.requests(last):
        is_local, from_cloud = bool(record.get("local_text")), record["source"] == "cloud"
        if (task and record.get("task") != task) or not (is_local or from_cloud):
            continue
        past = PastAnswer(
            log_odds=record["help_log_odds"],
            asked=record["asked"],
            from_cloud=from_cloud,
            charged_uusd=record["charged_uusd"],
            local_s=record["local_latency_s"],
            cloud_s=record["cloud_latency_s"],
            total_s=record["latency_s"],
            judged=ratings.get(record["id"]),
            billed=is_billed(record),
        )
        found.append((past, is_local))
    return found


def what_if_recorded(state: StateReader, rates: Iterable[float], task: str = "", last: int = 1000) -> WhatIf:
    """`what_if` over the last answers of a state folder."""
    return what_if(past_answers(state, task, last), rates, task, demanded_answers(state, task, last))


def what_if(answers: Sequence[PastAnswer], rates: Iterable[float], task: str = "", demanded: Sequence[PastAnswer] = ()) -> WhatIf:
    """Replay at other rates; `demanded` answers of the cloud are evidence of what it costs. Raises TooFewAnswers when there are too few
    answers."""
    if len(answers) < LEAST_ANSWERS:
        raise TooFewAnswers(
            f"{len(answers)} recorded answers are too few to estimate what another rate would mean; {LEAST_ANSWERS} are needed",
            hint="use the agent a while, or measure it with edge-agent eval --cloud-all --plot FILE.png",
        )
    without = sum(answer.log_odds is None for answer in answers)
    return WhatIf(task, len(answers), without, present(answers), tuple(replayed(answers, rate, demanded) for rate in rates))


def present(answers: Sequence[PastAnswer]) -> Outlook:
    """What really happened."""
    charged = float(sum(answer.charged_uusd for answer in answers))
    judged = [answer for answer in answers if answer.judged]
    good = sum(answer.judged == "good" for answer in judged)
    enough, cloud = len(judged) >= LEAST_VERDICTS, sum(answer.from_cloud for answer in judged)
    calls = sum(answer.billed for answer in answers)
    return Outlook(
        target_rate=None,
        rate=sum(answer.asked for answer in answers) / len(answers),
        calls=calls,
        threshold=None,
        spend_uusd=charged,
        spend_interval_uusd=(charged, charged),
        good_share=good / len(judged) if enough else None,
        good_interval=wilson_interval(good, len(judged)) if enough else None,
        judged_local=len(judged) - cloud,
        judged_cloud=cloud,
        latency_p50_s=percentile([answer.total_s for answer in answers], 0.5),
        latency_p90_s=percentile([answer.total_s for answer in answers], 0.9),
        notes=()
        if enough
        else (
            f"how good answers were is not known: {len(judged) - cloud} local and {cloud} of the cloud were judged,"
            f" {LEAST_VERDICTS} together are needed",
        ),
    )


def replayed(answers: Sequence[PastAnswer], rate: float, demanded: Sequence[PastAnswer] = ()) -> Outlook:
    """The same answers at another rate."""
    decided = sorted((a for a in answers if a.log_odds is not None), key=lambda a: -_known(a.log_odds))
    calls = min(round(rate * len(answers)), len(decided))
    sent, kept = decided[:calls], decided[calls:] + [answer for answer in answers if answer.log_odds is None]
    cloud = [answer for answer in (*answers, *demanded) if answer.from_cloud]
    spend, interval = _spend(cloud, calls)
    good, good_interval, judged, notes = _good(answers, cloud, kept, calls)
    times = _times(cloud, sent, kept)
    if calls < round(rate * len(answers)):
        notes = (*notes, f"only {counted(len(decided), 'answer')} came to a place where they could ask")
    if spend is None:
        notes = (*notes, "no answer shows yet what a cloud answer costs")
    if calls and all(answer.cloud_s is None for answer in cloud):
        notes = (*notes, "no answer shows yet how long the cloud takes: the times are this device's part alone")
    return Outlook(
        target_rate=rate,
        rate=calls / len(answers),
        calls=calls,
        threshold=_known(sent[-1].log_odds) if sent and kept else None,
        spend_uusd=spend,
        spend_interval_uusd=interval,
        good_share=good,
        good_interval=good_interval,
        judged_local=judged[0],
        judged_cloud=judged[1],
        latency_p50_s=percentile(times, 0.5),
        latency_p90_s=percentile(times, 0.9),
        notes=notes,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _spend(cloud: Sequence[PastAnswer], calls: int) -> tuple[float | None, Interval | None]:
    """Mean charge of a cloud answer times the calls."""
    charges = [float(answer.charged_uusd) for answer in cloud]
    if calls == 0:
        return 0.0, (0.0, 0.0)
    if not charges:
        return None, None
    mean = fmean(charges)
    if len(charges) < 2:
        return calls * mean, None
    half = _Z * stdev(charges) * math.sqrt(1.0 / len(charges) + 1.0 / calls)
    return calls * mean, (calls * max(0.0, mean - half), calls * (mean + half))


def _good(
    answers: Sequence[PastAnswer], from_cloud: Sequence[PastAnswer], kept: Sequence[PastAnswer], calls: int
) -> tuple[float | None, Interval | None, tuple[int, int], tuple[str, ...]]:
    """What is kept is as good as what was judged among it, what is sent as good as what was judged of the cloud."""
    local = [answer.judged == "good" for answer in kept if answer.judged and not answer.from_cloud]
    cloud = [answer.judged == "good" for answer in from_cloud if answer.judged]
    judged, notes = (len(local), len(cloud)), []
    if kept and len(local) < LEAST_VERDICTS:
        notes.append(_too_few_local(sum(bool(answer.judged) and not answer.from_cloud for answer in answers)))
    if calls and len(cloud) < LEAST_VERDICTS:
        notes.append(_too_few(len(cloud), "cloud answer"))
    if notes:
        return None, None, judged, tuple(notes)
    parts = [(len(kept), local), (calls, cloud)]
    weights = [(count / (len(kept) + calls), verdicts) for count, verdicts in parts if count]
    spans = [(weight, wilson_interval(sum(verdicts), len(verdicts))) for weight, verdicts in weights]
    low, high = (min(1.0, sum(weight * span[end] for weight, span in spans)) for end in (0, 1))
    return sum(weight * fmean(verdicts) for weight, verdicts in weights), (low, high), judged, ()


def _too_few(judged: int, what: str) -> str:
    were = f"{judged} {what} was" if judged == 1 else f"{judged} {what}s were"
    return f"how good answers would be is not known: {were} judged, {LEAST_VERDICTS} are needed"


def _too_few_local(judged: int) -> str:
    """The count is that of all local ones, which is the same at every rate, unless it would do."""
    if judged < LEAST_VERDICTS:
        return _too_few(judged, "local answer")
    return f"how good answers would be is not known: fewer than {LEAST_VERDICTS} of the local answers that stay were judged"


def _times(cloud: Sequence[PastAnswer], sent: Sequence[PastAnswer], kept: Sequence[PastAnswer]) -> list[float]:
    """Seconds of each answer; those that would change sides get the measured times of the other side in turn."""
    clouds = [answer.cloud_s for answer in cloud if answer.cloud_s is not None]
    waits = [
        answer.cloud_s if answer.from_cloud and answer.cloud_s is not None else (clouds[n % len(clouds)] if clouds else 0.0)
        for n, answer in enumerate(sent)
    ]
    return [answer.local_s + wait for answer, wait in zip(sent, waits, strict=True)] + [answer.local_s for answer in kept]


def _known(log_odds: float | None) -> float:
    return -math.inf if log_odds is None else log_odds
