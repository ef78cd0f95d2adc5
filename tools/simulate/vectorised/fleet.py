"""The vectorised fleet: a scenario played in arrays, for its dials, its budgets and its latencies.

Time goes on in stretches of a minute, cut where an hour, an interval of the report or an event ends. In each, questions are asked in rounds
(no device twice in one), their calls go to the cloud together in the order of time, and answers are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edge.budget.dial import BIAS_BOUND, DIAL_LR, STEADINESS, WINDOW
from edge.core.errors import UsageError
from tools.simulate.fleet.cloud import TURN_TOKENS, most_tokens
from tools.simulate.fleet.hardware import DeviceSpeed, LinkModel
from tools.simulate.fleet.link import OVERHEAD_BYTES
from tools.simulate.fleet.machine import COOL_S
from tools.simulate.fleet.mind import cloud_right, help_log_odds, right_log_odds, sigmoid
from tools.simulate.fleet.scenario import DAY_S, HOUR_S, GroupPart, Scenario
from tools.simulate.fleet.tally import GroupCounts, Interval, Sample, jain_index
from tools.simulate.reports.result import (
    FORMAT,
    GROWTH,
    LEAST_S,
    SOURCES,
    CloudResult,
    GroupResult,
    LatencyHistogram,
    SimulationResult,
    rounded,
)
from tools.simulate.vectorised.cloud import ANSWERED, REFUSED, Calls, Cloud, Replies
from tools.simulate.vectorised.draws import Bools, Draws, Floats, Ints

STRETCH_S = 60.0
LOCAL, CLOUD, FALLBACK = range(len(SOURCES))
REQUEST_BYTES, REPLY_BYTES = 180.0, 250.0
"""About what the simulated questions and completions take on the wire."""
BUDGET, UNREACHABLE = "budget", "unreachable"
"""Why somebody who should have had the cloud's answer had none; words of `fleet.tally`."""
DOWN_SHARE = 0.005
"""Of the time that a link may be down on average, and be taken for one that never is."""
Hardware = tuple[DeviceSpeed, LinkModel]


def run_vectorised(scenario: Scenario, seed: int | None = None, name: str = "") -> SimulationResult:
    """Play a scenario, with its own seed where none is given; `name` is what the result calls it. Raises UsageError for a device or link
    that is not known, and for what only the exact simulation plays."""
    hardware = [part.hardware() for part in scenario.groups]
    found = only_exact(scenario, hardware)
    if found:
        told = f"the vectorised fleet has dials, budgets and latencies only; this scenario has {', '.join(found)}"
        raise UsageError(told, hint="python -m tools.simulate run plays it, without --vectorised")
    world = _World(scenario, scenario.seed if seed is None else seed, hardware)
    world.run()
    return world.result(name)


def only_exact(scenario: Scenario, hardware: Sequence[Hardware]) -> list[str]:
    """What of a scenario the vectorised fleet does not play, in a few words each."""
    found: list[str] = []
    for part, (speed, link) in zip(scenario.groups, hardware, strict=True):
        down = link.offline_hours is not None or link.mean_down_s > DOWN_SHARE * (link.mean_up_s or np.inf)
        has = {
            "learning": part.learning is not None,
            "a dual_unit other than calls": part.dual_unit != "calls",
            "demand that changes": bool(part.demand) or set(part.by_weekday) != {1.0},
            "prompts of different lengths": part.tokens.prompt_further > 0.0,
            "batteries (on_mains is false)": speed.battery_wh is not None,
            "a link that is down for long": down,
        }
        found += [f"{what} in group {part.name}" for what, is_so in has.items() if is_so]
    outages = ("cloud_down_for_s", "coordinator_down_for_s", "links_down_for_s")
    found += ["outages"] if any(getattr(event, name) for event in scenario.events for name in outages) else []
    found += ["errors of the cloud"] if scenario.cloud.error_rate else []
    rates = [rate.calls_per_min for _, part in scenario.configurations() for rate in (part.rates.fleet, part.rates.device)]
    return found + (["rates of starting calls"] if any(rates) else [])


