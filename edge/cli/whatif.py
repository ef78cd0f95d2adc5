"""`edge-agent whatif`: what another rate would have meant for the answers that were given, before the dial is turned."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.control import agent_control
from edge.cli.options import Config, Json, Sets, State, rate_of
from edge.cli.output import print_json
from edge.cli.settings import Settings
from edge.core.errors import UsageError
from edge.core.formatting import dollars, percent

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig


def command(
    share: Annotated[str | None, typer.Argument(help="The share to look at, as 10% or 0.1.", metavar="RATE")] = None,
    rate: Annotated[str | None, typer.Option("--target-rate", help="The same.", metavar="RATE")] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="A table over several rates.")] = False,
    task: Annotated[str | None, typer.Option("--task", help="Answers to this task alone.", metavar="LABEL")] = None,
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="How many of the last answers.", metavar="N")] = 1000,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Replay recorded answers (20 at least) at another rate: calls, spend, how good, how fast. Nothing is changed or asked."""
    if share is not None and rate is not None:
        raise UsageError("two rates", hint="give one, or --sweep for several")
    rates = _rates(share if rate is None else rate, sweep=sweep)
    result = asyncio.run(_result(Settings(config, sets, state=state).config(), rates, task or "", last))
    if json:
        print_json(result)
    else:
        print("\n".join(whatif_lines(result)))
    return 0


_HEAD = ("rate asked", "of answers", "calls", "spend", "judged good", "p50", "p90")


def _rates(rate: str | None, *, sweep: bool) -> list[float]:
    from edge.budget.whatif import SWEEP

    given = [] if rate is None else [rate_of(rate)]
    rates = [one for one in given if one is not None] + (list(SWEEP) if sweep else [])
    if not rates:
        raise UsageError("no rate", hint="give one, as edge-agent whatif 10%, or --sweep for several")
    return sorted(set(rates))


async def _result(config: AgentConfig, rates: Sequence[float], task: str, last: int) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.whatif(rates, task, last)


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
