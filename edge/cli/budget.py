"""`edge-agent budget`: what may be spent and what was, how often the model may ask, and no cloud for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.control import agent_control
from edge.cli.options import Config, Coordinator, Json, Sets, State, rate_of, task_label
from edge.cli.output import print_json, print_line, visible
from edge.cli.settings import Settings
from edge.core.formatting import counted, dollars, percent

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig
    from edge.serve.ports import AgentControl

app = typer.Typer(help="What may be spent, and what was.", no_args_is_help=True, rich_markup_mode=None)


@app.command("show")
def budget_show(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Of each task: calls, tokens and money used and allowed, the dial and the rate realised, the price of asking."""
    budgets = asyncio.run(_budgets(Settings(config, sets, None, coordinator, state).config()))
    if json:
        print_json(budgets)
    else:
        print(visible("\n".join(budget_lines(budgets))))
    return 0


@app.command("set", context_settings={"ignore_unknown_options": True})  # so that -5% is told to be no rate
def budget_set(
    rate: Annotated[
        str, typer.Argument(help="Share of questions that may ask, as 15% or 0.15; off: the model decides.", metavar="RATE")
    ],
    task: Annotated[
        str | None, typer.Option("--task", help="Of this task alone (default: of every one).", metavar="LABEL")
    ] = None,
    coordinator: Coordinator = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Turn the dial: how many of the next questions may ask the cloud. No retraining; kept over restarts."""
    target, label = rate_of(rate), task_label(task)
    resolved = Settings(config, sets, None, coordinator, state).config()
    known = [known["task"] for known in asyncio.run(_budgets(resolved))["tasks"]] if label else []
    budgets = asyncio.run(_changed(resolved, lambda agent: agent.set_dial(label, target)))
    if label and label not in known:
        print_line(unknown_task_line(label, known))
    if json:
        print_json(budgets)
    else:
        print(f"{f'task {label}' if label else 'every task'}: {_dial_words(target)}, from the next question on")
    return 0


@app.command("forget")
def budget_forget(
    task: Annotated[str, typer.Argument(help="The label whose dial is struck out.", metavar="LABEL")],
    coordinator: Coordinator = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Strike out the dial of a label, such as a mistyped one; what it spent stays spent."""
    task = task_label(task) or task
    budgets = asyncio.run(
        _changed(Settings(config, sets, None, coordinator, state).config(), lambda agent: agent.forget_task(task))
    )
    if json:
        print_json(budgets)
    elif any(known["task"] == task for known in budgets["tasks"]):
        print(f"task {task}: its dial is forgotten; it is learned or served here, so it goes on with the rate of every task")
    else:
        print(f"task {task} is forgotten; what it spent stays spent")
    return 0


@app.command("pause")
def budget_pause(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Ask no cloud, for answers or for learning, until `budget resume`."""
    return pause(Settings(config, sets, None, coordinator, state), paused=True, as_json=json)


@app.command("resume")
def budget_resume(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Let the cloud be asked again."""
    return pause(Settings(config, sets, None, coordinator, state), paused=False, as_json=json)


_UNITS = {"calls": "calls_limit", "tokens": "tokens_limit", "spend_uusd": "spend_limit_uusd"}
"""What is counted, and the field of its limit."""
_STATES = {"ok": "ok", "low": "low: little is left", "used_up": "used up: answers come from this device"}
_ORIGINS = {
    "agent": "",
    "coordinator": "reported by the coordinator; no agent was asked",
    "stored": "as last known in the state folder; no agent and no coordinator could be asked",
}


def unknown_task_line(task: str, known: Sequence[str]) -> str:
    """What is said of a label that may be a slip of the hand."""
    return f"no task of the label {task} is known yet (known: {', '.join(known) or 'none'}); edge-agent budget forget strikes one out"


def pause(settings: Settings, *, paused: bool, as_json: bool) -> int:
    """No cloud until resumed, or again."""
    budgets = asyncio.run(_changed(settings.config(), lambda agent: agent.pause(paused)))
    if as_json:
        print_json(budgets)
    elif paused:
        print("paused: no cloud is asked until edge-agent budget resume")
    else:
        off = budgets["switched_off"]
        print(f"resumed, but {off}" if off else "resumed: the cloud may be asked again")
    return 0


async def _budgets(config: AgentConfig) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.budget()


async def _changed(config: AgentConfig, change: Callable[[AgentControl], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await change(agent)


def budget_lines(budgets: Mapping[str, Any]) -> list[str]:
    """All budgets for a person: what the tasks share once, as the whole device's, then what is each task's."""
    tasks, device = budgets["tasks"], budgets["device"] or {}
    shared = [unit for unit in _UNITS if unit in device]
    state = _shared_state(tasks) if shared else ""
    lines = (
        ["device   this device in all", *_unit_lines(shared, device), *([f"state    {state}"] if state else []), ""]
        if shared
        else []
    )
    lines += [line for task in tasks for line in [*_task_lines(task, shared, with_state=not state), ""]]
    if not budgets["tasks"]:
        lines += ["nothing was asked or learned here yet", f"dial     {_dial_words(budgets['target_rate'])}"]
    if budgets["switched_off"]:
        lines.append(f"cloud    off: {budgets['switched_off']}")
    if budgets["outbox"] or budgets["unsettled_calls"]:
        unsettled = counted(budgets["unsettled_calls"], "cloud call")
        lines.append(f"waiting  {counted(budgets['outbox'], 'step report')}, {unsettled} whose end is not known")
    if _ORIGINS[budgets["origin"]]:
        lines.append(f"({_ORIGINS[budgets['origin']]})")
    return lines if lines[-1] else lines[:-1]


def _shared_state(tasks: Sequence[Mapping[str, Any]]) -> str:
    """The state that all tasks are in, or "" where they differ."""
    words = {_state_words(task) for task in tasks}
    return words.pop() if len(words) == 1 else ""


def _state_words(task: Mapping[str, Any]) -> str:
    """Beside the figures they need no repetition; what keeps the cloud away has a reason."""
    return _STATES.get(task["state"]) or f"{task['state'].replace('_', ' ')}: {task['line']}"


def _unit_lines(units: Sequence[str], task: Mapping[str, Any]) -> list[str]:
    return [f"{unit.removesuffix('_uusd'):<8} {_amount(task[unit], task[_UNITS[unit]], unit)}" for unit in units]


def _amount(used: int | None, limit: int | None, unit: str) -> str:
    return _used(used, limit, dollars if unit == "spend_uusd" else str)


def _task_lines(task: Mapping[str, Any], shared: Sequence[str], *, with_state: bool) -> list[str]:
    used = task["used"]
    return [
        f"task     {task['task']}",
        *_unit_lines([unit for unit in _UNITS if unit not in shared], task),
        f"used     {counted(used['calls'], 'call')}, {counted(used['tokens'], 'token')}, {dollars(used['spend_uusd'])} by this task alone",
        f"dial     {_dial_words(task['target_rate'])}{_realised(task['dial'])}",
        f"price λ  {'not known yet' if task['dual'] is None else format(task['dual'], '.4f')}",
        *([f"state    {_state_words(task)}"] if with_state else []),
    ]


def budget_line(budget: Mapping[str, Any] | None) -> str:
    """The budget on one line; None where the coordinator cannot be asked."""
    if budget is None:
        return "the coordinator cannot be reached; answers are local"
    return f"{amounts(budget)} · learning's target {percent(budget['target_rate'])} · λ {budget['dual']:.3f}"


def amounts(budget: Mapping[str, Any]) -> str:
    """What was used and what is allowed of each unit that the budget knows, on one line."""
    units = [unit for unit in _UNITS if unit in budget]
    return " · ".join(f"{unit.removesuffix('_uusd')} {_amount(budget[unit], budget[_UNITS[unit]], unit)}" for unit in units)


def chat_budget_lines(value: Mapping[str, Any]) -> list[str]:
    """In short, for a conversation: what may still be spent, the dial of its task, and why the cloud is off where it is."""
    dial, off = value["dial"], value["switched_off"]
    lines = [budget_line(value["budget"])]
    lines += [] if dial is None else [f"dial: {_dial_words(dial['target_rate'])}{_realised(dial)}"]
    return lines + ([f"cloud off: {off}"] if off else [])


def _used(used: int | None, limit: int | None, words: Callable[[int], str] = str) -> str:
    if used is None:
        return "not known yet"
    return f"{words(used)} (unlimited)" if limit is None else f"{words(used)} of {words(limit)}"


def _dial_words(rate: float | None) -> str:
    return "off, the model decides alone" if rate is None else f"{100 * rate:g} % of questions may ask"


def _realised(dial: Mapping[str, Any]) -> str:
    if not dial["questions"]:
        return "; none was asked since it was set" if dial["set_at"] else ""
    last = min(200, dial["questions"])
    since = (
        ""
        if last == dial["questions"]
        else f", {percent(dial['realised_since_set'])} of all {dial['questions']} since it was set"
    )
    return f"; {percent(dial['realised_rate'])} of the last {last} asked{since}"