class _World:
    def __init__(self, scenario: Scenario, seed: int, hardware: Sequence[Hardware]) -> None:
        self._scenario, self._seed = scenario, seed
        self._coordinator = scenario.coordinator
        every_s, lasts_s = scenario.report_every_s, scenario.lasts_s
        count = int(np.ceil(lasts_s / every_s - 1e-9))
        self._ends_at = [min(lasts_s, (place + 1) * every_s) for place in range(count)]
        names = tuple(dict.fromkeys(group.task for group in scenario.groups))
        self._cloud = Cloud(scenario.cloud, scenario.coordinator, scenario.devices, len(names), Draws(seed, "cloud"))
        self._groups: list[_Group] = []
        for part, parts in zip(scenario.groups, hardware, strict=True):
            offset = sum(group.part.devices for group in self._groups)
            tally = Tally(part.devices, count, every_s, scenario.warm_up_s)
            self._groups.append(
                _Group(part, scenario, parts, tally, Draws(seed, "group", part.name), offset, names.index(part.task))
            )
        self._changes = scenario.configurations()[1:]
        self._curves: dict[str, list[int | None]] = {
            name: [] for name in ("queue", "in_flight", "spend_uusd", "calls", "limit_uusd", "limit_calls")
        }

    def run(self) -> None:
        interval = 0
        for begins, ends in pairwise(self._edges()):
            while self._changes and self._changes[0][0] <= begins:
                _, self._coordinator = self._changes.pop(0)
                self._cloud.configure(self._coordinator)
            self._ask(begins, ends)
            if ends >= self._ends_at[interval] - 1e-9:
                self._interval_ends(ends)
                interval += 1

    def _edges(self) -> list[float]:
        """The edges of all stretches, from 0 to the end."""
        lasts_s = self._scenario.lasts_s
        first_hour = (-self._scenario.starts_at_h % 1.0) * HOUR_S
        edges = {0.0, lasts_s, *self._ends_at, *(event.at_h * HOUR_S for event in self._scenario.events)}
        edges |= {*np.arange(first_hour, lasts_s, HOUR_S).tolist(), *np.arange(0.0, lasts_s, STRETCH_S).tolist()}
        return sorted(edge for edge in edges if edge <= lasts_s)

    def _ask(self, begins: float, ends: float) -> None:
        now = self._scenario.calendar_at(begins)
        asking = [(group, group.questions(begins, ends)) for group in self._groups]
        while asking:
            rounds = [(group, group.ask(*one), lines) for group, lines in asking if (one := next(lines, None)) is not None]
            asking = [(group, lines) for group, _, lines in rounds]
            if not rounds:
                return
            batches = [group.calls(asked) for group, asked, _ in rounds]
            whole = Calls.together(batches)
            replies = self._cloud.ask(whole, now)
            bounds = np.cumsum([0, *(batch.count for batch in batches)])
            for (group, asked, _), (first, last) in zip(rounds, pairwise(bounds.tolist()), strict=True):
                group.answer(asked, replies.part(first, last))

    def _interval_ends(self, ends: float) -> None:
        for group in self._groups:
            group.tally.target_rates.append(rounded(self._target_rate(group, ends)))
        charged, limit, slots = self._cloud.budgets.fleet.charged(ends), self._cloud.budgets.fleet.limit, self._cloud.slots
        found = (slots.longest_queue, slots.most_in_flight, int(charged[2]), int(charged[0]))
        for values, value in zip(self._curves.values(), (*found, limit.spend_limit_uusd, limit.calls_limit), strict=True):
            values.append(value)
        slots.reset_peaks()

    def _target_rate(self, group: _Group, at: float) -> float:
        """τ in force of people's questions: of the dial, or the coordinator's."""
        if group.part.dial is not None:
            return group.part.dial
        return self._coordinator.task(group.part.task).rate_at(0, self._scenario.calendar_at(at))

    def result(self, name: str) -> SimulationResult:
        scenario, curves = self._scenario, self._curves
        calls = np.concatenate([group.tally.calls_by_device for group in self._groups]).tolist()
        changed = [event.at_h * HOUR_S for event in scenario.events]
        cloud = CloudResult(
            at_s=[rounded(at) for at in self._ends_at],
            up=[1.0] * len(self._ends_at),
            fleet_dual=[None] * len(self._ends_at),
            errors=dict(sorted((what, count) for what, count in self._cloud.errors.items() if count)),
            ledger_violations=0,
            jain_index=jain_index(calls),
            **curves,  # type: ignore[arg-type]
        )
        return SimulationResult(
            format=FORMAT,
            scenario=name,
            about=scenario.about,
            engine="vectorised",
            seed=self._seed,
            virtual_s=scenario.lasts_s,
            warm_up_s=scenario.warm_up_s,
            devices=scenario.devices,
            groups=[group.result(self._ends_at) for group in self._groups],
            cloud=cloud,
            events=[(rounded(at), "the coordinator reads a changed configuration") for at in sorted(changed)],
            assertions=[],
        )


