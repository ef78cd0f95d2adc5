"""The upstream's slots and the line before them. Knows arrivals and service times; knows nothing of money, devices or what a call is.

First come, first served, exact for calls that are handed in by the time of their arrival. While all calls that are under way have a slot,
that is seen from arrays alone; only where calls must wait are they taken one by one.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from tools.simulate.vectorised.draws import Bools, Floats


@dataclass(frozen=True, slots=True)
class Served:
    """When each call got its slot and gave it back; `taken` is False for those that found the line full or waited too long, which are
    told so at `begins`."""

    taken: Bools
    begins: Floats
    ends: Floats


class Slots:
    """`slots` calls at once, at most `max_queue` waiting."""

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
        flying = self._flying(arrives, ends)
        if not self._starts and int(flying.max()) <= self._slots:
            self.most_in_flight = max(self.most_in_flight, int(flying.max()))
            self._ends = np.concatenate([self._ends, ends])
            return Served(np.ones(arrives.size, bool), arrives, ends)
        return self._one_by_one(arrives, takes_s, patience_s)

    def reset_peaks(self) -> None:
        """Begin another interval of the report."""
        self.longest_queue = self.most_in_flight = 0

    def lose_all(self) -> None:
        """The process died: nothing is under way any more."""
        self._ends = np.zeros(0)
        self._starts.clear()

    def _flying(self, arrives: Floats, ends: Floats) -> Floats:
        """How many are under way just after each arrival where nobody has to wait."""
        ended = np.searchsorted(np.sort(ends), arrives, side="right")
        before = self._ends.size - np.searchsorted(np.sort(self._ends), arrives, side="right")
        return np.arange(1, arrives.size + 1) - ended + before

    def _one_by_one(self, arrives: Floats, takes_s: Floats, patience_s: Floats) -> Served:
        free = [0.0] * max(0, self._slots - self._ends.size) + self._ends.tolist()
        free = heapq.nlargest(self._slots, free)
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
