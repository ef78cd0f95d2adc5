"""Reads this machine: power, battery, temperature, what other programs use. Knows psutil; knows nothing of limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.agent.conditions import Readings
from edge.core.clock import Clock

_PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "acpitz", "soc_thermal", "thermal-fan-est")
_PLAUSIBLE_C = (1.0, 125.0)


class MachineProbe:
    """`Probe` over psutil. The first reading of `other_load` is None: it is measured from one reading to the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before: tuple[float, float, float] | None = None

    def read(self) -> Readings:
        """The present readings; what this system does not tell is None."""
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
