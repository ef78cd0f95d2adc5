"""What a result must have to be read: every key that tables, figures and the report take, of the right kind and length. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tools.experiments.cells import Cell

FORM = 1
_SERIES = ("dual", "assist", "joint", "kept", "reward", "format", "entropy", "calls")
_COST = ("wall_s", "cpu_agent_s", "cpu_programs_s", "cpu_coordinator_s", "peak_agent_mib", "peak_coordinator_mib")
_TRAINING = ("steps", "seconds", "billed_calls", "cloud_tokens", "spend_uusd")
_RATES = ("response_rate", "billed_rate")
_VERDICTS = ("asked", "own", "forced", "cloud", "joint", "format")


def require_form(cell: Cell, body: Any) -> None:
    """Raises ValueError, saying what is not as it should be, unless this is a whole result of the cell."""
    if not isinstance(body, Mapping):
        raise ValueError("no mapping of keys")
    if (body.get("form"), body.get("key")) != (FORM, cell.key):
        raise ValueError(f"form {body.get('form')} of {body.get('key')}")
    _require_series(cell, _section(body, "series"))
    for number, look in enumerate(_list(body, "held_out")):
        _require_look(look, f"held_out.{number}")
    cost = _section(body, "cost")
    _require_numbers(cost, _COST, "cost")
    training = _section(cost, "training", "cost")
    _require_numbers(training, _TRAINING, "cost.training")
    _require_numbers(training, _RATES, "cost.training", or_null=True)
    _require_origin(body)


def _require_series(cell: Cell, series: Mapping[str, Any]) -> None:
    for name in _SERIES:
        values = _list(series, name, "series")
        if len(values) != cell.steps:
            raise ValueError(f"series.{name} has {len(values)} of {cell.steps} steps")
        if not all(_is_number(value) or (value is None and name != "assist") for value in values):
            raise ValueError(f"series.{name} has a value that is no number")


def _require_look(look: Any, where: str) -> None:
    if not isinstance(look, Mapping) or not isinstance(look.get("source"), str):
        raise ValueError(f"{where} has no source")
    _require_numbers(look, ("step", "items"), where)
    _require_numbers(look, ("phase",), where, or_null=True)
    for name in _VERDICTS:
        text = look.get(name)
        if not isinstance(text, str) or len(text) != look["items"] or not set(text) <= set("01-"):
            raise ValueError(f"{where}.{name} is no text of {look['items']} verdicts")
    for name in ("help", *(("router",) if "router" in look else ())):
        values = _list(look, name, where)
        if len(values) != look["items"] or not all(value is None or _is_number(value) for value in values):
            raise ValueError(f"{where}.{name} is no list of {look['items']} numbers")
    if "router" in look:
        _require_numbers(_section(look, "router_fit", where), ("threshold",), f"{where}.router_fit")


def _require_origin(body: Mapping[str, Any]) -> None:
    """What the result was measured with and on."""
    settings = _section(body, "settings")
    _section(settings, "learning", "settings")
    machine = _section(body, "machine")
    _require_numbers(machine, ("cores", "memory_mib"), "machine")
    texts: Iterable[Any] = [machine.get("cpu"), *_list(body, "commits")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("machine.cpu or commits is no text")
    if not isinstance(body.get("models", {}), Mapping):
        raise ValueError("models is no mapping of keys")


def _section(data: Mapping[str, Any], name: str, within: str = "") -> Mapping[str, Any]:
    found = data.get(name)
    if not isinstance(found, Mapping):
        raise ValueError(f"{_where(within, name)} is missing or no mapping of keys")
    return found


def _list(data: Mapping[str, Any], name: str, within: str = "") -> list[Any]:
    found = data.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{_where(within, name)} is missing or no list")
    return found


def _require_numbers(data: Mapping[str, Any], names: Iterable[str], within: str, *, or_null: bool = False) -> None:
    for name in names:
        value = data.get(name)
        if not (_is_number(value) or (or_null and value is None)):
            raise ValueError(f"{_where(within, name)} is missing or no number")


def _where(within: str, name: str) -> str:
    return f"{within}.{name}" if within else name


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
