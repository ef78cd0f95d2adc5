"""The coordinator and the cloud behind it, for all calls of a stretch of time: slots, the line before them, and budgets."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge.rpc.grpc_client import ClientPolicy
from tools.simulate.fleet.scenario import CloudPart, CoordinatorPart
from tools.simulate.vectorised.budgets import Bids, Budgets, charged
from tools.simulate.vectorised.draws import Bools, Draws, Floats, Ints

ANSWERED, REFUSED, FAILED = 0, 1, 2
POLICY = ClientPolicy()
COMMITS_S = 0.0055
"""What the ledger's two commits take on the simulated disk, on average."""
RETRY_AFTER_S = 1.0
"""What the coordinator says where its line is full."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls as they reach the coordinator, in any order. `patience_s`: until the client gives up; `hold_tokens` [2, N]: the most input and
    output tokens each can have."""

    who: Ints
    task: Ints
    at: Floats
    input_tokens: Ints
    output_tokens: Ints
    hold_tokens: Ints
    patience_s: Floats

    @property
    def count(self) -> int:
        """How many."""
        return int(self.at.size)

    @classmethod
    def together(cls, batches: Sequence[Calls]) -> Calls:
        """Several behind each other."""
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


@dataclass(frozen=True, slots=True)
class Served:
    """When each call got its slot and gave it back; `taken` is False for those that found the line full or waited too long, which are
    told so at `begins`."""

    taken: Bools
    begins: Floats
    ends: Floats


class Slots:
    """The upstream's `slots`, and a line of at most `max_queue` before them: first come, first served.

    While all calls that are under way have a slot, that is seen from arrays alone; only where calls must wait are they taken one by one.
    """

    def __init__(self, slots: int, max_queue: int) -> None:
        self._slots = slots
        self._max_queue = max_queue
        self._ends = np.zeros(0)
        self._starts: deque[float] = deque()
        self.longest_queue = 0
        self.most_in_flight = 0

    def serve(self, arrives: Floats, takes_s: Floats, patience_s: Floats) -> Served:
        """Calls in the order of their arrival, each waiting for at most `patience_s`."""
        if not arrives.size:
            return Served(np.zeros(0, bool), arrives, arrives)
        first = float(arrives[0])
        self._ends = self._ends[self._ends > first]
        while self._starts and self._starts[0] <= first:
            self._starts.popleft()
        ends = arrives + takes_s
        ended = np.searchsorted(np.sort(ends), arrives, side="right")
        before = self._ends.size - np.searchsorted(np.sort(self._ends), arrives, side="right")
        most = int((np.arange(1, arrives.size + 1) - ended + before).max())
        if self._starts or most > self._slots:
            return self._one_by_one(arrives, takes_s, patience_s)
        self.most_in_flight = max(self.most_in_flight, most)
        self._ends = np.concatenate([self._ends, ends])
        return Served(np.ones(arrives.size, bool), arrives, ends)

    def reset_peaks(self) -> None:
        """Begin another interval of the report."""
        self.longest_queue = self.most_in_flight = 0

    def _one_by_one(self, arrives: Floats, takes_s: Floats, patience_s: Floats) -> Served:
        free = heapq.nlargest(self._slots, [0.0] * max(0, self._slots - self._ends.size) + self._ends.tolist())
        heapq.heapify(free)
        taken, begins, ends = np.ones(arrives.size, bool), arrives.copy(), arrives.copy()
        calls = zip(arrives.tolist(), takes_s.tolist(), patience_s.tolist(), strict=True)
        for place, (arrival, takes, patience) in enumerate(calls):
            while self._starts and self._starts[0] <= arrival:
                self._starts.popleft()
            start = max(arrival, free[0])
            full = len(self._starts) >= self._max_queue
            if start > arrival and (full or start - arrival > patience):
                taken[place] = False
                begins[place] = ends[place] = arrival + (0.0 if full else patience)
                continue
            if start > arrival:
                self._starts.append(start)
                self.longest_queue = max(self.longest_queue, len(self._starts))
            heapq.heapreplace(free, start + takes)
            begins[place], ends[place] = start, start + takes
        self.most_in_flight = self._slots
        self._ends = np.asarray(free)
        return Served(taken, begins, ends)


