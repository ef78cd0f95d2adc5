"""The devices of one group: who is asked what, where it is answered and how long it takes; learning steps between. Knows one group's state
as arrays; knows nothing of other groups, of budgets or of how the cloud is shared.

A device works on one question at a time. What it needs from the cloud is handed out as `Calls` and taken back as `Replies`, so that the
engine can put the calls of all groups into the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edge.rpc.grpc_client import ClientPolicy
from tools.simulate.fleet.cloud import TURN_TOKENS, most_tokens
from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.fleet.link import PATIENCE_S
from tools.simulate.fleet.machine import COOL_S
from tools.simulate.fleet.mind import Mind, cloud_right, help_log_odds, right_log_odds, sigmoid
from tools.simulate.fleet.scenario import GroupPart, Scenario
from tools.simulate.vectorised import lessons
from tools.simulate.vectorised.battery import Batteries
from tools.simulate.vectorised.cloud import ANSWERED, FAILED, REFUSED, Calls, Replies
from tools.simulate.vectorised.dials import FleetDials, Settings
from tools.simulate.vectorised.draws import Bools, Draws, Floats, Ints
from tools.simulate.vectorised.links import FleetLinks
from tools.simulate.vectorised.prices import Duals
from tools.simulate.vectorised.schedule import FleetTimetable
from tools.simulate.vectorised.tally import Tally

LOCAL, CLOUD, FALLBACK = 0, 1, 2
"""Places in `reports.result.SOURCES`."""
CONNECT_S = ClientPolicy().connect_timeout_s
DAY_S = 86400.0
REQUEST_BYTES, REPLY_BYTES = 180.0, 250.0
"""About what the simulated questions and completions take on the wire."""
BUDGET, UNREACHABLE, EMPTY = "budget", "unreachable", "battery empty"
"""Why somebody who should have had the cloud's answer had none; words of `fleet.tally`."""


@dataclass(frozen=True, slots=True)
class Round:
    """One question each of several devices, answered as far as the device alone can. `called_at`: when a call leaves, infinite where the
    coordinator cannot be reached."""

    who: Ints
    begins: Floats
    first: Floats
    decided: Floats
    difficulty: Floats
    right: Bools
    asked: Bools
    local_tokens: Floats
    called_at: Floats


@dataclass(frozen=True, slots=True)
class Steps:
    """Learning steps under way. `ready` [S, P] is when each group's responses are there unless somebody is served meanwhile; `served_s`
    what the device had served when the step began; `last` when all that was asked for so far was answered. `verdict` [S, P]: what became
    of each group's call, UNKNOWN while it is not made; `tokens` [S, P] of each group's responses.
    """

    who: Ints
    begins: Floats
    ready: Floats
    served_s: Floats
    last: Floats
    dual: Floats
    target: Floats
    credit: Ints
    offline: Bools
    tokens: Floats
    place: Ints
    verdict: Ints
    groups: lessons.Groups

    def of(self, kept: Bools | Ints) -> Steps:
        """Some of them."""
        parts = {name: getattr(self, name)[kept] for name in self.__slots__ if name != "groups"}
        return Steps(groups=self.groups.of(kept), **parts)


@dataclass(frozen=True, slots=True)
class TrainingCalls:
    """Calls of learning steps, and whose they are: step and prompt of each, batch after batch."""

    calls: Calls
    parts: list[tuple[Steps, Ints, Ints]]


UNKNOWN = -1