@dataclass(frozen=True, slots=True)
class _Round:
    """One question each of several devices, answered as far as the device alone can; `calling`: the places of those that ask."""

    who: Ints
    begins: Floats
    first: Floats
    decided: Floats
    difficulty: Floats
    right: Bools
    local_tokens: Floats
    calling: Ints


class _Group:
    """The devices of one group. `offset`: the number of the first one in the fleet; `task`: the number of their task."""

    def __init__(
        self, part: GroupPart, scenario: Scenario, hardware: Hardware, tally: Tally, draws: Draws, offset: int, task: int
    ) -> None:
        self.part, self.tally = part, tally
        self._scenario, self._draws, self._offset, self._task = scenario, draws, offset, task
        self._speed, self._link = hardware
        self._mind, self._nature = part.mind, part.nature
        self._dials = None if part.dial is None else FleetDials(part.devices, part.dial)
        self._most_tokens = most_tokens(part.tokens)
        self._token_s = 1.0 / self._speed.decode_rate(1)
        self._read_s = self._speed.overhead_s + part.tokens.prompt / self._speed.prefill_tokens_per_s
        self._free_at = np.zeros(part.devices)
        heats = part.devices if self._speed.throttle_after_s is not None else 0
        self._busy_until, self._hot_since = np.full(heats, -np.inf), np.zeros(heats)

    def questions(self, begins: float, ends: float) -> Iterator[tuple[Ints, Floats]]:
        """Who is asked when in this time, in rounds in which nobody is asked twice."""
        rate = self.part.questions_per_day / DAY_S * self.part.hour_weights[int(self._scenario.hour_at(begins + 1e-6))]
        who, when = self._draws.arrivals(self.part.devices, rate, begins, ends)
        while who.size:
            first = np.ones(who.size, bool)
            first[1:] = who[1:] != who[:-1]
            yield who[first], when[first]
            who, when = who[~first], when[~first]

    def ask(self, who: Ints, arrived: Floats) -> _Round:
        """Each of these devices is asked a question, when it has answered the one before; none after the end."""
        begins = np.maximum(arrived, self._free_at[who])
        who, begins = who[begins < self._scenario.lasts_s], begins[begins < self._scenario.lasts_s]
        part, draws, count = self.part, self._draws, who.size
        mean = part.difficulty.mean_at(float(begins[0])) if count else 0.0
        difficulty = draws.within_unit(count, mean, part.difficulty.spread)
        log_odds = np.asarray(help_log_odds(self._mind, self._nature, difficulty, draws.normals(count)), np.float32)
        broken = draws.uniforms(count) < np.float32(self._nature.broken)
        settings = None if self._dials is None else self._dials.settings(who)
        asked = (log_odds + (np.float32(0.0) if settings is None else settings.bias) > 0.0) & ~broken
        if self._dials is not None and settings is not None:
            self._dials.answered(who, settings, asked, np.where(broken, np.float32(np.inf), log_odds))
        right = (draws.uniforms(count) < sigmoid(right_log_odds(self._mind, self._nature, difficulty))) & ~broken
        tokens = draws.log_normals(count, part.tokens.local, part.tokens.local_spread)
        said = np.maximum(1.0, np.rint(np.where(asked, tokens * np.float32(part.tokens.asking_share), tokens)))
        work_s = np.stack([np.full(count, self._read_s + self._token_s), self._read_s + said * self._token_s], axis=1)
        first, decided = (begins[:, None] + self._heated(who, begins, work_s)).T
        return _Round(who, begins, first, decided, difficulty, right, tokens, np.flatnonzero(asked))

    def calls(self, asked: _Round) -> Calls:
        """The calls of a round as they reach the coordinator."""
        part, who = self.part.tokens, asked.who[asked.calling]
        wished = np.rint(self._draws.log_normals(who.size, part.cloud, part.cloud_spread))
        return Calls(
            who=who + self._offset,
            task=np.full(who.size, self._task),
            at=asked.decided[asked.calling] + self._delays_s(who.size, REQUEST_BYTES, up=True),
            input_tokens=np.full(who.size, part.prompt),
            output_tokens=np.clip(wished, 1, self._most_tokens).astype(np.int64),
            hold_tokens=np.full((2, who.size), [[part.prompt + TURN_TOKENS], [self._most_tokens]]),
            patience_s=np.full(who.size, self._scenario.cloud.deadline_s),
        )

    def answer(self, asked: _Round, replies: Replies) -> None:
        """The round's answers, with what became of its calls."""
        calling, count = asked.calling, asked.calling.size
        got = replies.outcome == ANSWERED
        source, known = np.full(asked.who.size, LOCAL), asked.decided.copy()
        source[calling] = np.where(got, CLOUD, FALLBACK)
        known[calling] = replies.done_at + np.maximum(*(self._delays_s(count, REPLY_BYTES, up=False) for _ in range(2)))
        alone = np.flatnonzero(source == FALLBACK)
        rest = np.maximum(1.0, np.rint(asked.local_tokens[alone] * np.float32(1.0 - self.part.tokens.asking_share)))
        again_s = np.zeros(source.size)
        again_s[alone] = self._heated(asked.who[alone], known[alone], (rest * self._token_s)[:, None])[:, 0]
        right = asked.right.copy()
        right[calling[got]] = self._draws.uniforms(int(got.sum())) < cloud_right(self._nature, asked.difficulty[calling[got]])
        done, worked_s = known + again_s, asked.decided - asked.begins + again_s
        self._free_at[asked.who] = done
        self.tally.answered(done, source, asked.first - asked.begins, done - asked.begins, right, worked_s)
        refused = int((replies.outcome == REFUSED).sum())
        self.tally.refused.update({BUDGET: refused, UNREACHABLE: int(alone.size) - refused})
        paid = replies.charged_calls > 0
        self.tally.called(replies.done_at[paid], asked.who[calling[paid]], replies.spend_uusd[paid])

    def _delays_s(self, count: int, size_bytes: float, *, up: bool) -> Floats:
        """Seconds that messages of this size take in one direction."""
        link, draws = self._link, self._draws
        rate = link.up_bytes_per_s if up else link.down_bytes_per_s
        delay = link.rtt_s / 2.0 + draws.exponentials(count, link.jitter_s / 2.0) + (size_bytes + OVERHEAD_BYTES) / rate
        return np.asarray(delay + link.retransmit_s * draws.failures(count, link.loss))

    def _heated(self, who: Ints, at: Floats, seconds: Floats) -> Floats:
        """How long work [N, K] takes that would take so many seconds at full speed, all of it begun at `at`."""
        after, share = self._speed.throttle_after_s, self._speed.throttle_share
        if after is None:
            return seconds
        hot = np.where(at - self._busy_until[who] >= COOL_S, at, self._hot_since[who])
        full = np.maximum(0.0, hot + after - at)[:, None]
        taken = np.where(seconds <= full, seconds, full + (seconds - full) / share)
        self._hot_since[who] = hot
        self._busy_until[who] = np.maximum(self._busy_until[who], at + taken.max(axis=1))
        return np.asarray(taken)

    def result(self, ends_at: Sequence[float]) -> GroupResult:
        """Everything together."""
        tally = self.tally
        tally.sample(ends_at, self._speed.idle_w, self._speed.busy_w)
        return tally.result(
            self.part,
            self._speed,
            self._link,
            tally.calls_by_device.tolist(),
            tally.spend_by_device.tolist(),
            target_rate=tally.target_rates[-1],
            energy_wh=round(sum(sample.energy_wh for sample in tally.samples), 6),
        )


