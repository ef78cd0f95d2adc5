"""The devices of one group: who is asked what, where it is answered and how long it takes; learning steps between. Knows one group's state
as arrays; knows nothing of other groups, of budgets or of how the cloud is shared.

A device works on one question at a time. What it needs from the cloud is handed out as `Calls` and taken back as `Replies`, so that the
engine can put the calls of all groups into the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from edge.config.schema import CoordinatorConfig, ServeConfig
from edge.rpc.grpc_client import ClientPolicy
from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.fleet.mind import Mind, cloud_right, help_log_odds, right_log_odds, sigmoid
from tools.simulate.fleet.scenario import GroupPart, Scenario
from tools.simulate.vectorised import lessons
from tools.simulate.vectorised.cloud import ANSWERED, REFUSED, Calls, Replies
from tools.simulate.vectorised.dials import FleetDials, Settings
from tools.simulate.vectorised.draws import Bools, Draws, Floats, Ints
from tools.simulate.vectorised.links import FleetLinks
from tools.simulate.vectorised.prices import Duals
from tools.simulate.vectorised.schedule import Timetable
from tools.simulate.vectorised.tally import Tally

LOCAL, CLOUD, FALLBACK = 0, 1, 2
"""Places in `reports.result.SOURCES`."""
CONNECT_S = ClientPolicy().connect_timeout_s
SERVE_DEADLINE_S: float = ServeConfig().cloud_deadline_s
TRAIN_DEADLINE_S: float = CoordinatorConfig().call_deadline_s
MAX_OUTPUT_TOKENS: int = CoordinatorConfig().max_output_tokens
HOUR_S, DAY_S = 3600.0, 86400.0
BYTES_OF_A_MESSAGE = 400.0
BYTES_OF_A_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Round:
    """One question each of several devices, answered as far as the device alone can."""

    who: Ints
    arrived: Floats
    begins: Floats
    decided: Floats
    difficulty: Floats
    right: Bools
    asked: Bools
    local_tokens: Floats
    cloud_tokens: Ints
    reached: Bools


@dataclass(frozen=True, slots=True)
class Steps:
    """Learning steps under way. `ready` is when the rollouts end unless somebody is served meanwhile; `served_s` what the device had served
    when the step began. `verdict` [S, P]: what became of each group's call."""

    who: Ints
    begins: Floats
    ready: Floats
    served_s: Floats
    dual: Floats
    target: Floats
    credit: Ints
    offline: Bools
    tokens: Floats
    groups: lessons.Groups
    verdict: Ints

    def of(self, kept: Bools) -> Steps:
        """Some of them."""
        parts = {name: getattr(self, name)[kept] for name in self.__slots__ if name != "groups"}
        return Steps(groups=self.groups.of(kept), **parts)


