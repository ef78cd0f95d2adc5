"""When learning may use this machine: people first, a pause, power, heat, load, hours and disk space."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from edge.config.schema import WhenConfig
from edge.core.clock import Clock
from edge.core.concurrency import ServingPrecedence
from edge.core.events import Event, EventSink
from edge.core.formatting import counted
from edge.state.events import LearningResumed, LearningWaits, Notice, RunStarted, StepFinished, StepProgress
from edge.state.folder import StateFolder


@dataclass(frozen=True, slots=True)
class Readings:
    """What a machine reports of itself; None where it does not. `other_load`: share of its processors that other programs keep busy."""

    on_mains: bool | None = None
    battery_percent: float | None = None
    temperature_c: float | None = None
    other_load: float | None = None


class Probe(Protocol):
    """Reads the machine."""

    def read(self) -> Readings:
        """The present readings; never raises."""
        ...


class LearningConditions(Protocol):
    """Whether learning may go on."""

    check_s: float

    def waiting_for(self, now: float, quiet_s: float) -> str:
        """Why not, as "on battery", or "" when it may. `now`: seconds since the epoch; `quiet_s`: since the last answer."""
        ...


class MachineConditions:
    """The limits over a probe."""

    def __init__(self, when: WhenConfig, probe: Probe) -> None:
        self._when = when
        self._probe = probe
        self.check_s = when.check_s

    def waiting_for(self, now: float, quiet_s: float) -> str:
        """Why learning has to wait, or ""."""
        hour = datetime.fromtimestamp(now, UTC).astimezone().hour
        return reason_to_wait(self._when, self._probe.read(), hour, quiet_s)


def reason_to_wait(when: WhenConfig, readings: Readings, hour: int, quiet_s: float) -> str:
    """The first limit that is not kept, in words; "" when all are."""
    if when.on_mains and readings.on_mains is False:
        return "on battery"
    if _below(readings.battery_percent, when.min_battery_percent):
        return f"battery at {readings.battery_percent:.0f} %, below {when.min_battery_percent:.0f} %"
    if _below(when.max_temperature_c, readings.temperature_c):
        return f"hot: {readings.temperature_c:.0f} °C, above {when.max_temperature_c:.0f} °C"
    if _below(when.max_other_load, readings.other_load):
        return f"other programs use {100 * (readings.other_load or 0):.0f} % of the processors"
    if not within_hours(hour, when.from_hour, when.until_hour):
        return f"not between {when.from_hour} and {when.until_hour} o'clock"
    if quiet_s < when.quiet_s:
        return "somebody was answered a moment ago"
    return ""


def within_hours(hour: int, first: int, last: int) -> bool:
    """Whether an hour lies from the first up to the last one; from 22 to 7 goes over midnight, equal ones are the whole day."""
    if first == last:
        return True
    return first <= hour < last if first < last else hour >= first or hour < last


def _below(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value < limit


_PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz", "soc_thermal", "thermal-fan-est")
_PLAUSIBLE_C = (1.0, 125.0)
T = TypeVar("T")


class MachineProbe:
    """`Probe` over psutil. The first reading of `other_load` is None: it is measured from one reading to the next.

    `ours`: pids of further processes that are no other programs, such as an agent that runs at the same time as this command.
    """

    def __init__(self, clock: Clock, ours: Collection[int] = ()) -> None:
        self._clock = clock
        self._ours = tuple(ours)
        self._before: tuple[float, float, float] | None = None

    def read(self) -> Readings:
        """The present readings; what this system does not report is None."""
        import psutil

        battery = _or_none(lambda: psutil.sensors_battery())
        return Readings(
            on_mains=None if battery is None else battery.power_plugged,
            battery_percent=None if battery is None else battery.percent,
            temperature_c=_or_none(self._temperature),
            other_load=_or_none(self._other_load),
        )

    def _temperature(self) -> float | None:
        """The hottest plausible reading of the processor's sensors."""
        import psutil

        sensors = psutil.sensors_temperatures()
        known = [name for name in sensors if name in _PROCESSOR_SENSORS or "cpu" in name.lower()]
        readings = [entry.current for name in known for entry in sensors[name] if entry.current is not None]
        return max((value for value in readings if _PLAUSIBLE_C[0] <= value <= _PLAUSIBLE_C[1]), default=None)

    def _other_load(self) -> float | None:
        """Busy time of all processors without that of this process, `ours` and their children, since the last reading.

        Work of a child counts on when it has ended: it is no other program's.
        """
        import psutil

        cores, now = psutil.cpu_count() or 1, self._clock.monotonic()
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        me, own = psutil.Process(), 0.0
        heads = [me]
        for pid in self._ours:
            with suppress(psutil.Error):
                heads.append(psutil.Process(pid))
        family = [process for head in heads for process in (head, *head.children(recursive=True))]
        for process in dict.fromkeys(family):
            with nullcontext() if process is me else suppress(psutil.Error):
                spent = process.cpu_times()
                ended = getattr(spent, "children_user", 0.0) + getattr(spent, "children_system", 0.0)
                own += spent.user + spent.system + ended
        before, self._before = self._before, (now, busy, own)
        if before is None or now - before[0] <= 0.0:
            return None
        others = (busy - before[1]) - (own - before[2])
        return float(min(1.0, max(0.0, others / ((now - before[0]) * cores))))


