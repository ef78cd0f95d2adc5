"""What a result must have to be read: every key that tables, figures and the report take, of the right kind and length. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from tools.experiments.cells import Cell

FORM = 1
_SERIES = ("dual", "assist", "joint", "kept", "reward", "format", "entropy", "calls")
_SHARE, _COUNT = (0.0, 1.0), (0.0, math.inf)
_RANGE = {"dual": _COUNT, "assist": _SHARE, "joint": _SHARE, "kept": _SHARE, "format": _SHARE, "entropy": _COUNT, "calls": _COUNT}
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
    if body.get("cell") != cell.to_json():
        raise ValueError("cell is not the one that the key is made of")
    _require_series(cell, _section(body, "series"))
    looks = _list(body, "held_out")
    for number, look in enumerate(looks):
        _require_look(look, f"held_out.{number}")
    _require_every_look(cell, looks)
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
        lowest, highest = _RANGE.get(name, (-math.inf, math.inf))
        if not all(value is None or lowest <= value <= highest for value in values):
            raise ValueError(f"series.{name} has a value outside {lowest:g} to {highest:g}")


def _require_look(look: Any, where: str) -> None:
    if not isinstance(look, Mapping) or not isinstance(look.get("source"), str):
        raise ValueError(f"{where} has no source")
    _require_numbers(look, ("step", "items"), where)
    _require_numbers(look, ("phase",), where, or_null=True)
    for name in _VERDICTS:
        text = look.get(name)
        if not isinstance(text, str) or len(text) != look["items"] or not set(text) <= set("01-"):
            raise ValueError(f"{where}.{name} is no text of {look['items']} verdicts")
    decided = zip(look["asked"], look["own"], look["cloud"], look["joint"], strict=True)
    if any(joint != (cloud if asked == "1" else own) for asked, own, cloud, joint in decided):
        raise ValueError(f"{where}.joint is not what asked, own and cloud give")
    for name in ("help", *(("router",) if "router" in look else ())):
        values = _list(look, name, where)
        if len(values) != look["items"] or not all(value is None or _is_number(value) for value in values):
            raise ValueError(f"{where}.{name} is no list of {look['items']} numbers")
    if "router" in look:
        _require_numbers(_section(look, "router_fit", where), ("threshold",), f"{where}.router_fit")


def _require_every_look(cell: Cell, looks: Sequence[Mapping[str, Any]]) -> None:
    """After each phase (before learning: once) every source, and nothing else."""
    ends = list(accumulate(phase.steps for phase in cell.phases)) or [0]
    names = [name for name, _, _ in cell.evaluate.places] if cell.evaluate.items else []
    wanted = {(name, end, number) for number, end in enumerate(ends, 1 if cell.phases else 0) for name in names}
    found = {(look["source"], look["step"], look["phase"]) for look in looks}
    if missing := sorted(wanted - found):
        raise ValueError(f"held_out has no look at {missing[0][0]} after step {missing[0][1]}")
    if unknown := [look for look in looks if look["source"] not in names or not 0 <= look["step"] <= ends[-1]]:
        raise ValueError(f"held_out has a look at {unknown[0]['source']} after step {unknown[0]['step']}, which the cell has not")


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
