"""When learning may use the machine. Knows readings and limits; knows nothing of sensors (edge.agent.machine) or of how steps are made.

A limit whose reading is not to be had does not hold learning back: a desktop has no battery and a container no thermometer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Readings:
    """What a machine tells of itself; None where it does not. `other_load`: share of its processors that other programs keep busy."""

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
