"""`edge-agent budget`: what may be spent and what was, how often the model may ask, and no cloud for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from edge.cli.options import Json, rate_or_off, task_label
from edge.cli.output import local_time, print_line, print_result, visible
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.errors import UsageError
from edge.core.formatting import counted, percent, rate_words, shown, uusd_of
from edge.core.periods import PERIOD_WORDS, PERIODS
from edge.core.units import BUDGET_UNITS, CALLS, SPEND, TOKENS, Unit

if TYPE_CHECKING:
    from edge.serve.agent_schemas import AmountsView, BudgetsView, DialView, LedgerBudgetView

app = Typer(help="What may be spent, and what was.", no_args_is_help=True, rich_markup_mode=None)


@app.command("show")
@takes("coordinator state")
def budget_show(settings: Settings, json: Json = False) -> None:
    """Of each task: calls, tokens and money used and allowed, the dial and the rate realised, the cost of asking."""
    budgets = ask_agent(settings.config(), lambda agent: agent.budget())
    print_result(budgets, map(visible, budget_lines(budgets)), as_json=json)


@app.command("set", context_settings={"ignore_unknown_options": True})  # so that -5% is reported to be no rate
@takes("coordinator state")
def budget_set(
    rate: Annotated[
        list[str],
        Argument(help="Share of questions that may ask, as 15%, 15 % or 0.15; off: the model decides.", metavar="RATE"),
    ],
    task: Annotated[str | None, Option("--task", help="Of this task alone (default: of every one).", metavar="LABEL")] = None,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Turn the dial: how many of the next questions may ask the cloud. No retraining; kept over restarts."""
    target, label = rate_or_off(" ".join(rate)), task_label(task)
    config = settings.config()
    known = known_labels(ask_agent(config, lambda agent: agent.budget())) if label else []
    budgets = ask_agent(config, lambda agent: agent.set_dial(label, target))
    if label and label not in known:
        print_line(unknown_task_line(label, known))
    whose = f"task {label}" if label else "every task"
    print_result(budgets, [f"{whose}: {_dial_words(target)}, from the next question on"], as_json=json)