def _or_none(reading: Callable[[], T]) -> T | None:
    """What cannot be read on this system is not known."""
    import psutil

    try:
        return reading()
    except (psutil.Error, OSError, AttributeError, RuntimeError, ValueError):
        return None


LEAST_BYTES = 16 * 2**20
_PROBE = ".room"


@dataclass(slots=True)
class DiskSpace:
    """Whether a folder has room for what a step writes."""

    folder: Path
    _has_failed: bool = field(default=False, init=False)

    def shortage(self) -> str:
        """Why no step may begin, or "" where there is space."""
        needed, free = self._needed(), 0
        with suppress(OSError):
            free = shutil.disk_usage(self.folder).free
        if free < needed:
            return f"no space on {self.folder}: {free // 2**20} MiB free, a step needs {needed // 2**20} MiB"
        if self._has_failed and not self._can_write(needed):
            return f"no space on {self.folder}: it cannot be written"
        self._has_failed = False
        return ""

    def was_missing(self) -> bool:
        """Whether a step that has just failed may have done so for want of room; remembered until there is space again."""
        self._has_failed = bool(self.shortage()) or not self._can_write(self._needed())
        return self._has_failed

    def _needed(self) -> int:
        """Twice the newest checkpoint: the next one is written while it still exists, and the database needs some, too."""
        size, newest = 0, max((self.folder / "checkpoints").glob("[!.]*"), default=None)
        for file in newest.rglob("*") if newest is not None else ():
            with suppress(OSError):
                size += file.stat().st_size if file.is_file() else 0
        return max(LEAST_BYTES, 2 * size)

    def _can_write(self, count: int) -> bool:
        """Reserve this many bytes of the disk; where the system cannot promise them, write one."""
        probe = self.folder / _PROBE
        try:
            with probe.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, count)
                else:
                    os.write(file.fileno(), b"0")
                    os.fsync(file.fileno())
            return True
        except OSError:
            return False
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)


PAUSED = "learning_paused"
BY_YOU = "paused by you"
_CHECK_S = 5.0
"""Seconds from check to check where no conditions name them."""


def learning_is_paused(state: StateFolder) -> bool:
    """Whether a person has paused learning."""
    return state.meta(PAUSED) == "1"


def pause_learning(state: StateFolder, paused: bool) -> None:
    """Pause or resume learning, for good; a running agent's `Readiness` must be informed, too."""
    state.set_meta(PAUSED, "1" if paused else "")


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class Readiness:
    """Whether the next step may begin.

    `conditions`: None where learning may always use the machine.
    """

    precedence: ServingPrecedence
    conditions: LearningConditions | None
    disk_space: DiskSpace
    state: StateFolder
    sink: EventSink
    clock: Clock
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _wait: int | None = field(default=None, init=False)
    waiting: str = field(default="", init=False)
    waits: int = field(default=0, init=False)
    """How often it was found that no step may begin."""

    def pause(self, paused: bool) -> None:
        """Pause or resume, durably; takes effect before the next step."""
        pause_learning(self.state, paused)
        self._changed.set()

    @property
    def held_back(self) -> bool:
        """Somebody is served, or the next step waits."""
        return self.precedence.busy or bool(self.waiting)

    def reason(self) -> str:
        """Why the next step waits, or would; a pause and its end take effect immediately."""
        if learning_is_paused(self.state):
            return BY_YOU
        return "" if self.waiting == BY_YOU else self.waiting

    async def ready(self, while_waiting: Callable[[], Awaitable[None]] = _nothing) -> None:
        """Return when nothing holds learning back; checked again every few seconds, and immediately when a pause ends.

        `while_waiting` is awaited after each check: what must be seen to although no step is made.
        """
        ended = False
        try:
            await self.precedence.idle()
            while reason := self._reason():
                self.waits += 1
                self._note(reason)
                await while_waiting()
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_S if self.conditions is None else self.conditions.check_s):
                        await self._changed.wait()
                await self.precedence.idle()
            ended = True
        finally:  # cut by a stop, the wait is over and learning does not go on
            self._note("", goes_on=ended)

    def _reason(self) -> str:
        if learning_is_paused(self.state):
            return BY_YOU
        why = self.disk_space.shortage()
        if not why and self.conditions is not None:
            why = self.conditions.waiting_for(self.clock.now(), self.precedence.quiet_s)
        return f"waiting: {why}" if why else ""

    def _note(self, reason: str, *, goes_on: bool = True) -> None:
        """Keep what is waited for and since when; a wait that a crash cuts ends with its last check. A full disk keeps none."""
        now, same = self.clock.now(), _kind(reason) == _kind(self.waiting)
        with suppress(sqlite3.Error):
            wait, self._wait = self._wait, self._wait if same else None
            if wait is not None:
                with self.state.database as database:
                    database.execute("UPDATE waits SET ended_at = ? WHERE id = ?", (now, wait))
            if reason and self._wait is None:
                with self.state.database as database:
                    query = "INSERT INTO waits (began_at, ended_at, reason) VALUES (?, ?, ?)"
                    self._wait = database.execute(query, (now, now, _kind(reason))).lastrowid
        if not same and (reason or goes_on):
            self.sink.emit(LearningWaits(reason, now) if reason else LearningResumed(now))
        self.waiting = reason


