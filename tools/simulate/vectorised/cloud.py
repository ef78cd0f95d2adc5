"""The coordinator and the cloud behind it, for all calls of a stretch of time. Knows slots, budgets, rates, the breaker, outages and how
often a client tries again; knows nothing of questions, learning or links.

Of the coordinator's own code it uses what is pure: the breaker, prices, windows, floors. While the upstream is up nothing is taken one by
one that arrays can tell.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.calls.breaker import Breaker, BreakerState, Outcome, Pass
from edge.rpc.grpc_client import ClientPolicy
from tools.simulate.fleet.scenario import CloudPart, CoordinatorPart
from tools.simulate.fleet.spans import Span
from tools.simulate.vectorised.draws import Draws, Floats, Ints
from tools.simulate.vectorised.money import Bids, Buckets, Purse, charged
from tools.simulate.vectorised.slots import Slots

ANSWERED, REFUSED, FAILED = 0, 1, 2
POLICY = ClientPolicy()
COMMITS_S = 0.0055
"""What the ledger's two commits take on the simulated disk, on average."""
RETRY_AFTER_S = 1.0
"""What the coordinator says where its line is full."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls as they reach the coordinator, in any order. `patience_s`: until the client gives up; `hold_tokens` [2, N]: the
    most input and output tokens each can have; `place`: how many calls of the same
    learning step of the same device come before it."""

    who: Ints
    task: Ints
    at: Floats
    input_tokens: Ints
    output_tokens: Ints
    hold_tokens: Ints
    patience_s: Floats
    place: Ints

    @property
    def count(self) -> int:
        """How many."""
        return int(self.at.size)

    @classmethod
    def together(cls, batches: Sequence[Calls]) -> Calls:
        """Several behind each other."""
        if not batches:
            none = np.zeros(0, np.int64)
            return cls(none, none, np.zeros(0), none, none, np.zeros((2, 0), np.int64), np.zeros(0), none)
        return cls(*(np.concatenate([getattr(each, name) for each in batches], axis=-1) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Replies:
    """What became of calls: ANSWERED, REFUSED or FAILED; when the end of the reply left the coordinator (of a failure: when the client
    knew); what was charged."""

    outcome: Ints
    done_at: Floats
    spend_uusd: Ints
    charged_calls: Ints

    def part(self, first: int, last: int) -> Replies:
        """Those of these calls."""
        return Replies(*(getattr(self, name)[first:last] for name in self.__slots__))

    @classmethod
    def none(cls) -> Replies:
        """Of no calls."""
        none = np.zeros(0, np.int64)
        return cls(none, np.zeros(0), none, none)


class Cloud:
    """The coordinator's side. `down` and `gone`: spans of time in which the upstream refuses, and in which the coordinator is not there."""

    def __init__(
        self,
        part: CloudPart,
        coordinator: CoordinatorPart,
        devices: int,
        tasks: int,
        draws: Draws,
        down: Sequence[Span] = (),
        gone: Sequence[Span] = (),
    ) -> None:
        self._part = part
        self._draws = draws
        self._down = tuple(down)
        self._gone = tuple(gone)
        self.slots = Slots(part.slots, part.max_queue)
        self.purse = Purse(coordinator.budgets, coordinator.fleet.fairness_floor, devices, tasks)
        self._fleet_rate = Buckets(coordinator.rates.fleet, 1)
        self._device_rate = Buckets(coordinator.rates.device, devices)
        self._breaker = Breaker()
        self._queue_wait_s = coordinator.service.max_queue_wait_s
        self.errors: Counter[str] = Counter()

    def configure(self, coordinator: CoordinatorPart) -> None:
        """Hold later calls to this configuration."""
        self.purse.configure(coordinator.budgets, coordinator.fleet.fairness_floor)
        self._fleet_rate.configure(coordinator.rates.fleet)
        self._device_rate.configure(coordinator.rates.device)

    def ask(self, calls: Calls, now: float) -> Replies:
        """What becomes of these calls. `now`: seconds since the epoch."""
        self.purse.enter(now)
        ask = _Asking(self, calls)
        while ask.open.size:
            ask.once()
        return Replies(ask.outcome, ask.done_at, ask.spend_uusd, ask.charged_calls)


class _Asking:
    """Calls under way: each round takes all that are open, in the order of time."""

    def __init__(self, cloud: Cloud, calls: Calls) -> None:
        count, part = calls.count, cloud._part
        self._cloud, self._calls = cloud, calls
        self._at = calls.at.astype(np.float64)
        self._end = self._at + calls.patience_s
        self._tries = np.zeros(count, np.int64)
        first_s = cloud._draws.log_normals(count, part.first_token_s, part.spread).astype(np.float64)
        self._service_s = np.minimum(COMMITS_S + first_s + (calls.output_tokens - 1) / part.tokens_per_s, part.deadline_s)
        self._charge = charged(calls.input_tokens, calls.output_tokens, part.price_in_uusd_per_mtok, part.price_out_uusd_per_mtok)
        most = charged(calls.hold_tokens[0], calls.hold_tokens[1], part.price_in_uusd_per_mtok, part.price_out_uusd_per_mtok)
        self._hold = np.maximum(self._charge, most)
        self.open = np.arange(count)
        self.outcome = np.full(count, FAILED)
        self.done_at = self._at.copy()
        self.spend_uusd, self.charged_calls = np.zeros(count, np.int64), np.zeros(count, np.int64)

    def once(self) -> None:
        """One round; calls to be tried again stay open, with the time of their next try."""
        who = self.open[np.argsort(self._at[self.open], kind="stable")]
        self.open = who[:0]
        for step in (self._where_it_is_gone, self._where_it_is_down, self._too_fast, self._hopeless):
            if who.size:
                who = step(who)
        if who.size:
            self._serve(who)

    def _where_it_is_gone(self, who: Ints) -> Ints:
        """No coordinator: the client tries to connect for a while, and then answers by itself."""
        for begins, ends in self._cloud._gone:
            away = (self._at[who] >= begins) & (self._at[who] < ends)
            if away.any():
                lost = who[away]
                patience = np.minimum(self._at[lost] + POLICY.connect_timeout_s, self._end[lost])
                back = patience >= ends
                self._at[lost[back]] = ends
                self._fail(lost[~back], patience[~back])
                who = np.concatenate([who[~away], lost[back]])
                who = who[np.argsort(self._at[who], kind="stable")]
        return who

    def _where_it_is_down(self, who: Ints) -> Ints:
        """The upstream refuses, or its breaker is open: one by one, through the real breaker."""
        cloud = self._cloud
        last, first = float(self._at[who[-1]]), float(self._at[who[0]])
        troubled = any(begins <= last and first < ends for begins, ends in cloud._down)
        if troubled or cloud._breaker.state(first) is not BreakerState.CLOSED:
            return self._through_the_breaker(who)
        if not cloud._part.error_rate:
            return who
        failed = cloud._draws.coins(who.size, cloud._part.error_rate)
        again = cloud._draws.coins(who.size, cloud._part.error_rate)
        cloud.errors["refused"] += int(failed.sum() + (failed & again).sum())
        self._at[who[failed]] += POLICY.first_backoff_s * 0.75
        self._fail(who[failed & again], self._at[who[failed & again]])
        who = who[~(failed & again)]
        return who[np.argsort(self._at[who], kind="stable")]

    def _through_the_breaker(self, who: Ints) -> Ints:
        """Each try as the client makes it; a probe keeps the breaker half open until it ends."""
        line = [(float(self._at[one]), int(one), 0, 0) for one in who]
        heapq.heapify(line)
        probes: dict[int, Pass] = {}
        passed_on: list[int] = []
        while line:
            at, one, tries, failures = heapq.heappop(line)
            if one < 0:
                self._cloud._breaker.leave(probes.pop(-1 - one), Outcome.GOOD, at)
                continue
            delay_s, failures, leave = self._tried(at, tries, failures)
            if leave is not None:
                self._at[one] = at
                passed_on.append(one)
                if leave.probe:
                    probes[one] = leave
                    heapq.heappush(line, (at + float(self._service_s[one]), -1 - one, 0, 0))
                else:
                    self._cloud._breaker.leave(leave, Outcome.GOOD, at)
            elif failures >= POLICY.max_upstream_failures or tries > POLICY.max_retries or delay_s >= self._end[one] - at:
                self._fail(np.array([one]), np.array([at]))
            else:
                heapq.heappush(line, (at + delay_s, one, tries + 1, failures))
        return np.array(passed_on, np.int64)

    def _tried(self, at: float, tries: int, failures: int) -> tuple[float, int, Pass | None]:
        """A try: seconds until the next one, the upstream's failures so far, and leave to ask an upstream that is there."""
        cloud, breaker = self._cloud, self._cloud._breaker
        leave, delay_s = breaker.enter(at), POLICY.first_backoff_s * 2.0 ** max(0, tries - 1) * 0.75
        if leave is None:
            return max(delay_s, breaker.wait_s(at)), failures, None
        if not any(begins <= at < ends for begins, ends in cloud._down):
            return 0.0, failures, leave
        breaker.leave(leave, Outcome.BAD, at)
        cloud.errors["down"] += 1
        return delay_s, failures + 1, None

    def _too_fast(self, who: Ints) -> Ints:
        cloud, zero = self._cloud, np.zeros(who.size, np.int64)
        waits = cloud._fleet_rate.waits_s(zero, self._at[who])
        slow = waits > 0.0
        waits[~slow] = cloud._device_rate.waits_s(self._calls.who[who[~slow]], self._at[who[~slow]])
        slow = waits > 0.0
        self._again(who[slow], np.maximum(waits[slow], self._backoff_s(who[slow])))
        return who[~slow]

    def _hopeless(self, who: Ints) -> Ints:
        left = self._cloud.purse.may_fit(self._bids(who, self._at[who]))
        self._refuse(who[~left], self._at[who[~left]])
        return who[left]

    def _serve(self, who: Ints) -> None:
        cloud = self._cloud
        patience = np.minimum(cloud._queue_wait_s, self._end[who] - self._at[who])
        served = cloud.slots.serve(self._at[who], self._service_s[who], patience)
        full = who[~served.taken]
        self._at[full] = served.begins[~served.taken]
        self._again(full, np.maximum(RETRY_AFTER_S, self._backoff_s(full)))
        who, begins, ends = who[served.taken], served.begins[served.taken], served.ends[served.taken]
        if not who.size:
            return
        order = np.argsort(begins, kind="stable")
        who, begins, ends = who[order], begins[order], ends[order]
        taken = cloud.purse.admit(self._bids(who, ends))
        self._refuse(who[~taken], begins[~taken])
        self._answer(who[taken], begins[taken], ends[taken])

    def _answer(self, who: Ints, begins: Floats, ends: Floats) -> None:
        cloud = self._cloud
        self.charged_calls[who] = 1
        self.spend_uusd[who] = self._charge[2, who]
        late = ends > self._end[who]
        in_time = ~late
        for killed, back in cloud._gone:
            cut = (begins < killed) & (ends > killed)
            if cut.any():
                self.spend_uusd[who[cut]] = self._hold[2, who[cut]]
                self._fail(who[cut], np.minimum(back, self._end[who[cut]]))
                in_time &= ~cut
                late &= ~cut
        self.spend_uusd[who[late]] = self._hold[2, who[late]]
        cloud.errors["deadline"] += int(late.sum())
        self._fail(who[late], self._end[who[late]])
        kept = who[in_time]
        self.outcome[kept] = ANSWERED
        self.done_at[kept] = ends[in_time]

    def _bids(self, who: Ints, until: Floats) -> Bids:
        calls = self._calls
        return Bids(
            calls.who[who], calls.task[who], self._at[who], until, self._hold[:, who], self._charge[:, who], calls.place[who]
        )

    def _backoff_s(self, who: Ints) -> Floats:
        ceiling = np.minimum(POLICY.max_backoff_s, POLICY.first_backoff_s * 2.0 ** self._tries[who])
        return np.asarray(ceiling * (0.5 + 0.5 * self._cloud._draws.uniforms(who.size)))

    def _again(self, who: Ints, delay_s: Floats) -> None:
        """Try again later, or give up where time or patience is over."""
        if not who.size:
            return
        self._tries[who] += 1
        over = (self._tries[who] > POLICY.max_retries) | (delay_s >= self._end[who] - self._at[who])
        self._fail(who[over], self._at[who[over]])
        self._at[who[~over]] += delay_s[~over]
        self.open = np.concatenate([self.open, who[~over]])

    def _fail(self, who: Ints, at: Floats) -> None:
        self.done_at[who] = at

    def _refuse(self, who: Ints, at: Floats) -> None:
        self.outcome[who] = REFUSED
        self.done_at[who] = at
