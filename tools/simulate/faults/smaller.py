"""What is smaller than a scenario of the coordinator's fault worlds, and how one is told. Knows its parts; plays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tools.simulate.faults.scenario import Fault, Scenario
from tools.simulate.faults.shrink import less, without_some
from tools.simulate.faults.terms import NO_CAPS, Terms

T = TypeVar("T")
UNITS = ("calls", "tokens", "uUSD")
MESSAGE_FAULTS = ("drop", "duplicate", "late", "reorder")


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with less in them: first what takes away most."""
    for faults in without_some(scenario.faults):
        yield replace(scenario, faults=faults)
    for devices in less(scenario.devices, 1):
        yield replace(scenario, devices=devices)
    for steps in less(scenario.steps, 0):
        yield replace(scenario, steps=steps)
    for prompts in less(scenario.prompts, 1):
        yield replace(scenario, prompts=prompts)
    for task in scenario.tasks[: len(scenario.tasks) if len(scenario.tasks) > 1 else 0]:
        yield replace(scenario, tasks=(task,))
    for name in MESSAGE_FAULTS:
        if getattr(scenario, name):
            yield with_one(scenario, name, 0.0)
    for acts in without_some(tuple(scenario.upstream_acts.items())):
        yield replace(scenario, upstream_acts=dict(acts))
    if scenario.upstream_duplicate:
        yield replace(scenario, upstream_duplicate=0.0)
    for name in ("watched", "administered"):
        if getattr(scenario, name):
            yield with_one(scenario, name, False)
    for terms in _plainer(scenario.terms):
        yield replace(scenario, terms=terms)


def _plainer(terms: Terms) -> Iterator[Terms]:
    for scope in terms.caps:
        if terms.caps[scope] != NO_CAPS:
            yield replace(terms, caps={**terms.caps, scope: NO_CAPS})
    plain: dict[str, Any] = {"windows": {}, "floor_ppm": 0, "device_rate": None, "fleet_rate": None}
    for name, value in plain.items():
        if getattr(terms, name) != value:
            yield with_one(terms, name, value)
    for task, held in terms.tasks.items():
        if held.schedule:
            yield replace(terms, tasks={**terms.tasks, task: replace(held, schedule=())})


def with_one(value: T, name: str, part: object) -> T:
    """A frozen value with another part of this name."""
    changes: dict[str, Any] = {name: part}
    return replace(value, **changes)  # type: ignore[type-var]


def words(scenario: Scenario) -> list[str]:
    """A scenario, a line for each kind of thing in it."""
    terms = scenario.terms
    about = (
        f"{counted(scenario.devices, 'device')}, {counted(scenario.steps, 'step')} each of {' and '.join(scenario.tasks)},"
        f" {counted(scenario.prompts, 'prompt')} a step"
    )
    beside = [name for name in ("watched", "administered") if getattr(scenario, name)]
    caps = [f"{scope} {cap} {unit}" for scope, unit, cap in _caps(terms)]
    shares = {f"upstream {act}": share for act, share in scenario.upstream_acts.items()}
    shares["upstream asked twice"] = scenario.upstream_duplicate
    return [
        ", ".join([about, *beside]),
        *([f"limits: {', '.join(caps)}"] if caps else []),
        f"the cloud answers within {scenario.slow_s:g} s",
        *message_words(scenario),
        *share_words("upstream: ", shares),
        *fault_words(scenario.faults),
    ]


def _caps(terms: Terms) -> Iterator[tuple[str, str, int]]:
    for scope, caps in terms.caps.items():
        for unit, cap in zip(UNITS, caps, strict=True):
            if cap is not None:
                yield scope, unit, cap


def message_words(scenario: object) -> list[str]:
    """What share of messages is dropped and so on."""
    told = {"drop": "dropped", "duplicate": "sent twice", "late": "late", "reorder": "overtaken"}
    return share_words("messages: ", {said: getattr(scenario, name) for name, said in told.items()})


def share_words(about: str, shares: dict[str, float]) -> list[str]:
    """One line for those that are not 0."""
    told = [f"{100 * share:.1f} % {name.removeprefix('upstream ')}" for name, share in shares.items() if share]
    return [about + ", ".join(told)] if told else []


def fault_words(faults: Iterable[Fault]) -> list[str]:
    """A line a fault."""
    told = [
        f"at {fault.at:.2f} s {fault.kind}"
        + (f" {fault.detail}" if fault.detail else "")
        + (f" {fault.amount:g}" if fault.amount else "")
        + (f" for {fault.for_s:.2f} s" if fault.for_s else "")
        for fault in faults
    ]
    return told or ["no faults beyond these"]


def counted(number: int, noun: str) -> str:
    """1 device, 2 devices."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
