"""`edge-agent whatif`: what another rate would have meant for the answers that were given, before the dial is turned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from edge.cli.options import Json, rate_or_off
from edge.cli.output import columns, print_result
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.errors import UsageError
from edge.core.formatting import money, percent

if TYPE_CHECKING:
    from edge.serve.agent_schemas import OutlookView, WhatIfView


@takes("state")
def command(
    share: Annotated[list[str] | None, Argument(help="The share to simulate, as 10%, 10 % or 0.1.", metavar="RATE")] = None,
    rate: Annotated[str | None, Option("--target-rate", help="The same.", metavar="RATE")] = None,
    sweep: Annotated[bool, Option("--sweep", help="A table over several rates.")] = False,
    task: Annotated[str | None, Option("--task", help="Answers to this task alone.", metavar="LABEL")] = None,
    last: Annotated[int, Option("--last", min=1, max=100_000, help="How many of the last answers.", metavar="N")] = 1000,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Replay recorded answers (20 at least) at another rate: calls, spend, how good, how fast. Nothing is changed or asked."""
    from edge.budget.whatif import SWEEP

    if share and rate is not None:
        raise UsageError("two rates", hint="give one, or --sweep for several")
    given = " ".join(share) if share else rate
    one = None if given is None else rate_or_off(given)
    rates = sorted({*([] if one is None else [one]), *(SWEEP if sweep else [])})
    if not rates:
        raise UsageError("no rate", hint="give one, as edge-agent whatif 10%, or --sweep for several")
    result = ask_agent(settings.config(), lambda agent: agent.whatif(rates, task or "", last))
    print_result(result, whatif_lines(result), as_json=json)


def whatif_lines(result: WhatIfView) -> list[str]:
    """A table for a person: as it was, then each rate."""
    rows = [("rate asked", "of answers", "calls", "spend", "judged good", "p50", "p90"), _row("as it was", result.present)]
    rows += [_row(f"{100 * (outlook.target_rate or 0.0):g} %", outlook) for outlook in result.outlooks]
    notes = dict.fromkeys(note for outlook in [result.present, *result.outlooks] for note in outlook.notes)
    of_task = f" to {result.task}" if result.task else ""
    return [*columns(rows), f"over {result.answers} recorded answers{of_task}", *(f"note: {note}" for note in notes)]


def _row(name: str, outlook: OutlookView) -> tuple[str, ...]:
    spend, spends = outlook.spend_uusd, outlook.spend_interval_uusd
    spent = "not known" if spend is None else money(round(spend))
    if spend is not None and spends is not None and spends[0] != spends[1]:
        spent += f" ({money(round(spends[0]))} to {money(round(spends[1]))})"
    good = "not known"
    if outlook.good_share is not None and outlook.good_interval is not None:
        low, high = outlook.good_interval
        good = f"{percent(outlook.good_share)} ({100 * low:.0f} to {100 * high:.0f})"
    times = f"{outlook.latency_p50_s:.2f} s", f"{outlook.latency_p90_s:.2f} s"
    return (name, percent(outlook.rate), str(outlook.calls), spent, good, *times)