LEAST_SPREAD = 1.0
"""As the dial's own: nats by which log-odds fall off beyond those that were seen, at the least."""
FIRST_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What each question is asked with: the bias in nats, and the rate it was made for."""

    bias: Floats
    rate: Floats


class FleetDials:
    """One dial for each device, all with one τ. The log-odds seen are kept in a ring for each device, +inf where nothing was seen or
    an answer reached no decision; it grows as far as the busiest device needs it."""

    def __init__(self, devices: int, target_rate: float) -> None:
        self.target_rate = target_rate
        self._correction = np.zeros(devices, np.float32)
        self._owed = np.zeros(devices, np.float32)
        self._count = np.zeros(devices, np.int32)
        self._seen = np.full((devices, FIRST_COLUMNS), np.inf, np.float32)

    def settings(self, who: Ints) -> Settings:
        """What these devices (each once) ask their next question with."""
        rate = self._wanted(who)
        ordered, seen = self._ordered(who)
        known = np.isfinite(ordered).sum(axis=1)
        rate = np.where(known > 0, np.minimum(1.0, rate * seen / np.maximum(known, 1)), rate).astype(np.float32)
        inner = (rate > 0.0) & (rate < 1.0)
        ordered[known == 0, 0] = 0.0
        ask = np.where(rate >= 1.0, BIAS_BOUND, -BIAS_BOUND)
        level = np.where(known > 0, thresholds(ordered, known, np.where(inner, rate, 0.5)), 0.0)
        bias = np.where(inner, np.clip(self._correction[who] - level, -BIAS_BOUND, BIAS_BOUND), ask)
        return Settings(bias.astype(np.float32), rate)

    def answered(self, who: Ints, settings: Settings, asked: Bools, log_odds: Floats) -> None:
        """Learn from one question each; log-odds of +inf: no decision was reached."""
        decided = np.isfinite(log_odds) | asked
        inner = decided & (settings.rate > 0.0) & (settings.rate < 1.0)
        moved = self._correction[who] - DIAL_LR * (asked - settings.rate)
        self._correction[who] = np.where(inner, np.clip(moved, -BIAS_BOUND, BIAS_BOUND), self._correction[who])
        self._see(who, log_odds)
        if 0.0 < self.target_rate < 1.0:
            most, least = STEADINESS / self.target_rate, -STEADINESS / (1.0 - self.target_rate)
            self._owed[who] = np.clip(self._owed[who] + self.target_rate - asked, least, most)

    def _wanted(self, who: Ints) -> Floats:
        rate = self.target_rate
        return np.asarray(np.clip(rate + self._owed[who] * np.float32(rate * (1.0 - rate) / STEADINESS), 0.0, 1.0))

    def _see(self, who: Ints, log_odds: Floats) -> None:
        columns = self._seen.shape[1]
        count = self._count[who]
        if columns < WINDOW and count.size and int(count.max()) >= columns:
            more = min(WINDOW, 2 * columns) - columns
            self._seen = np.hstack([self._seen, np.full((len(self._seen), more), np.inf, np.float32)])
            columns += more
        self._seen[who, count % columns] = log_odds
        self._count[who] = count + 1

    def _ordered(self, who: Ints) -> tuple[Floats, Floats]:
        """The log-odds to go by in ascending order, what is unknown as +inf behind them, and how many answers they are of."""
        seen = np.minimum(self._count[who], WINDOW)
        width = max(1, int(seen.max(initial=0)))
        rows = self._seen[who, :width] if width < self._seen.shape[1] else self._seen[who]
        rows.sort(axis=1)
        return rows, seen.astype(np.float32)


def thresholds(ordered: Floats, known: Ints, rate: Floats) -> Floats:
    """`edge.budget.dial.threshold` for each row: of its first `known` (at least one) ascending log-odds, for its rate in (0, 1)."""
    rows, count = np.arange(len(ordered)), np.maximum(known, 1)
    position = (1.0 - rate.astype(np.float64)) * (count + 1) - 1.0
    lowest, highest = ordered[:, 0], ordered[rows, count - 1]
    spread = np.maximum(LEAST_SPREAD, (highest - lowest) / 4.0)
    below = np.clip(position.astype(np.int64), 0, count - 1)
    above = np.minimum(below + 1, count - 1)
    at_below = ordered[rows, below]
    between = at_below + (position - below) * (ordered[rows, above] - at_below)
    beyond = highest - spread * np.log(rate * (count + 1))
    before = lowest + spread * np.log((1.0 - rate) * (count + 1))
    return np.asarray(np.where(position > count - 1, beyond, np.where(position < 0.0, before, between)))


BINS = 3200
"""Enough for 1 % bins from LEAST_S to beyond a year of seconds."""


class Latencies:
    """Histograms of latencies by source."""

    def __init__(self) -> None:
        self._counts = np.zeros((len(SOURCES), BINS), np.int64)
        self._sums = np.zeros(len(SOURCES))

    def add(self, source: Ints, seconds: Floats) -> None:
        """Latencies of answers with these sources (places in SOURCES)."""
        scale = np.float64(1.0 / math.log(GROWTH))
        bins = np.floor(np.log(np.maximum(seconds, LEAST_S) / LEAST_S) * scale).astype(np.int64)
        flat = source * BINS + np.clip(bins, 0, BINS - 1)
        self._counts += np.bincount(flat, minlength=self._counts.size).reshape(self._counts.shape)
        self._sums += np.bincount(source, weights=seconds, minlength=len(SOURCES))

    def histograms(self) -> dict[str, LatencyHistogram]:
        """Those of the sources that answered."""
        found = {}
        for place, source in enumerate(SOURCES):
            kept = np.flatnonzero(self._counts[place])
            if kept.size:
                counts = {int(one): int(self._counts[place, one]) for one in kept}
                found[source] = LatencyHistogram(counts, round(float(self._sums[place]), 6))
        return found


class Tally(GroupCounts):
    """What one group did. `counts` by interval of the report: answers, those of the cloud, right ones, local ones, right local ones."""

    def __init__(self, devices: int, intervals: int, every_s: float, warm_up_s: float) -> None:
        super().__init__()
        self._first, self._total = Latencies(), Latencies()
        self.counts = np.zeros((5, intervals), np.int64)
        self.target_rates: list[float] = []
        self.calls_by_device = np.zeros(devices, np.int32)
        self.spend_by_device = np.zeros(devices, np.int64)
        self._calls, self._spend_uusd = np.zeros((2, intervals), np.int64)
        self._busy_s = np.zeros(intervals)
        self._intervals, self._every_s, self._warm_up_s = intervals, every_s, warm_up_s

    def answered(self, at: Floats, source: Ints, first_s: Floats, total_s: Floats, right: Bools, worked_s: Floats) -> None:
        """Questions were answered at these times."""
        self._first.add(source, first_s)
        self._total.add(source, total_s)
        place, cloud = self._interval(at), source == SOURCES.index("cloud")
        for curve, mine in zip(self.counts, (slice(None), cloud, right, ~cloud, ~cloud & right), strict=True):
            curve += np.bincount(place[mine], minlength=self._intervals)
        settled = at >= self._warm_up_s
        self.settled = self.settled.plus(Interval(int(settled.sum()), int((settled & cloud).sum())))
        self._busy_s += np.bincount(self._interval(at - total_s), weights=worked_s, minlength=self._intervals)

    def called(self, at: Floats, who: Ints, spend_uusd: Ints) -> None:
        """Calls of these devices were charged."""
        place = self._interval(at)
        self._calls += np.bincount(place, minlength=self._intervals)
        self._spend_uusd += np.bincount(place, weights=spend_uusd, minlength=self._intervals).astype(np.int64)
        np.add.at(self.calls_by_device, who, 1)
        np.add.at(self.spend_by_device, who, spend_uusd)

    def _interval(self, at: Floats) -> Ints:
        return np.clip((at / self._every_s).astype(np.int64), 0, self._intervals - 1)

    def intervals(self) -> list[Interval]:
        """One for each interval of the report."""
        return [
            Interval(*counts)
            for counts in zip(*self.counts.tolist(), self._calls.tolist(), self._spend_uusd.tolist(), strict=True)
        ]

    def latencies(self, *, first: bool) -> dict[str, LatencyHistogram]:
        """Of the sources that answered."""
        return (self._first if first else self._total).histograms()

    def sample(self, ends_at: Sequence[float], idle_w: float, busy_w: float) -> None:
        """The ends of all intervals, with energy from the time that devices were busy."""
        whole_s = self.calls_by_device.size * np.diff([0.0, *ends_at])
        energy_wh = (self._busy_s * busy_w + np.maximum(0.0, whole_s - self._busy_s) * idle_w) / 3600.0
        rows = zip(ends_at, self.target_rates, energy_wh, strict=True)
        self.samples = [Sample(at, None, rate, None, 1.0, round(float(energy), 6)) for at, rate, energy in rows]