class Devices:
    """All devices of a group. `offset`: the number of the first one in the fleet; `task`: the number of their task."""

    def __init__(
        self,
        part: GroupPart,
        scenario: Scenario,
        speed: DeviceSpeed,
        links: FleetLinks,
        tally: Tally,
        draws: Draws,
        offset: int,
        task: int,
    ) -> None:
        self.part, self.speed, self.links, self.tally = part, speed, links, tally
        self.offset, self.task = offset, task
        self._scenario = scenario
        self._draws = draws
        self._nature, self._rates = part.nature.value(), part.rates.value()
        self._first = part.mind.value()
        count = part.devices
        self._most_tokens = most_tokens(part.tokens)
        self._token_s = 1.0 / speed.decode_rate(1)
        self._read_s = speed.overhead_s + part.tokens.prompt / speed.prefill_tokens_per_s
        self._batteries = Batteries(speed, count)
        self._free_at = np.zeros(count)
        self._served_s = np.zeros(count)
        self._learning = np.zeros(count, bool)
        self._unreported = np.zeros((2, count if part.learning is not None else 0))
        self._learned_at = np.zeros(count)
        heats = speed.throttle_after_s is not None
        self._busy_until = np.full(count if heats else 0, -np.inf)
        self._hot_since = np.zeros(count if heats else 0)
        self._steps = np.zeros(count, np.int32)
        learns = part.learning is not None
        self._theta = np.zeros((3, count if learns else 0), np.float32)
        self._theta[:] = np.array([self._first.skill, self._first.ask, self._first.ask_slope], np.float32)[:, None]
        self._dials = FleetDials(count, part.dial) if part.dial is not None else None
        self._timetable = FleetTimetable(part.learning, count, scenario.starts_at_h, draws) if part.learning is not None else None
        self._rolling: list[Steps] = []
        self._closing: list[tuple[Floats, Steps]] = []

    # people ----------------------------------------------------------------------------------------------------------------------

    def questions(self, begins: float, ends: float) -> Iterator[tuple[Ints, Floats]]:
        """Who is asked when in this time, in rounds in which nobody is asked twice."""
        rate = self.part.questions_per_day / DAY_S * self.part.hour_weights[int(self._scenario.hour_at(begins + 1e-6))]
        who, when = self._draws.arrivals(self.part.devices, rate, begins, ends)
        while who.size:
            first = np.ones(who.size, bool)
            first[1:] = who[1:] != who[:-1]
            yield who[first], when[first]
            who, when = who[~first], when[~first]

    def ask(self, who: Ints, arrived: Floats) -> Round:
        """Each of these devices is asked a question, when it has answered the one before; not those that are off, nor after the end."""
        begins = np.maximum(arrived, self._free_at[who])
        empty = self._batteries.empty(who, begins)
        self.tally.refused[EMPTY] += int((empty & (begins < self._scenario.lasts_s)).sum())
        kept = ~empty & (begins < self._scenario.lasts_s)
        return self._asked(who[kept], begins[kept])

    def _asked(self, who: Ints, begins: Floats) -> Round:
        part, draws, count = self.part, self._draws, who.size
        mean = part.difficulty.mean_at(float(begins[0])) if count else 0.0
        difficulty = draws.within_unit(count, mean, part.difficulty.spread)
        mind = self._mind(who)
        log_odds = np.asarray(help_log_odds(mind, self._nature, difficulty, draws.normals(count)), np.float32)
        settings = None if self._dials is None else self._dials.settings(who)
        bias = np.float32(0.0) if settings is None else settings.bias
        broken = draws.coins(count, self._nature.broken)
        asked = (log_odds + bias > 0.0) & ~broken
        self._tell_dials(who, settings, asked, log_odds, broken)
        right = (draws.uniforms(count) < sigmoid(right_log_odds(mind, self._nature, difficulty))) & ~broken
        tokens = draws.log_normals(count, part.tokens.local, part.tokens.local_spread)
        said = np.maximum(1.0, np.rint(np.where(asked, tokens * np.float32(part.tokens.asking_share), tokens)))
        work_s = np.stack([np.full(count, self._read_s + self._token_s), self._read_s + said * self._token_s], axis=1)
        first, decided = (begins[:, None] + self._heated(who, begins, work_s)).T
        called_at = np.full(count, np.inf)
        asking = np.flatnonzero(asked)
        up = self.links.up_again(who[asking], decided[asking])
        called_at[asking] = np.where(up - decided[asking] <= CONNECT_S, up, np.inf)
        return Round(who, begins, first, decided, difficulty, right, asked, tokens, called_at)

    def calls(self, asked: Round) -> tuple[Calls, Ints]:
        """The calls of a round as they reach the coordinator, and the places in it that they are of."""
        places = np.flatnonzero(np.isfinite(asked.called_at))
        at = asked.called_at[places] + self.links.delays_s(places.size, REQUEST_BYTES, up=True)
        return self._calls_of(asked.who[places], at, np.zeros(places.size, np.int64)), places

    def answer(self, asked: Round, places: Ints, replies: Replies) -> None:
        """The round's answers, with what became of its calls."""
        source, known = np.where(asked.asked, FALLBACK, LOCAL), asked.decided + np.where(asked.asked, CONNECT_S, 0.0)
        comes, broken = self._comes_back(asked.who[places], replies.done_at)
        got = (replies.outcome == ANSWERED) & ~broken
        source[places[got]] = CLOUD
        known[places] = comes
        alone = np.flatnonzero(source == FALLBACK)
        rest = np.maximum(1.0, np.rint(asked.local_tokens[alone] * np.float32(1.0 - self.part.tokens.asking_share)))
        again_s = np.zeros(source.size)
        again_s[alone] = self._heated(asked.who[alone], known[alone], (rest * self._token_s)[:, None])[:, 0]
        right = asked.right.copy()
        right[places[got]] = self._draws.uniforms(int(got.sum())) < cloud_right(self._nature, asked.difficulty[places[got]])
        self._note(asked, source, known + again_s, asked.decided - asked.begins + again_s, right)
        refused = int((replies.outcome == REFUSED).sum())
        self.tally.refused[BUDGET] += refused
        self.tally.refused[UNREACHABLE] += int(alone.size) - refused
        self._charged(asked.who[places], replies)

    def _note(self, asked: Round, source: Ints, done: Floats, worked_s: Floats, right: Bools) -> None:
        self._free_at[asked.who] = done
        self._served_s[asked.who] += worked_s
        self._batteries.work(asked.who, asked.begins, worked_s)
        self.tally.worked(asked.begins, worked_s)
        self.tally.answered(done, source, asked.first - asked.begins, done - asked.begins, right)

    def _comes_back(self, who: Ints, sent: Floats) -> tuple[Floats, Bools]:
        """When replies reach their devices, and which never do: a connection over a dead link breaks in the end, and none is had again."""
        up = self.links.up_again(who, sent)
        broken = up - sent > PATIENCE_S
        delay = np.maximum(*(self.links.delays_s(who.size, REPLY_BYTES, up=False) for _ in range(2)))
        return np.where(broken, sent + PATIENCE_S + CONNECT_S, up + delay), broken

    def _tell_dials(self, who: Ints, settings: Settings | None, asked: Bools, log_odds: Floats, broken: Bools) -> None:
        if self._dials is not None and settings is not None:
            self._dials.answered(who, settings, asked, np.where(broken, np.float32(np.inf), log_odds))

    # learning --------------------------------------------------------------------------------------------------------------------

    def begin_steps(self, begins: float, ends: float, duals: Duals, now: float) -> None:
        """Steps that begin in this time. `now`: seconds since the epoch."""
        if self._timetable is None:
            return
        who, due = self._timetable.due(ends)
        at = np.maximum(np.maximum(due, begins if begins > 0.0 else 0.0), np.maximum(self._free_at[who], self._learned_at[who]))
        ready = (at < ends) & ~self._learning[who]
        ready[ready] = ~self._batteries.empty(who[ready], at[ready])
        if ready.any():
            who, at = who[ready], np.maximum(due[ready], np.maximum(self._free_at[who[ready]], self._learned_at[who[ready]]))
            self._timetable.taken(who, at)
            self._learning[who] = True
            self._rolling.append(self._begun(who, at, duals, now))

    def _begun(self, who: Ints, at: Floats, duals: Duals, now: float) -> Steps:
        learning, draws = self.part.learning, self._draws
        assert learning is not None
        prompts, size = learning.prompts_per_step, learning.group_size
        mean = self.part.difficulty.mean_at(float(at[0]))
        difficulty = draws.within_unit(who.size * prompts, mean, self.part.difficulty.spread).reshape(who.size, prompts)
        groups = lessons.sampled(self._mind(who), self._nature, difficulty, draws, size)
        target = duals.targets(self.task, self._steps[who], now)
        tokens = self._group_tokens(groups)
        asks = groups.asked > 0
        offline = ~self.links.are_up(who, at)
        rollout_s = rollout_seconds(tokens, size, self.part.tokens.prompt, self.speed)
        ready = at[:, None] + np.where(offline, 0.0, self._round_trip_s(at.size))[:, None] + self._heated(who, at, rollout_s)
        self._steps[who] += 1
        self._deliver(who[~offline], at[~offline], duals)
        return Steps(
            who=who,
            begins=at,
            ready=ready,
            served_s=self._served_s[who],
            last=at.copy(),
            dual=duals.open(self.task, who + self.offset, prompts * size, float(at[0])),
            target=target,
            credit=duals.credits(self.task, target, prompts),
            offline=offline,
            tokens=tokens,
            place=np.argsort(np.argsort(np.where(asks, ready, np.inf), axis=1), axis=1),
            verdict=np.where(asks, np.where(offline[:, None], lessons.MASKED, UNKNOWN), lessons.NONE),
            groups=groups,
        )

    def _deliver(self, who: Ints, at: Floats, duals: Duals) -> None:
        """Reports of steps made without a coordinator, all of a device's at once, before its next step is opened."""
        waiting = self._unreported[1, who] > 0.0
        who, at = who[waiting], at[waiting]
        if who.size:
            order, units = np.argsort(at, kind="stable"), self._units
            who, at = who[order], at[order]
            rate, target = self._unreported[:, who]
            self._unreported[:, who] = 0.0
            duals.close(self.task, who + self.offset, at, rate, target, np.full(who.size, units))

    @property
    def _units(self) -> int:
        learning = self.part.learning
        return learning.prompts_per_step * learning.group_size if learning is not None else 0

    def _group_tokens(self, groups: lessons.Groups) -> Floats:
        """Tokens of each group's responses: a sum of log-normals, taken as normal."""
        part = self.part.tokens
        mean = part.local * np.exp(part.local_spread**2 / 2.0)
        asked = groups.asked.astype(np.float64)
        whole = groups.size - asked
        spread = mean * np.sqrt((np.exp(part.local_spread**2) - 1.0) * (whole + asked * part.asking_share**2))
        drawn = mean * (whole + asked * part.asking_share) + spread * self._draws.normals(asked.size).reshape(asked.shape)
        return np.asarray(np.maximum(drawn, groups.size))

    def training_calls(self, ends: float) -> TrainingCalls | None:
        """The calls of groups whose responses are there before `ends`; None for none."""
        parts, calls = [], []
        for steps in self._rolling:
            at = self._ready_now(steps)
            step, prompt = np.nonzero((steps.verdict == UNKNOWN) & (at < ends))
            if not step.size:
                continue
            granted = steps.place[step, prompt] < steps.credit[step]
            self._refuse_step(steps, step[~granted], prompt[~granted], at)
            step, prompt = step[granted], prompt[granted]
            leaves = self.links.up_again(steps.who[step], at[step, prompt])
            arrives = leaves + self.links.delays_s(step.size, REQUEST_BYTES, up=True)
            calls.append(self._calls_of(steps.who[step], arrives, steps.place[step, prompt]))
            parts.append((steps, step, prompt))
        return TrainingCalls(Calls.together(calls), parts) if parts else None

    def _ready_now(self, steps: Steps) -> Floats:
        """When the responses of each group are there, with the pauses so far."""
        return np.asarray(steps.ready + (self._served_s[steps.who] - steps.served_s)[:, None])

    def _refuse_step(self, steps: Steps, step: Ints, prompt: Ints, at: Floats) -> None:
        steps.verdict[step, prompt] = lessons.REFUSED
        np.maximum.at(steps.last, step, at[step, prompt] + self.links.model.rtt_s)

    def hear(self, asked: TrainingCalls, replies: Replies) -> None:
        """What became of calls of learning steps."""
        first = 0
        for steps, step, prompt in asked.parts:
            part = replies.part(first, first + step.size)
            first += step.size
            comes, broken = self._comes_back(steps.who[step], part.done_at)
            right = self._draws.uniforms(step.size) < cloud_right(self._nature, steps.groups.difficulty[step, prompt])
            verdict = np.where(right, lessons.RIGHT, lessons.WRONG)
            verdict[part.outcome == REFUSED] = lessons.REFUSED
            verdict[(part.outcome == FAILED) | broken] = lessons.MASKED
            steps.verdict[step, prompt] = verdict
            np.maximum.at(steps.last, step, comes)
            self._charged(steps.who[step], part)

    def end_rollouts(self, until: float) -> None:
        """Steps all of whose groups are there and answered go on with the update."""
        rolling, self._rolling = self._rolling, []
        for steps in rolling:
            ready = self._ready_now(steps).max(axis=1)
            now = ready < until
            if now.any():
                self._update(steps.of(now), ready[now])
            if not now.all():
                self._rolling.append(steps.of(~now))

    def _update(self, steps: Steps, ready: Floats) -> None:
        live = lessons.live(steps.groups, steps.verdict, steps.dual)
        work_s = np.where(live, steps.tokens, 0.0).sum(axis=1) / self.speed.training_tokens_per_s
        begins = np.maximum(ready, steps.last)
        update_s = self._heated(steps.who, begins, work_s[:, None])[:, 0]
        ends = begins + update_s + np.where(steps.offline, 0.0, self._round_trip_s(ready.size))
        worked_s = steps.ready.max(axis=1) - steps.begins + update_s
        self._batteries.work(steps.who, steps.begins, worked_s)
        self.tally.worked(steps.begins, worked_s)
        self._closing.append((ends, steps))

    def close_steps(self, until: float, duals: Duals) -> None:
        """Steps that end before `until`: θ and λ move."""
        closing, self._closing = self._closing, []
        for ends, steps in closing:
            now = ends < until
            if now.any():
                self._close(ends[now], steps.of(now), duals)
            if not now.all():
                self._closing.append((ends[~now], steps.of(~now)))

    def _close(self, ends: Floats, steps: Steps, duals: Duals) -> None:
        order = np.argsort(ends, kind="stable")
        ends, steps = ends[order], steps.of(order)
        mind = lessons.learned(self._mind(steps.who), self._nature, self._rates, steps.groups, steps.verdict, steps.dual)
        for row, value in enumerate((mind.skill, mind.ask, mind.ask_slope)):
            self._theta[row, steps.who] = value
        if self._dials is not None:
            self._dials.new_adapter(steps.who)
        self._learning[steps.who] = False
        self._learned_at[steps.who] = ends
        units = steps.groups.difficulty.shape[1] * steps.groups.size
        rate = steps.groups.asked.sum(axis=1) / units
        self.tally.learned(ends, rate)
        told = ~steps.offline
        self._unreported[:, steps.who[~told]] += np.stack([rate[~told], steps.target[~told]])
        if told.any():
            every = np.full(int(told.sum()), units)
            duals.close(self.task, steps.who[told] + self.offset, ends[told], rate[told], steps.target[told], every)

    # both ------------------------------------------------------------------------------------------------------------------------

    def _charged(self, who: Ints, replies: Replies) -> None:
        paid = replies.charged_calls > 0
        if paid.any():
            self.tally.called(replies.done_at[paid], who[paid], replies.charged_calls[paid], replies.spend_uusd[paid])

    def _heated(self, who: Ints, at: Floats, seconds: Floats) -> Floats:
        """How long work [N, K] takes that would take so many seconds at full speed, all of it begun at `at`."""
        after, share = self.speed.throttle_after_s, self.speed.throttle_share
        if after is None:
            return seconds
        hot = np.where(at - self._busy_until[who] >= COOL_S, at, self._hot_since[who])
        full = np.maximum(0.0, hot + after - at)[:, None]
        taken = np.where(seconds <= full, seconds, full + (seconds - full) / share)
        self._hot_since[who] = hot
        self._busy_until[who] = np.maximum(self._busy_until[who], at + taken.max(axis=1))
        return np.asarray(taken)

    def _round_trip_s(self, count: int) -> Floats:
        return self.links.delays_s(count, REQUEST_BYTES, up=True) + self.links.delays_s(count, REPLY_BYTES, up=False)

    def _mind(self, who: Ints) -> Mind:
        if not self._theta.size:
            return self._first
        return Mind(*self._theta[:, who])

    def _calls_of(self, who: Ints, at: Floats, place: Ints) -> Calls:
        part, count = self.part.tokens, who.size
        wished = np.rint(self._draws.log_normals(count, part.cloud, part.cloud_spread))
        return Calls(
            who=who + self.offset,
            task=np.full(count, self.task),
            at=at,
            input_tokens=np.full(count, part.prompt),
            output_tokens=np.clip(wished, 1, self._most_tokens).astype(np.int64),
            hold_tokens=np.full((2, count), [[part.prompt + TURN_TOKENS], [self._most_tokens]]),
            patience_s=np.full(count, self._scenario.cloud.deadline_s),
            place=place,
        )

    def target_rate(self, duals: Duals, now: float) -> float:
        """τ in force of people's questions: of the dial, or the coordinator's. `now`: seconds since the epoch."""
        return self._coordinators_rate(duals, now) if self.part.dial is None else self.part.dial

    def training_target_rate(self, duals: Duals, now: float) -> float | None:
        """τ in force of learning steps, which λ steers to; None where people's questions have the same or nothing is learned."""
        return None if self.part.dial is None or self.part.learning is None else self._coordinators_rate(duals, now)

    def _coordinators_rate(self, duals: Duals, now: float) -> float:
        """The coordinator's τ for the steps that the devices have come to."""
        return float(duals.targets(self.task, np.array([int(self._steps.sum()) // self._steps.size]), now)[0])

    def recharge(self, at: float) -> None:
        """It is midnight."""
        self._batteries.recharge(at)

    def off_s(self, begins: float, ends: float) -> float:
        """Device-seconds with an empty battery."""
        return self._batteries.off_s(begins, ends)


def rollout_seconds(tokens: Floats, size: int, prompt: int, speed: DeviceSpeed) -> Floats:
    """Seconds from the beginning of a step until each of its groups [S, P] has its tokens: all prompts are read first, one after the other;
    then groups decode as rows of one batch, each G rows until its last token."""
    prompts = tokens.shape[1]
    order = np.argsort(tokens, axis=1)
    ascending = np.take_along_axis(tokens, order, axis=1)
    left = prompts - np.arange(prompts)
    each_s = left / np.array([speed.decode_rate(int(groups) * size) for groups in left])
    ended = np.cumsum(np.diff(ascending, axis=1, prepend=0.0) * each_s, axis=1)
    seconds = np.empty_like(ended)
    np.put_along_axis(seconds, order, ended, axis=1)
    return np.asarray(prompts * prompt / speed.prefill_tokens_per_s + seconds)
