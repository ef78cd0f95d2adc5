"""When learning may use this machine: people first, a pause, power, heat, load, hours and disk space."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from edge.core.clock import Clock
from edge.core.events import Event, EventSink
from edge.core.precedence import ServingPrecedence
from edge.state.events import LearningResumed, LearningWaits, Notice, RunStarted, StepFinished, StepProgress
from edge.state.folder import StateFolder


@dataclass(frozen=True, slots=True)
class Readings:
    """What a machine reports of itself; None where it does not. `other_load`: share of its processors that other programs keep busy."""

    on_mains: bool | None = None
    battery_percent: float | None = None
    temperature_c: float | None = None
    other_load: float | None = None


@dataclass(frozen=True, slots=True)
class ConditionRules:
    """Limits (None: none). `quiet_s`: seconds since the last answer; from `from_hour` until `until_hour`
    of the local day, over midnight where the second is the smaller one."""

    on_mains: bool = True
    min_battery_percent: float | None = 20.0
    max_temperature_c: float | None = 90.0
    max_other_load: float | None = None
    quiet_s: float = 0.0
    from_hour: int = 0
    until_hour: int = 24
    check_s: float = 5.0


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

    def __init__(self, rules: ConditionRules, probe: Probe) -> None:
        self._rules = rules
        self._probe = probe
        self.check_s = rules.check_s

    def waiting_for(self, now: float, quiet_s: float) -> str:
        """Why learning has to wait, or ""."""
        hour = datetime.fromtimestamp(now, UTC).astimezone().hour
        return reason_to_wait(self._rules, self._probe.read(), hour, quiet_s)


class ScriptedProbe:
    """Reads prepared values, the last one again and again; for tests and the simulator."""

    def __init__(self, *readings: Readings) -> None:
        self._readings = list(readings) or [Readings()]
        self.reads = 0

    def read(self) -> Readings:
        """The next prepared value."""
        self.reads += 1
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def reason_to_wait(rules: ConditionRules, readings: Readings, hour: int, quiet_s: float) -> str:
    """The first limit that is not kept, in words; "" when all are."""
    if rules.on_mains and readings.on_mains is False:
        return "on battery"
    if _below(readings.battery_percent, rules.min_battery_percent):
        return f"battery at {readings.battery_percent:.0f} %, below {rules.min_battery_percent:.0f} %"
    if _below(rules.max_temperature_c, readings.temperature_c):
        return f"hot: {readings.temperature_c:.0f} °C, above {rules.max_temperature_c:.0f} °C"
    if _below(rules.max_other_load, readings.other_load):
        return f"other programs use {100 * (readings.other_load or 0):.0f} % of the processors"
    if not within_hours(hour, rules.from_hour, rules.until_hour):
        return f"not between {rules.from_hour} and {rules.until_hour} o'clock"
    if quiet_s < rules.quiet_s:
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


class MachineProbe:
    """`Probe` over psutil. The first reading of `other_load` is None: it is measured from one reading to the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before: tuple[float, float, float] | None = None

    def read(self) -> Readings:
        """The present readings; what this system does not report is None."""
        battery = _or_none(_battery)
        return Readings(
            on_mains=None if battery is None else battery[0],
            battery_percent=None if battery is None else battery[1],
            temperature_c=_or_none(_temperature),
            other_load=_or_none(self._other_load),
        )

    def _other_load(self) -> float | None:
        """Busy time of all processors without that of this process and its children, since the last reading."""
        import psutil

        cores, now = psutil.cpu_count() or 1, self._clock.monotonic()
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        own = _own_seconds()
        before, self._before = self._before, (now, busy, own)
        if before is None or now - before[0] <= 0.0:
            return None
        others = (busy - before[1]) - (own - before[2])
        return min(1.0, max(0.0, others / ((now - before[0]) * cores)))


def _own_seconds() -> float:
    import psutil

    me = psutil.Process()
    times = [me.cpu_times(), *(_times_of(child) for child in me.children(recursive=True))]
    return float(sum(_with_ended_children(time) for time in times if time is not None))


def _with_ended_children(time: Any) -> float:
    """Work of a child counts on when it has ended: it is no other program's."""
    ended = getattr(time, "children_user", 0.0) + getattr(time, "children_system", 0.0)
    return float(time.user + time.system + ended)