@app.command("limit", context_settings={"ignore_unknown_options": True})  # so that -5 is reported to be no amount
@takes("coordinator state")
def budget_limit(
    spend: Annotated[str | None, Option("--spend", help="Most USD, as 5 or 0.25; off: no limit.", metavar="USD")] = None,
    calls: Annotated[str | None, Option("--calls", help="Most cloud calls; off: no limit.", metavar="N")] = None,
    tokens: Annotated[
        str | None, Option("--tokens", help="Most cloud tokens, input and output together; off: no limit.", metavar="N")
    ] = None,
    per: Annotated[
        str | None,
        Option("--per", help="month, week, day or hour of the calendar in UTC, or total: for good.", metavar="PERIOD"),
    ] = None,
    off: Annotated[bool, Option("--off", help="Take off what was set here; limits of the configuration hold again.")] = False,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Set a hard limit that the cloud's bill never passes, from now on and over restarts; what is not named stays.

    A limit counts what is used from the time on that its period was set first.
    """
    from edge.app.settings import state_folder

    changes = limit_changes(spend, calls, tokens, per)
    if off and changes:
        raise UsageError("--off takes a limit off and sets none", hint="give --off alone, or leave it out")
    if not off and not changes:
        raise UsageError(
            "nothing to set", hint="give --spend, --calls, --tokens or --per, or --off; budget show lists what holds"
        )
    config = settings.config()
    if not (folder := state_folder(config)).exists():
        print_line(f"{folder} is new: the limit holds for the agent that will run on it")
    budgets = ask_agent(config, lambda agent: agent.set_limits(None if off else changes))
    since = "; what was used before this period was set is not counted" if per is not None else ""
    print_result(budgets, [f"limit: {_limit_words(budgets)}{_practice(budgets)}{since}"], as_json=json)


def limit_changes(spend: str | None, calls: str | None, tokens: str | None, per: str | None) -> dict[str, int | str | None]:
    """The limits that options name, by their fields. Raises UsageError."""
    changes: dict[str, int | str | None] = {}
    for unit, text, read in ((SPEND, spend, uusd_of), (CALLS, calls, _count_of), (TOKENS, tokens, _count_of)):
        if text is not None:
            try:
                changes[unit.limit] = None if text.strip().lower() == "off" else read(text)
            except ValueError as error:
                raise UsageError(f"--{unit.word} {error}") from error
    if per is not None:
        if per not in PERIODS:
            raise UsageError(f"--per {shown(per)!r}: must be one of {', '.join(PERIODS)}")
        changes["period"] = per
    return changes


def _count_of(text: str) -> int:
    if not text.strip().isascii() or not text.strip().isdecimal() or len(text.strip()) > 15:
        raise ValueError(f"must be a whole number of at most 15 digits, not {text!r}")
    return int(text)


@app.command("forget")
@takes("coordinator state")
def budget_forget(
    task: Annotated[str, Argument(help="The label whose dial is struck out.", metavar="LABEL")],
    settings: Settings,
    json: Json = False,
) -> None:
    """Strike out the dial of a label, such as a mistyped one; what it spent stays spent."""
    task = task_label(task) or task
    budgets = ask_agent(settings.config(), lambda agent: agent.forget_task(task))
    if any(known.task == task for known in budgets.tasks):
        text = f"task {task}: its dial is forgotten; it is learned or served here, so it goes on with the rate of every task"
    else:
        text = f"task {task} is forgotten; what it spent stays spent"
    print_result(budgets, [text], as_json=json)


@app.command("pause")
@takes("coordinator state")
def budget_pause(settings: Settings, json: Json = False) -> None:
    """Ask no cloud, for answers or for learning, until `budget resume`."""
    budgets = ask_agent(settings.config(), lambda agent: agent.pause(True))
    print_result(budgets, ["paused: no cloud is asked until edge-agent budget resume"], as_json=json)


@app.command("resume")
@takes("coordinator state")
def budget_resume(settings: Settings, json: Json = False) -> None:
    """Let the cloud be asked again."""
    budgets = ask_agent(settings.config(), lambda agent: agent.pause(False))
    off = budgets.switched_off
    print_result(budgets, [f"resumed, but {off}" if off else "resumed: the cloud may be asked again"], as_json=json)


_STATES = {"ok": "ok", "low": "low: little is left", "used_up": "used up: answers come from this device"}
_ORIGINS = {
    "agent": "",
    "coordinator": "reported by the coordinator; no agent was asked",
    "stored": "as last known in the state folder; no agent and no coordinator could be asked",
}


def known_labels(budgets: BudgetsView) -> list[str]:
    """The labels that somebody serves, learns or has asked under."""
    named = [budgets.serving_task] if budgets.serving_task else []
    return list(dict.fromkeys([*named, *(known.task for known in budgets.tasks)]))


def unknown_task_line(task: str, known: Sequence[str]) -> str:
    """What is printed about a label that may be a typing error."""
    return f"no task of the label {task} is known yet (known: {', '.join(known) or 'none'}); edge-agent budget forget strikes one out"


def budget_lines(budgets: BudgetsView) -> list[str]:
    """All budgets for a person: what the tasks share once, as the whole device's, then what is each task's."""
    tasks, device = budgets.tasks, budgets.device
    shared = device.units if device else ()
    states = [_STATES.get(task.state) or f"{task.state.replace('_', ' ')}: {task.line}" for task in tasks]
    one_state = states[0] if shared and len(set(states)) == 1 else ""
    lines = [f"target   {budgets.target}"]
    if budgets.limits is not None:
        lines.append(f"limit    {_limit_words(budgets)}")
    if budgets.cloud_name:
        lines.append(f"cloud    {budgets.cloud_name}")
    lines.append("")
    if device is not None:
        lines += [
            "device   this device in all",
            *_unit_lines(shared, device),
            *([f"state    {one_state}"] if one_state else []),
            "",
        ]
    for task, state in zip(tasks, states, strict=True):
        spent = ", ".join(unit.amount(getattr(task.used, unit.name)) for unit in BUDGET_UNITS)
        lines += [
            f"task     {task.task}",
            *_unit_lines([unit for unit in BUDGET_UNITS if unit not in shared], task),
            f"used     {spent} by this task alone",
            f"dial     {_dial_words(task.target_rate)}{_realised(task.dial)}",
            f"log-odds {task.dial.ranking.words}",
            f"λ        {'not known yet' if task.dual is None else format(task.dual, '.4f')}",
            *([] if one_state else [f"state    {state}"]),
            "",
        ]
    if not tasks:
        lines += ["nothing was asked or learned here yet", f"dial     {_dial_words(budgets.target_rate)}"]
    if budgets.switched_off:
        lines.append(f"cloud    off: {budgets.switched_off}")
    if budgets.waiting_reports or budgets.unsettled_calls:
        unconfirmed = counted(budgets.unsettled_calls, "cloud call")
        lines.append(f"waiting  {counted(budgets.waiting_reports, 'step report')}, {unconfirmed} whose end is not known")
    if origin := _ORIGINS[budgets.origin]:
        lines.append(f"({origin})")
    return lines if lines[-1] else lines[:-1]


def _limit_words(budgets: BudgetsView) -> str:
    limits = budgets.limits
    if limits is None or limits.words == "no limit" or limits.renews_at is None:
        return "no limit" if limits is None else limits.words
    return f"{limits.words}, begins anew on {local_time(limits.renews_at)[:16]}"


def _practice(budgets: BudgetsView) -> str:
    return f" ({budgets.cloud_name})" if budgets.cloud_name else ""


def _unit_lines(units: Sequence[Unit], task: AmountsView) -> list[str]:
    return [f"{unit.word:<8} {_amount(task, unit)}" for unit in units]


def _amount(budget: AmountsView, unit: Unit) -> str:
    used, limit = getattr(budget, unit.name), getattr(budget, unit.limit)
    if used is None:
        return "not known yet"
    period = PERIOD_WORDS.get(getattr(budget, unit.period) or "total", "")
    of_period = "" if period == PERIOD_WORDS["total"] else f" {period}"
    return f"{unit.number(used)} (unlimited)" if limit is None else f"{unit.number(used)} of {unit.number(limit)}{of_period}"


def amounts(budget: AmountsView) -> str:
    """What was used and what is allowed of each of its units, on one line."""
    return " · ".join(f"{unit.word} {_amount(budget, unit)}" for unit in budget.units)


def chat_budget_lines(budgets: BudgetsView, budget: LedgerBudgetView | None, dial: DialView | None) -> list[str]:
    """In short, for a conversation: what asking is held to, what may still be spent (`budget` is None where the coordinator cannot be
    asked), the dial of its task, and why the cloud is off where it is."""
    lines = [f"target: {budgets.target}"]
    if budget is None:
        lines.append("the coordinator cannot be reached; answers are local")
    else:
        spent = f"{amounts(budget)}{_practice(budgets)}"
        lines.append(f"{spent} · learning's target {percent(budget.target_rate)} · λ {budget.dual:.3f}")
    if dial is not None:
        lines.append(f"dial: {_dial_words(dial.target_rate)}{_realised(dial)}")
        lines.append(f"help log-odds: {dial.ranking.words}")
    return lines + ([f"cloud off: {budgets.switched_off}"] if budgets.switched_off else [])


def _dial_words(rate: float | None) -> str:
    return "off, the model decides alone" if rate is None else f"{rate_words(rate)} of questions may ask"


def _realised(dial: DialView) -> str:
    asked = dial.questions
    if not asked:
        return "; none was asked since it was set" if dial.set_at else ""
    last = min(200, asked)
    since = "" if last == asked else f", {percent(dial.realised_since_set)} of all {asked} since it was set"
    return f"; {percent(dial.realised_rate)} of the last {last} asked{since}"
