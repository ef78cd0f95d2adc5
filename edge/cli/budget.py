"""`edge-agent budget`: what may be spent and what was, how often the model may ask, and no cloud for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from typer import Argument, Option, Typer

from edge.cli.options import Json, rate_of, task_label
from edge.cli.output import print_line, print_result, visible
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.formatting import counted, dollars, percent

app = Typer(help="What may be spent, and what was.", no_args_is_help=True, rich_markup_mode=None)


@app.command("show")
@takes("coordinator state")
def budget_show(settings: Settings, json: Json = False) -> None:
    """Of each task: calls, tokens and money used and allowed, the dial and the rate realised, the price of asking."""
    budgets = ask_agent(settings.config(), lambda agent: agent.budget())
    print_result(budgets, map(visible, budget_lines(budgets)), as_json=json)


@app.command("set", context_settings={"ignore_unknown_options": True})  # so that -5% is reported to be no rate
@takes("coordinator state")
def budget_set(
    rate: Annotated[
        str, Argument(help="Share of questions that may ask, as 15% or 0.15; off: the model decides.", metavar="RATE")
    ],
    task: Annotated[str | None, Option("--task", help="Of this task alone (default: of every one).", metavar="LABEL")] = None,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Turn the dial: how many of the next questions may ask the cloud. No retraining; kept over restarts."""
    target, label = rate_of(rate), task_label(task)
    config = settings.config()
    known = known_labels(ask_agent(config, lambda agent: agent.budget())) if label else []
    budgets = ask_agent(config, lambda agent: agent.set_dial(label, target))
    if label and label not in known:
        print_line(unknown_task_line(label, known))
    whose = f"task {label}" if label else "every task"
    print_result(budgets, [f"{whose}: {_dial_words(target)}, from the next question on"], as_json=json)


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
    if any(known["task"] == task for known in budgets["tasks"]):
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
    off = budgets["switched_off"]
    print_result(budgets, [f"resumed, but {off}" if off else "resumed: the cloud may be asked again"], as_json=json)


_UNITS = {"calls": "calls_limit", "tokens": "tokens_limit", "spend_uusd": "spend_limit_uusd"}
"""What is counted, and the field of its limit."""
_STATES = {"ok": "ok", "low": "low: little is left", "used_up": "used up: answers come from this device"}
_ORIGINS = {
    "agent": "",
    "coordinator": "reported by the coordinator; no agent was asked",
    "stored": "as last known in the state folder; no agent and no coordinator could be asked",
}


def known_labels(budgets: Mapping[str, Any]) -> list[str]:
    """The labels that somebody serves, learns or has asked under."""
    named = [budgets["serving_task"]] if budgets["serving_task"] else []
    return list(dict.fromkeys([*named, *(known["task"] for known in budgets["tasks"])]))


def unknown_task_line(task: str, known: Sequence[str]) -> str:
    """What is printed about a label that may be a slip of the hand."""
    return f"no task of the label {task} is known yet (known: {', '.join(known) or 'none'}); edge-agent budget forget strikes one out"


def budget_lines(budgets: Mapping[str, Any]) -> list[str]:
    """All budgets for a person: what the tasks share once, as the whole device's, then what is each task's."""
    tasks, device = budgets["tasks"], budgets["device"] or {}
    shared = [unit for unit in _UNITS if unit in device]
    states = [_STATES.get(task["state"]) or f"{task['state'].replace('_', ' ')}: {task['line']}" for task in tasks]
    one_state = states[0] if shared and len(set(states)) == 1 else ""
    lines: list[str] = []
    if shared:
        lines += [
            "device   this device in all",
            *_unit_lines(shared, device),
            *([f"state    {one_state}"] if one_state else []),
            "",
        ]
    for task, state in zip(tasks, states, strict=True):
        used = task["used"]
        spent = f"{counted(used['calls'], 'call')}, {counted(used['tokens'], 'token')}, {dollars(used['spend_uusd'])}"
        lines += [
            f"task     {task['task']}",
            *_unit_lines([unit for unit in _UNITS if unit not in shared], task),
            f"used     {spent} by this task alone",
            f"dial     {_dial_words(task['target_rate'])}{_realised(task['dial'])}",
            f"price λ  {'not known yet' if task['dual'] is None else format(task['dual'], '.4f')}",
            *([] if one_state else [f"state    {state}"]),
            "",
        ]
    if not tasks:
        lines += ["nothing was asked or learned here yet", f"dial     {_dial_words(budgets['target_rate'])}"]
    if budgets["switched_off"]:
        lines.append(f"cloud    off: {budgets['switched_off']}")
    if budgets["outbox"] or budgets["unsettled_calls"]:
        unconfirmed = counted(budgets["unsettled_calls"], "cloud call")
        lines.append(f"waiting  {counted(budgets['outbox'], 'step report')}, {unconfirmed} whose end is not known")
    if origin := _ORIGINS[budgets["origin"]]:
        lines.append(f"({origin})")
    return lines if lines[-1] else lines[:-1]


def _unit_lines(units: Sequence[str], task: Mapping[str, Any]) -> list[str]:
    return [f"{unit.removesuffix('_uusd'):<8} {_amount(task, unit)}" for unit in units]


def _amount(budget: Mapping[str, Any], unit: str) -> str:
    used, limit, words = budget[unit], budget[_UNITS[unit]], dollars if unit == "spend_uusd" else str
    if used is None:
        return "not known yet"
    return f"{words(used)} (unlimited)" if limit is None else f"{words(used)} of {words(limit)}"


def amounts(budget: Mapping[str, Any]) -> str:
    """What was used and what is allowed of each unit that the budget knows, on one line."""
    return " · ".join(f"{unit.removesuffix('_uusd')} {_amount(budget, unit)}" for unit in _UNITS if unit in budget)


def chat_budget_lines(value: Mapping[str, Any]) -> list[str]:
    """In short, for a conversation: what may still be spent (`budget` is None where the coordinator cannot be asked), the dial of its
    task, and why the cloud is off where it is."""
    budget, dial, off = value["budget"], value["dial"], value["switched_off"]
    if budget is None:
        lines = ["the coordinator cannot be reached; answers are local"]
    else:
        lines = [f"{amounts(budget)} · learning's target {percent(budget['target_rate'])} · λ {budget['dual']:.3f}"]
    lines += [] if dial is None else [f"dial: {_dial_words(dial['target_rate'])}{_realised(dial)}"]
    return lines + ([f"cloud off: {off}"] if off else [])


def _dial_words(rate: float | None) -> str:
    return "off, the model decides alone" if rate is None else f"{100 * rate:g} % of questions may ask"


def _realised(dial: Mapping[str, Any]) -> str:
    asked = dial["questions"]
    if not asked:
        return "; none was asked since it was set" if dial["set_at"] else ""
    last = min(200, asked)
    since = "" if last == asked else f", {percent(dial['realised_since_set'])} of all {asked} since it was set"
    return f"; {percent(dial['realised_rate'])} of the last {last} asked{since}"