def _kind(reason: str) -> str:
    """A reason without its numbers, which change from check to check."""
    return reason.removeprefix("waiting: ").split(":")[0].split(" at ")[0].split(" use ")[0]


SLOW_S = 10.0
"""A step that takes as long is worth a word."""
HIGH_LOAD = 0.25
"""Share of the processors that other programs use, from which threads wait for each other."""
_CALM = 4


class SpareCores:
    """How many threads fit on the cores that other programs leave; asked every few seconds.

    Threads of ours that share a core with another program keep the others waiting: with one busy program two of them took 19.5 s for a
    step that one alone made in 2.0 s (two cores). Fewer are used immediately, more once the last `_CALM` calls all left cores for them,
    since too many threads cost far more than too few. The first change is reported, later ones would only repeat it.
    """

    def __init__(self, probe: Probe, cores: int, sink: EventSink, clock: Clock) -> None:
        self._probe, self._cores, self._sink, self._clock = probe, cores, sink, clock
        self._spare = deque([cores], maxlen=_CALM)
        self._is_reported = False
        probe.read()  # so that the first call knows what others used while the model was loaded

    def threads(self) -> int:
        """From 1 to all cores, by what other programs used since the last call."""
        load = self._probe.read().other_load
        if load is not None:
            taken = math.ceil(load * self._cores - HIGH_LOAD)
            self._spare.append(max(1, self._cores - max(0, taken)))
        threads = min(self._spare)
        if load is not None and threads < self._cores and not self._is_reported:
            used = f"other programs use {100 * load:.0f} % of the processors"
            text = f"{used}: computing with {counted(threads, 'thread')} on {self._cores} cores while they do"
            self._sink.emit(Notice(text, self._clock.now()))
            self._is_reported = True
        return threads


def thread_settings(engine_threads: int, torch_threads: int, cores: int) -> tuple[str, ...]:
    """The settings that would help `learn` where other programs have the processors: those by which several threads compute.

    0 threads of the engine are fitted to the load anyway, 0 of torch are all `cores`.
    """
    threads = {"engine.threads": engine_threads, "learning.torch_threads": torch_threads or cores}
    return tuple(f"{name}=1" for name, count in threads.items() if count > 1)


def machine_load_notice(other_load: float, settings: Sequence[str]) -> str:
    """What is in the way and what helps."""
    sets = " ".join(f"--set {one}" for one in settings)
    why = "and threads that wait for each other get many times slower"
    return f"other programs use {100 * other_load:.0f} % of the processors, {why}: try {sets}"


class MachineLoadNotice:
    """Passes events on, and reports once in a run that a step is slow because of other programs."""

    def __init__(self, inner: EventSink, probe: Probe, clock: Clock, settings: Sequence[str]) -> None:
        """`settings`: what would help, see `thread_settings`; nothing is reported without any."""
        self._inner = inner
        self._probe = probe
        self._clock = clock
        self._settings = tuple(settings)
        self._since: float | None = None

    def emit(self, event: Event) -> None:
        """Pass one event on, and read the machine's load where a step took long; it is measured from the step's beginning."""
        self._inner.emit(event)
        slow = self._since is not None and self._clock.monotonic() - self._since >= SLOW_S
        if slow and isinstance(event, (StepProgress, StepFinished)):
            load, self._since = self._probe.read().other_load, self._clock.monotonic()
            if load is not None and load >= HIGH_LOAD:
                text = "this step is slow: " + machine_load_notice(load, self._settings)
                self._inner.emit(Notice(text, self._clock.now()))
                self._settings, self._since = (), None
        if isinstance(event, (RunStarted, LearningResumed, StepFinished)) and self._settings:
            self._probe.read()
            self._since = self._clock.monotonic()
