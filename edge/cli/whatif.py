"""`edge-agent whatif`: what another rate would have meant for the answers that were given, before the dial is turned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from edge.cli.options import Json, rate_given, rate_or_off
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
    good: Annotated[
        str | None,
        Option("--good", help="The least rate at which this share of the answers would be good, as 95%.", metavar="SHARE"),
    ] = None,
    task: Annotated[str | None, Option("--task", help="Answers to this task alone.", metavar="LABEL")] = None,
    last: Annotated[int, Option("--last", min=1, max=100_000, help="How many of the last answers.", metavar="N")] = 1000,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Replay recorded answers (20 at least) at another rate, or find the rate for a share of good ones: calls, spend, how good, how fast.
    Nothing is changed or asked."""
    from edge.budget.whatif import SWEEP

    if share and rate is not None:
        raise UsageError("two rates", hint="give one, or --sweep for several")
    given = " ".join(share) if share else rate
    one = None if given is None else rate_or_off(given)
    wanted = None if good is None else rate_given(good, "a share of the answers is wanted")
    rates = {*([] if one is None else [one]), *(SWEEP if sweep else [])}
    if not rates and wanted is None:
        raise UsageError("no rate", hint="give one, as edge-agent whatif 10%, --sweep for several, or --good 95%")
    tried = rates if wanted is None else {*rates, *(number / 100 for number in range(101))}
    result = ask_agent(settings.config(), lambda agent: agent.whatif(sorted(tried), task or "", last))
    lines = []
    if wanted is not None:
        lines = good_lines(result.outlooks, wanted)
        found = {one.target_rate for one in (least_rate(result.outlooks, wanted, sure) for sure in (False, True)) if one}
        kept = [one for one in result.outlooks if one.target_rate in rates | found] or result.outlooks[-1:]
        result = result.model_copy(update={"outlooks": kept})
    print_result(result, [*whatif_lines(result), *lines], as_json=json)


def least_rate(outlooks: Sequence[OutlookView], good: float, sure: bool) -> OutlookView | None:
    """The first of these, by rate, at which this share of the answers would be good; `sure`: with the lower end of the interval."""

    def share(one: OutlookView) -> float:
        lowest = one.good_interval[0] if one.good_interval else 0.0
        return lowest if sure else one.good_share or 0.0

    return next((one for one in outlooks if one.good_share is not None and share(one) >= good), None)


def good_lines(outlooks: Sequence[OutlookView], good: float) -> list[str]:
    """What rate keeps this share of the answers good, for a person."""
    known = [one for one in outlooks if one.good_share is not None]
    if not known:
        return [f"what rate keeps {percent(good)} good is not known: rate more answers, of this device and of the cloud"]
    expected, sure = least_rate(outlooks, good, sure=False), least_rate(outlooks, good, sure=True)
    if expected is None:
        best = max(known, key=lambda one: one.good_share or 0.0)
        return [
            f"no rate keeps {percent(good)} good: at most {percent(best.good_share or 0.0)} are expected, at {percent(best.rate)}"
        ]
    surely = "at no rate for certain" if sure is None else f"for certain (95 %) from {percent(sure.rate)}"
    return [f"{percent(good)} are expected to be good from {percent(expected.rate)} asked, {surely}"]


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