class Devices:
    """All devices of a group. `offset`: the number of the first one in the fleet; `task`: the number of their task."""

    def __init__(
        self, part: GroupPart, scenario: Scenario, speed: DeviceSpeed, links: FleetLinks, tally: Tally, draws: Draws, offset: int, task: int
    ) -> None:
        self.part, self.speed, self.links, self.tally = part, speed, links, tally
        self.offset, self.task = offset, task
        self._scenario = scenario
        self._draws = draws
        self._nature, self._rates = part.nature.value(), part.rates.value()
        self._first = part.mind.value()
        count = part.devices
        self._free_at = np.zeros(count)
        self._served_s = np.zeros(count)
        self._learns_until = np.zeros(count)
        self._steps = np.zeros(count, np.int32)
        learns = part.learning is not None
        self._theta = np.zeros((3, count if learns else 0), np.float32)
        self._theta[:] = np.array([self._first.skill, self._first.ask, self._first.ask_slope], np.float32)[:, None]
        self._dials = FleetDials(count, part.dial) if part.dial is not None else None
        self._timetable = Timetable(part.learning, count, scenario, draws) if part.learning is not None else None
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
        """Each of these devices is asked a question."""
        part, draws, count = self.part, self._draws, who.size
        difficulty = draws.within_unit(count, part.difficulty.mean_at(float(arrived[0])), part.difficulty.spread)
        mind = self._mind(who)
        log_odds = help_log_odds(mind, self._nature, difficulty, draws.normals(count)).astype(np.float32)
        settings = None if self._dials is None else self._dials.settings(who)
        bias = np.float32(0.0) if settings is None else settings.bias
        broken = draws.coins(count, self._nature.broken)
        asked = (log_odds + bias > 0.0) & ~broken
        self._tell_dials(who, settings, asked, log_odds, broken)
        right = (draws.uniforms(count) < sigmoid(right_log_odds(mind, self._nature, difficulty))) & ~broken
        begins = np.maximum(arrived, self._free_at[who])
        tokens = np.maximum(1.0, np.rint(draws.log_normals(count, part.tokens.local, part.tokens.local_spread)))
        said = np.where(asked, np.ceil(tokens * part.tokens.asking_share), tokens)
        decided = begins + self._prefill_s + said / self.speed.decode_rate(1)
        cloud_tokens = self._cloud_tokens(count)
        return Round(who, arrived, begins, decided, difficulty, right, asked, tokens, cloud_tokens, self.links.are_up(who, decided))

    def calls(self, asked: Round) -> tuple[Calls, Ints]:
        """The calls of a round as they reach the coordinator, and the places in it that they are of."""
        places = np.flatnonzero(asked.asked & asked.reached)
        at = asked.decided[places] + self.links.delays_s(places.size, self._request_bytes, up=True)
        return self._calls_of(asked.who[places], at, asked.cloud_tokens[places], SERVE_DEADLINE_S, np.zeros(places.size, np.int64)), places

    def answer(self, asked: Round, places: Ints, replies: Replies) -> None:
        """The round's answers, with what became of its calls."""
        count, part = asked.who.size, self.part
        source = np.where(asked.asked, FALLBACK, LOCAL)
        got = replies.outcome == ANSWERED
        source[places[got]] = CLOUD
        known = np.where(asked.asked, asked.decided + CONNECT_S, asked.decided)
        first = self._first_letter(asked)
        back = self.links.delays_s(places.size, BYTES_OF_A_MESSAGE + BYTES_OF_A_TOKEN * asked.cloud_tokens[places], up=False)
        known[places] = replies.done_at + back
        rest = np.ceil(asked.local_tokens * (1.0 - part.tokens.asking_share)) / self.speed.decode_rate(1)
        again_s = np.where(source == FALLBACK, self._prefill_s + rest, 0.0)
        done = known + again_s
        right = asked.right.copy()
        chance = cloud_right(self._nature, asked.difficulty[places[got]])
        right[places[got]] = self._draws.uniforms(int(got.sum())) < chance
        self._free_at[asked.who] = done
        self._served_s[asked.who] += done - asked.begins
        self.tally.worked(asked.begins, asked.decided - asked.begins + again_s)
        in_time = done <= self._scenario.lasts_s
        kept = [values[in_time] for values in (done, source, first - asked.arrived, done - asked.arrived, right)]
        self.tally.answered(*kept)
        charged = replies.charged_calls > 0
        if charged.any():
            who = asked.who[places[charged]]
            self.tally.called(replies.done_at[charged], who, replies.charged_calls[charged], replies.spend_uusd[charged])
        assert count == done.size

    def _first_letter(self, asked: Round) -> Floats:
        """When the first visible letter came: the local model's own, which is shown whether it asks later or not."""
        return asked.begins + self._prefill_s + 1.0 / self.speed.decode_rate(1)

    def _tell_dials(self, who: Ints, settings: Settings | None, asked: Bools, log_odds: Floats, broken: Bools) -> None:
        if self._dials is not None and settings is not None:
            self._dials.answered(who, settings, asked, np.where(broken, np.float32(np.inf), log_odds))

    # learning --------------------------------------------------------------------------------------------------------------------

    def begin_steps(self, begins: float, ends: float, duals: Duals, now: float) -> None:
        """Steps that begin in this time."""
        learning = self.part.learning
        if learning is None or self._timetable is None:
            return
        who, due = self._timetable.due(begins, ends)
        if not who.size:
            return
        at = np.maximum(due, np.maximum(self._free_at[who], self._learns_until[who]))
        self._rolling.append(self._begun(who, at, duals, now))

    def _begun(self, who: Ints, at: Floats, duals: Duals, now: float) -> Steps:
        learning, draws = self.part.learning, self._draws
        assert learning is not None
        prompts, size = learning.prompts_per_step, learning.group_size
        online = self.links.are_up(who, at)
        difficulty = draws.within_unit(
            who.size * prompts, self.part.difficulty.mean_at(float(at[0])), self.part.difficulty.spread
        ).reshape(who.size, prompts)
        groups = lessons.sampled(self._mind(who), self._nature, difficulty, draws, size)
        target = duals.targets(self.task, self._steps[who], now)
        dual = duals.open(self.task, who + self.offset, prompts * size, float(at[0]))
        tokens = self._rollout_tokens(groups)
        rollout_s = prompts * self.part.tokens.prompt / self.speed.prefill_tokens_per_s + tokens / self.speed.decode_rate(prompts * size)
        self._steps[who] += 1
        self._learns_until[who] = at + rollout_s
        return Steps(
            who=who,
            begins=at,
            ready=at + rollout_s,
            served_s=self._served_s[who],
            dual=dual,
            target=target,
            credit=duals.credits(self.task, target, prompts),
            offline=~online,
            tokens=tokens,
            groups=groups,
            verdict=np.where(groups.asked > 0, lessons.MASKED, lessons.NONE),
        )

    def _rollout_tokens(self, groups: lessons.Groups) -> Floats:
        """Tokens of all responses of each step: a sum of many log-normals, taken as normal."""
        part = self.part.tokens
        mean = part.local * np.exp(part.local_spread**2 / 2.0)
        variance = mean**2 * (np.exp(part.local_spread**2) - 1.0)
        asked = groups.asked.sum(axis=1).astype(np.float64)
        whole = groups.difficulty.shape[1] * groups.size - asked
        spread = np.sqrt(variance * (whole + asked * part.asking_share**2))
        return np.maximum(1.0, mean * (whole + asked * part.asking_share) + spread * self._draws.normals(asked.size))

    def training_calls(self, ends: float) -> tuple[Steps, Calls, Ints, Ints] | None:
        """The calls of steps whose rollouts end before `ends`: the steps, their calls, and step and prompt of each; None for no step."""
        ready: list[Steps] = []
        waiting: list[Steps] = []
        for steps in self._rolling:
            at = steps.ready + (self._served_s[steps.who] - steps.served_s)
            now = at < ends
            if now.any():
                ready.append(replace(steps.of(now), ready=at[now]))
            if not now.all():
                waiting.append(steps.of(~now))
        self._rolling = waiting
        if not ready:
            return None
        steps = joined(ready)
        step, prompt = np.nonzero((steps.groups.asked > 0) & ~steps.offline[:, None])
        place = (np.cumsum(steps.groups.asked > 0, axis=1) - 1)[step, prompt]
        granted = place < steps.credit[step]
        steps.verdict[step[~granted], prompt[~granted]] = lessons.REFUSED
        self.tally.refused["step"] += int((~granted).sum())
        step, prompt, place = step[granted], prompt[granted], place[granted]
        at = steps.ready[step] + self.links.delays_s(step.size, self._request_bytes, up=True)
        return steps, self._calls_of(steps.who[step], at, self._cloud_tokens(step.size), TRAIN_DEADLINE_S, place), step, prompt

    def end_rollouts(self, steps: Steps, step: Ints, prompt: Ints, replies: Replies) -> None:
        """The steps' calls are answered: they go on with the update."""
        right = self._draws.uniforms(step.size) < cloud_right(self._nature, steps.groups.difficulty[step, prompt])
        verdict = np.where(right, lessons.RIGHT, lessons.WRONG)
        verdict = np.where(replies.outcome == ANSWERED, verdict, np.where(replies.outcome == REFUSED, lessons.REFUSED, lessons.MASKED))
        steps.verdict[step, prompt] = verdict
        last = steps.ready.copy()
        np.maximum.at(last, step, replies.done_at + self.links.model.rtt_s / 2.0)
        update_s = self._update_s(steps)
        ends = last + update_s + np.where(steps.offline, 0.0, self.links.model.rtt_s)
        self._learns_until[steps.who] = ends
        self.tally.worked(steps.begins, steps.ready - steps.begins + update_s)
        charged = replies.charged_calls > 0
        if charged.any():
            who = steps.who[step[charged]]
            self.tally.called(replies.done_at[charged], who, replies.charged_calls[charged], replies.spend_uusd[charged])
        self._closing.append((ends, steps))

    def _update_s(self, steps: Steps) -> Floats:
        learning = self.part.learning
        assert learning is not None
        prompts = learning.prompts_per_step * learning.group_size * self.part.tokens.prompt
        return np.asarray((steps.tokens + prompts) / self.speed.training_tokens_per_s)

    def close_steps(self, until: float, duals: Duals) -> None:
        """Steps that end before `until`: θ and λ move."""
        waiting: list[tuple[Floats, Steps]] = []
        for ends, steps in self._closing:
            now = ends < until
            if now.any():
                self._close(ends[now], steps.of(now), duals)
            if not now.all():
                waiting.append((ends[~now], steps.of(~now)))
        self._closing = waiting

    def _close(self, ends: Floats, steps: Steps, duals: Duals) -> None:
        order = np.argsort(ends, kind="stable")
        ends, steps = ends[order], steps.of(order)
        mind = lessons.learned(self._mind(steps.who), self._nature, self._rates, steps.groups, steps.verdict, steps.dual)
        for row, value in enumerate((mind.skill, mind.ask, mind.ask_slope)):
            self._theta[row, steps.who] = value
        if self._dials is not None:
            self._dials.new_adapter(steps.who)
        units = steps.groups.difficulty.shape[1] * steps.groups.size
        rate = steps.groups.asked.sum(axis=1) / units
        self.tally.learned(ends, rate)
        told = ~steps.offline
        if told.any():
            every = np.full(int(told.sum()), units)
            duals.close(self.task, steps.who[told] + self.offset, ends[told], rate[told], steps.target[told], every)

    # both ------------------------------------------------------------------------------------------------------------------------

    def _mind(self, who: Ints) -> Mind:
        if not self._theta.size:
            return self._first
        return Mind(*self._theta[:, who])

    def _cloud_tokens(self, count: int) -> Ints:
        part = self.part.tokens
        return np.clip(np.rint(self._draws.log_normals(count, part.cloud, part.cloud_spread)), 1, MAX_OUTPUT_TOKENS).astype(np.int64)

    def _calls_of(self, who: Ints, at: Floats, tokens: Ints, patience_s: float, place: Ints) -> Calls:
        prompt = self.part.tokens.prompt
        return Calls(
            who=who + self.offset,
            task=np.full(who.size, self.task),
            at=at,
            input_tokens=np.full(who.size, prompt),
            output_tokens=tokens,
            hold_tokens=np.full((2, who.size), [[prompt], [MAX_OUTPUT_TOKENS]]),
            patience_s=np.full(who.size, patience_s),
            place=place,
        )

    @property
    def _prefill_s(self) -> float:
        return self.part.tokens.prompt / self.speed.prefill_tokens_per_s + self.speed.overhead_s

    @property
    def _request_bytes(self) -> float:
        return BYTES_OF_A_MESSAGE + BYTES_OF_A_TOKEN * self.part.tokens.prompt


def joined(parts: list[Steps]) -> Steps:
    """Several behind each other."""
    if len(parts) == 1:
        return parts[0]
    groups = lessons.Groups(*(np.concatenate([getattr(part.groups, name) for part in parts]) for name in lessons.Groups.__slots__))
    names = [name for name in Steps.__slots__ if name != "groups"]
    return Steps(groups=groups, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
