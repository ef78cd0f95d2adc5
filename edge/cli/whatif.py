"""`edge-agent whatif`: what another rate would have meant for the answers that were given, before the dial is turned."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.cli.budget import rate_of
from edge.cli.running import running_agent
from edge.cli.saying import print_json
from edge.console import dollars
from edge.core.errors import UsageError
from edge.core.formatting import percent

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig

_HEAD = ("rate asked", "of answers", "calls", "spend", "judged good", "half within", "9 in 10 within")


@dataclass(frozen=True, slots=True)
class WhatIfOptions:
    """The rate as it was written, or a sweep over several; the task (None: all); how many of the last answers."""

    rate: str | None
    sweep: bool
    task: str | None
    last: int
    json: bool


def whatif(settings: Settings, options: WhatIfOptions) -> int:
    """Replay. Raises UsageError without a rate, TooFewAnswers."""
    rates = _rates(options)
    result = asyncio.run(_result(settings.config(), rates, options.task or "", options.last))
    if options.json:
        print_json(result)
    else:
        print("\n".join(whatif_lines(result)))
    return 0


def _rates(options: WhatIfOptions) -> list[float]:
    from edge.budget.whatif import SWEEP

    given = [] if options.rate is None else [rate_of(options.rate)]
    rates = [rate for rate in given if rate is not None] + (list(SWEEP) if options.sweep else [])
    if not rates:
        raise UsageError("no rate", hint="give one, as edge-agent whatif 10%, or --sweep for several")
    return sorted(set(rates))


async def _result(config: AgentConfig, rates: Sequence[float], task: str, last: int) -> Mapping[str, Any]:
    from edge.app import state_folder
    from edge.budget.whatif import what_if, what_if_recorded
    from edge.state.reader import reading

    folder = state_folder(config)
    async with running_agent(folder) as remote:
        if remote is not None:
            return await remote.post("/api/whatif", {"target_rate": list(rates), "task": task, "last": last})
    with reading(folder) as state:
        found = what_if([], rates, task) if state is None else what_if_recorded(state, rates, task, last)
        return found.to_json()


def whatif_lines(result: Mapping[str, Any]) -> list[str]:
    """A table for a person: as it was, then each rate."""
    rows = [_HEAD, _row("as it was", result["present"])]
    rows += [_row(f"{100 * outlook['target_rate']:g} %", outlook) for outlook in result["outlooks"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    table = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = dict.fromkeys(note for outlook in [result["present"], *result["outlooks"]] for note in outlook["notes"])
    of_task = f" to {result['task']}" if result["task"] else ""
    return [*table, f"over {result['answers']} recorded answers{of_task}", *(f"note: {note}" for note in notes)]


def _row(name: str, outlook: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name,
        percent(outlook["rate"]),
        str(outlook["calls"]),
        _spend(outlook["spend_uusd"], outlook["spend_interval_uusd"]),
        _good(outlook["good_share"], outlook["good_interval"]),
        f"{outlook['latency_p50_s']:.2f} s",
        f"{outlook['latency_p90_s']:.2f} s",
    )


def _spend(spend: float | None, interval: Sequence[float] | None) -> str:
    if spend is None:
        return "not known"
    if interval is None or interval[0] == interval[1]:
        return dollars(round(spend))
    return f"{dollars(round(spend))} ({dollars(round(interval[0]))} to {dollars(round(interval[1]))})"


def _good(share: float | None, interval: Sequence[float] | None) -> str:
    if share is None or interval is None:
        return "not known"
    return f"{percent(share)} ({100 * interval[0]:.0f} to {100 * interval[1]:.0f})"