def _times_of(process: Any) -> Any:
    import psutil

    try:
        return process.cpu_times()
    except psutil.Error:
        return None


def _battery() -> tuple[bool | None, float | None] | None:
    import psutil

    battery = psutil.sensors_battery()
    return None if battery is None else (battery.power_plugged, battery.percent)


def _temperature() -> float | None:
    """The hottest plausible reading of the processor's sensors."""
    import psutil

    sensors = psutil.sensors_temperatures()
    known = [name for name in sensors if name in _PROCESSOR_SENSORS or "cpu" in name.lower()]
    readings = [entry.current for name in known for entry in sensors[name] if entry.current is not None]
    return max((value for value in readings if _PLAUSIBLE_C[0] <= value <= _PLAUSIBLE_C[1]), default=None)


def _or_none(reading: Callable[[], Any]) -> Any:
    """What cannot be read on this system is not known."""
    import psutil

    try:
        return reading()
    except (psutil.Error, OSError, AttributeError, RuntimeError, ValueError):
        return None


LEAST_BYTES = 16 * 2**20
_PROBE = ".room"


class DiskSpace:
    """Whether a folder has room for what a step writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_failed = False

    def shortage(self) -> str:
        """Why no step may begin, or "" where there is space."""
        needed, free = self._needed(), self._free()
        if free < needed:
            return f"no space on {self._folder}: {_mib(free)} MiB free, a step needs {_mib(needed)} MiB"
        if self._has_failed and not self._can_write(needed):
            return f"no space on {self._folder}: it cannot be written"
        self._has_failed = False
        return ""

    def was_missing(self) -> bool:
        """Whether a step that has just failed may have done so for want of room; remembered until there is space again."""
        self._has_failed = bool(self.shortage()) or not self._can_write(self._needed())
        return self._has_failed

    def _needed(self) -> int:
        """Twice the newest checkpoint: the next one is written beside it, and the database needs some, too."""
        newest = max((self._folder / "checkpoints").glob("[!.]*"), default=None)
        size = 0 if newest is None else sum(_size(file) for file in newest.rglob("*"))
        return max(LEAST_BYTES, 2 * size)

    def _free(self) -> int:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return 0

    def _can_write(self, count: int) -> bool:
        probe = self._folder / _PROBE
        try:
            with probe.open("wb") as file:
                _reserve(file.fileno(), count)
            return True
        except OSError:
            return False
        finally:
            _removed(probe)


def _reserve(descriptor: int, count: int) -> None:
    """Take so many bytes of the disk; where the system cannot promise them, write one."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, count)
    else:
        os.write(descriptor, b"0")
        os.fsync(descriptor)


