"""Links of a group's devices. Knows delays, losses, outages and offline hours, and how long they took; knows nothing of what is sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.simulate.fleet.hardware import LinkModel
from tools.simulate.fleet.spans import ENDLESS, Span, daily, hours_of_a_day, united
from tools.simulate.vectorised.draws import Bools, Draws, Floats, Ints

HOUR_S = 3600.0
OVERHEAD_BYTES = 120.0
"""Of every message, as `fleet.link` counts it."""


class FleetLinks:
    """One link for each device. `cut`: spans of time in which an event cuts them all; `starts_at_h`: the local clock at second 0."""

    def __init__(self, model: LinkModel, devices: int, draws: Draws, cut: Sequence[Span], starts_at_h: float) -> None:
        self.model = model
        self._devices = devices
        self._draws = draws
        off_h = 0.0 if model.offline_hours is None else hours_of_a_day(model.offline_hours)
        self._cut = (*cut, *([ENDLESS] if off_h == 24.0 else []))
        self._offline = model.offline_hours if 0.0 < off_h < 24.0 else None
        self._starts_at_h = starts_at_h
        flaps = model.mean_up_s is not None and model.mean_down_s > 0.0
        self._up = np.ones(devices if flaps else 0, bool)
        self._changes = np.zeros(0)
        self._down_since = np.zeros(self._up.size)
        self._over: list[tuple[Floats, Floats]] = []
        if flaps and model.mean_up_s is not None:
            self._changes = self._stay_s(self._up)

    def are_up(self, who: Ints, at: Floats) -> Bools:
        """Whether each device's link carries anything then; times of one device must not go back by more than an outage lasts."""
        up = np.ones(who.size, bool)
        for begins, ends in self._cut:
            up &= (at < begins) | (at >= ends)
        if self._offline is not None:
            up &= ~_within((self._starts_at_h + at / HOUR_S) % 24.0, self._offline)
        if self._changes.size:
            self._advance(who, at)
            up &= self._up[who]
        return up

    def up_again(self, who: Ints, at: Floats) -> Floats:
        """When each device's link carries something again; the time itself while it does."""
        again = at.astype(np.float64)
        if self._changes.size:
            again = np.where(self.are_up(who, at), again, np.maximum(again, np.where(self._up[who], again, self._changes[who])))
        for _ in range(2):
            for begins, ends in self._cut:
                again = np.where((again >= begins) & (again < ends), ends, again)
            if self._offline is not None:
                hour = (self._starts_at_h + again / HOUR_S) % 24.0
                left_h = (self._offline[1] - hour) % 24.0
                again = np.where(_within(hour, self._offline), again + left_h * HOUR_S, again)
        return again

    def share_up(self, begins: float, ends: float, gone: Sequence[Span]) -> float:
        """Share of an interval in which a device's link is up and nobody is `gone` from its other end, on average over the devices. What
        was over before an interval that was asked about is forgotten."""
        hours = [] if self._offline is None else daily(self._offline, self._starts_at_h, begins, ends)
        down = united([*self._cut, *gone, *hours], begins, ends)
        edges = np.array([begins, *(edge for span in down for edge in span), ends])
        open_s = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(edges.size - 1) % 2 == 0))])
        lost_s = self._flapped_s(edges, open_s) if self._changes.size else 0.0
        return (float(open_s[-1]) - lost_s / self._devices) / (ends - begins)

    def _flapped_s(self, edges: Floats, open_s: Floats) -> float:
        """Device-seconds of outages by chance, counted where `open_s`, which is cumulated over the edges, grows."""
        ends = float(edges[-1])
        self._advance(np.arange(self._devices), np.full(self._devices, ends))
        now_down = self._down_since[~self._up]
        spans = [*self._over, (now_down, np.full(now_down.size, ends))]
        self._over = [(first[last > ends], last[last > ends]) for first, last in self._over if (last > ends).any()]
        return float(sum((np.interp(last, edges, open_s) - np.interp(first, edges, open_s)).sum() for first, last in spans))

    def delays_s(self, count: int, size_bytes: float, *, up: bool) -> Floats:
        """Seconds that messages of this size take in one direction."""
        model, draws = self.model, self._draws
        rate = model.up_bytes_per_s if up else model.down_bytes_per_s
        delay = model.rtt_s / 2.0 + draws.exponentials(count, model.jitter_s / 2.0) + (size_bytes + OVERHEAD_BYTES) / rate
        if model.loss > 0.0:
            delay = delay + model.retransmit_s * draws.failures(count, model.loss)
        return np.asarray(delay)

    def _advance(self, who: Ints, at: Floats) -> None:
        while (due := self._changes[who] <= at).any():
            ended = np.unique(who[due])
            back = ended[~self._up[ended]]
            self._over.append((self._down_since[back], self._changes[back]))
            self._down_since[ended] = self._changes[ended]
            self._up[ended] = ~self._up[ended]
            self._changes[ended] += self._stay_s(self._up[ended])

    def _stay_s(self, up: Bools) -> Floats:
        stay = self._draws.exponentials(up.size, 1.0).astype(np.float64)
        return np.asarray(stay * np.where(up, self.model.mean_up_s or 0.0, self.model.mean_down_s))


def _within(hour: Floats, span: tuple[float, float]) -> Bools:
    begins, ends = span
    return np.asarray((hour >= begins) & (hour < ends) if begins <= ends else (hour >= begins) | (hour < ends))