class Cloud:
    """The coordinator's side."""

    def __init__(self, part: CloudPart, coordinator: CoordinatorPart, devices: int, tasks: int, draws: Draws) -> None:
        self.part = part
        self.draws = draws
        self.slots = Slots(part.slots, part.max_queue)
        self.budgets = Budgets(coordinator.budgets, coordinator.fleet.fairness_floor, devices, tasks)
        self.queue_wait_s = coordinator.service.max_queue_wait_s
        self.errors: Counter[str] = Counter()

    def configure(self, coordinator: CoordinatorPart) -> None:
        """Hold later calls to this configuration."""
        self.budgets.configure(coordinator.budgets, coordinator.fleet.fairness_floor)

    def ask(self, calls: Calls, now: float) -> Replies:
        """What becomes of these calls. `now`: seconds since the epoch."""
        self.budgets.enter(now)
        ask = _Asking(self, calls)
        while ask.open.size:
            ask.once()
        return Replies(ask.outcome, ask.done_at, ask.spend_uusd, ask.charged_calls)


class _Asking:
    """Calls under way: each round takes all that are open, in the order of time."""

    def __init__(self, cloud: Cloud, calls: Calls) -> None:
        count, part = calls.count, cloud.part
        self._cloud, self._calls = cloud, calls
        self._at = calls.at.astype(np.float64)
        self._end = self._at + calls.patience_s
        self._tries = np.zeros(count, np.int64)
        first_s = cloud.draws.log_normals(count, part.first_token_s, part.spread).astype(np.float64)
        self._service_s = np.minimum(COMMITS_S + first_s + (calls.output_tokens - 1) / part.tokens_per_s, part.deadline_s)
        prices = part.price_in_uusd_per_mtok, part.price_out_uusd_per_mtok
        self._charge = charged(calls.input_tokens, calls.output_tokens, *prices)
        self._hold = np.maximum(self._charge, charged(calls.hold_tokens[0], calls.hold_tokens[1], *prices))
        self.open = np.arange(count)
        self.outcome = np.full(count, FAILED)
        self.done_at = self._at.copy()
        self.spend_uusd, self.charged_calls = np.zeros(count, np.int64), np.zeros(count, np.int64)

    def once(self) -> None:
        """One round; calls to be tried again stay open, with the time of their next try."""
        cloud, who = self._cloud, self.open[np.argsort(self._at[self.open], kind="stable")]
        self.open = who[:0]
        hopeful = cloud.budgets.may_fit(self._bids(who, self._at[who]))
        self._refuse(who[~hopeful], self._at[who[~hopeful]])
        who = who[hopeful]
        patience = np.minimum(cloud.queue_wait_s, self._end[who] - self._at[who])
        served = cloud.slots.serve(self._at[who], self._service_s[who], patience)
        full = who[~served.taken]
        self._at[full] = served.begins[~served.taken]
        self._again(full)
        who, begins, ends = who[served.taken], served.begins[served.taken], served.ends[served.taken]
        if not who.size:
            return
        order = np.argsort(begins, kind="stable")
        who, begins, ends = who[order], begins[order], ends[order]
        taken = cloud.budgets.admit(self._bids(who, ends))
        self._refuse(who[~taken], begins[~taken])
        self._answer(who[taken], ends[taken])

    def _answer(self, who: Ints, ends: Floats) -> None:
        """What ends after its client's patience is charged at its hold."""
        self.charged_calls[who] = 1
        self.spend_uusd[who] = self._charge[2, who]
        late = ends > self._end[who]
        self.spend_uusd[who[late]] = self._hold[2, who[late]]
        self._cloud.errors["deadline"] += int(late.sum())
        self.done_at[who] = np.minimum(ends, self._end[who])
        self.outcome[who[~late]] = ANSWERED

    def _bids(self, who: Ints, until: Floats) -> Bids:
        calls = self._calls
        return Bids(calls.who[who], calls.task[who], self._at[who], until, self._hold[:, who], self._charge[:, who])

    def _again(self, who: Ints) -> None:
        """Try again later, or give up where time or patience is over."""
        if not who.size:
            return
        ceiling = np.minimum(POLICY.max_backoff_s, POLICY.first_backoff_s * 2.0 ** self._tries[who])
        delay_s = np.maximum(RETRY_AFTER_S, ceiling * (0.5 + 0.5 * self._cloud.draws.uniforms(who.size)))
        self._tries[who] += 1
        over = (self._tries[who] > POLICY.max_retries) | (delay_s >= self._end[who] - self._at[who])
        self.done_at[who[over]] = self._at[who[over]]
        self._at[who[~over]] += delay_s[~over]
        self.open = np.concatenate([self.open, who[~over]])

    def _refuse(self, who: Ints, at: Floats) -> None:
        self.outcome[who] = REFUSED
        self.done_at[who] = at