def _removed(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0


def _mib(count: int) -> int:
    return count // 2**20


PAUSED = "learning_paused"
BY_YOU = "paused by you"
_CHECK_S = 5.0
"""Seconds from look to look where no conditions name them."""


def is_paused(state: StateFolder) -> bool:
    """Whether a person has paused learning."""
    return state.meta(PAUSED) == "1"


def set_paused(state: StateFolder, paused: bool) -> None:
    """Pause or resume learning, for good; a running agent's `Readiness` must be informed, too."""
    state.set_meta(PAUSED, "1" if paused else "")


async def _nothing() -> None:
    return None


class Readiness:
    """Says when the next step may begin."""

    def __init__(
        self,
        precedence: ServingPrecedence,
        conditions: LearningConditions | None,
        disk_space: DiskSpace,
        state: StateFolder,
        sink: EventSink,
        clock: Clock,
    ) -> None:
        """`conditions`: None where learning may always use the machine."""
        self._precedence = precedence
        self._conditions = conditions
        self._disk_space = disk_space
        self._state = state
        self._sink = sink
        self._clock = clock
        self._changed = asyncio.Event()
        self._wait: int | None = None
        self.waiting = ""
        self.waits = 0
        """How often it was found that no step may begin."""

    def pause(self, paused: bool) -> None:
        """Pause or resume, durably; takes effect before the next step."""
        set_paused(self._state, paused)
        self._changed.set()

    @property
    def held_back(self) -> bool:
        """Somebody is served, or the next step waits."""
        return self._precedence.busy or bool(self.waiting)

    def reason(self) -> str:
        """Why the next step waits, or would; a pause and its end take effect immediately."""
        if is_paused(self._state):
            return BY_YOU
        return "" if self.waiting == BY_YOU else self.waiting

    async def ready(self, at_each_look: Callable[[], Awaitable[None]] = _nothing) -> None:
        """Return when nothing holds learning back; looked at again every few seconds, and at once when a pause ends.

        `at_each_look` is awaited while it is waited: what must be seen to although no step is made.
        """
        try:
            await self._precedence.idle()
            while reason := self._reason():
                self.waits += 1
                self._note(reason)
                await at_each_look()
                await self._next_look()
                await self._precedence.idle()
        finally:
            self._note("")

    def _reason(self) -> str:
        if is_paused(self._state):
            return BY_YOU
        why = self._disk_space.shortage()
        if not why and self._conditions is not None:
            why = self._conditions.waiting_for(self._clock.now(), self._precedence.quiet_s)
        return f"waiting: {why}" if why else ""

    async def _next_look(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(_CHECK_S if self._conditions is None else self._conditions.check_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _note(self, reason: str) -> None:
        """Keep what is waited for and since when; a wait that a crash cuts ends with its last look. A full disk keeps none."""
        now, same = self._clock.now(), _kind(reason) == _kind(self.waiting)
        with suppress(sqlite3.Error):
            self._keep(reason, now, same=same)
        if not same:
            self._sink.emit(LearningWaits(reason, now) if reason else LearningResumed(now))
        self.waiting = reason

    def _keep(self, reason: str, now: float, *, same: bool) -> None:
        wait = self._wait
        self._wait = wait if same else None
        if wait is not None:
            with self._state.database as database:
                database.execute("UPDATE waits SET ended_at = ? WHERE id = ?", (now, wait))
        if reason and self._wait is None:
            self._wait = self._begin(reason, now)

    def _begin(self, reason: str, now: float) -> int | None:
        with self._state.database as database:
            query = "INSERT INTO waits (began_at, ended_at, reason) VALUES (?, ?, ?)"
            return database.execute(query, (now, now, _kind(reason))).lastrowid


def _kind(reason: str) -> str:
    """A reason without its numbers, which change from look to look."""
    return reason.removeprefix("waiting: ").split(":")[0].split(" at ")[0].split(" use ")[0]


SLOW_S = 10.0
"""A step that takes as long is worth a word."""
HIGH_LOAD = 0.25
"""Share of the processors that other programs use, from which threads wait for each other."""


def thread_settings(engine_threads: int, torch_threads: int, cores: int) -> tuple[str, ...]:
    """The settings that would help where other programs have the processors: those by which several threads compute (0: all `cores`)."""
    threads = {"engine.threads": engine_threads or cores, "learning.torch_threads": torch_threads or cores}
    return tuple(f"{name}=1" for name, count in threads.items() if count > 1)


def machine_load_notice(other_load: float, settings: Sequence[str]) -> str:
    """What is in the way and what helps."""
    sets = " ".join(f"--set {one}" for one in settings)
    why = "and threads that wait for each other get many times slower"
    return f"other programs use {100 * other_load:.0f} % of the processors, {why}: try {sets}"


class MachineLoadNotice:
    """Hands events on, and says once in a run that a step is slow because of other programs."""

    def __init__(self, inner: EventSink, probe: Probe, clock: Clock, settings: Sequence[str]) -> None:
        """`settings`: what would help, see `thread_settings`; nothing is said without any."""
        self._inner = inner
        self._probe = probe
        self._clock = clock
        self._settings = tuple(settings)
        self._since: float | None = None

    def emit(self, event: Event) -> None:
        """Hand one event on, and look at the machine where a step took long."""
        self._inner.emit(event)
        if isinstance(event, (StepProgress, StepFinished)) and self._is_slow():
            self._look()
        if isinstance(event, (RunStarted, LearningResumed, StepFinished)):
            self._begin()

    def _begin(self) -> None:
        """The load is read from here on."""
        if self._settings:
            self._probe.read()
            self._since = self._clock.monotonic()

    def _is_slow(self) -> bool:
        return self._since is not None and self._clock.monotonic() - self._since >= SLOW_S

    def _look(self) -> None:
        load = self._probe.read().other_load
        self._since = self._clock.monotonic()
        if load is not None and load >= HIGH_LOAD:
            self._inner.emit(Notice("this step is slow: " + machine_load_notice(load, self._settings), self._clock.now()))
            self._settings, self._since = (), None
