"""`edge-agent budget`: what may be spent and what was, how often the model may ask, and no cloud for a while.

An agent that runs is spoken to; otherwise its state folder is, without loading a model or starting a coordinator. Looking also works beside
an agent that cannot be spoken to, such as `edge-agent learn`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edge.cli.running import running_agent
from edge.cli.saying import print_json, print_line, visible
from edge.config.schema import AgentConfig
from edge.console import dollars
from edge.core.errors import UsageError
from edge.core.formatting import counted, percent

if TYPE_CHECKING:
    from edge.budget.overview import StoredSettings
    from edge.cli.settings import Settings

_UNITS = {"calls": "calls_limit", "tokens": "tokens_limit", "spend_uusd": "spend_limit_uusd"}
"""What is counted, and the field of its limit."""
_STATES = {"ok": "ok", "low": "low: little is left", "used_up": "used up: answers come from this device"}
_ORIGINS = {
    "agent": "",
    "coordinator": "told by the coordinator; no agent was asked",
    "stored": "as last known in the state folder; no agent and no coordinator could be asked",
}


def show(settings: Settings, *, as_json: bool) -> int:
    """The budgets of all tasks."""
    return _say(asyncio.run(_budgets(settings.config())), as_json=as_json)


def set_dial(settings: Settings, rate: str, task: str | None, *, as_json: bool) -> int:
    """Turn the dial. Raises UsageError for a rate that cannot be read, StateError beside an agent that cannot be spoken to."""
    target, config = rate_of(rate), settings.config()
    known = [known["task"] for known in asyncio.run(_budgets(config))["tasks"]] if task else []
    budgets = asyncio.run(_changed(config, "/api/budget", {"task": task, "target_rate": target}))
    if task and task not in known:
        print_line(unknown_task_line(task, known))
    if as_json:
        print_json(budgets)
    else:
        print(f"{f'task {task}' if task else 'every task'}: {_dial_words(target)}, from the next question on")
    return 0


def forget(settings: Settings, task: str, *, as_json: bool) -> int:
    """Strike out a label. Raises NotFound for one without a dial, StateError beside an agent that cannot be spoken to."""
    budgets = asyncio.run(_changed(settings.config(), "/api/budget/forget", {"task": task}))
    if as_json:
        print_json(budgets)
    elif any(known["task"] == task for known in budgets["tasks"]):
        print(f"task {task}: its dial is forgotten; it is learned or served here, so it goes on with the rate of every task")
    else:
        print(f"task {task} is forgotten; what it spent stays spent")
    return 0


def unknown_task_line(task: str, known: Sequence[str]) -> str:
    """What is said of a label that may be a slip of the hand."""
    return f"no task of the label {task} is known yet (known: {', '.join(known) or 'none'}); edge-agent budget forget strikes one out"


def pause(settings: Settings, *, paused: bool, as_json: bool) -> int:
    """No cloud until resumed, or again."""
    budgets = asyncio.run(_changed(settings.config(), "/api/budget/pause", {"paused": paused}))
    if as_json:
        print_json(budgets)
    elif paused:
        print("paused: no cloud is asked until edge-agent budget resume")
    else:
        off = budgets["switched_off"]
        print(f"resumed, but {off}" if off else "resumed: the cloud may be asked again")
    return 0


def rate_of(text: str) -> float | None:
    """`15%` and `0.15` are 0.15, `off` is None. Raises UsageError for anything else."""
    word = text.strip().lower()
    if word == "off":
        return None
    try:
        value = float(word.removesuffix("%")) / (100.0 if word.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"{text!r} is no rate", hint="write a share such as 15% or 0.15, or off")
    return value


async def _budgets(config: AgentConfig) -> Mapping[str, Any]:
    from edge.app import state_folder

    async with running_agent(state_folder(config)) as remote:
        if remote is not None:
            return await remote.get("/api/budget")
    return await _stored(config)


async def _stored(config: AgentConfig) -> Mapping[str, Any]:
    from edge.app import state_folder
    from edge.budget.overview import nothing_stored, stored_overview, stored_tasks
    from edge.cli.looking import told_budgets
    from edge.state.reader import reading

    settings = _settings(config)
    with reading(state_folder(config)) as state:
        if state is None:
            return nothing_stored(settings).to_json()
        told = await told_budgets(config, state, stored_tasks(state, settings))
        return stored_overview(state, settings, told).to_json()


async def _changed(config: AgentConfig, path: str, change: Mapping[str, Any]) -> Mapping[str, Any]:
    """Change it in the running agent, or in the state folder."""
    from edge.app import state_folder

    async with running_agent(state_folder(config)) as remote:
        if remote is not None:
            return await remote.post(path, change)
    _change_folder(config, change)
    return await _stored(config)


def _change_folder(config: AgentConfig, change: Mapping[str, Any]) -> None:
    from edge.app import state_folder
    from edge.budget.dial import Dials
    from edge.cli.looking import present_folder
    from edge.cloud.switch import set_paused
    from edge.core.clock import SystemClock
    from edge.state.folder import StateFolder

    clock = SystemClock()
    with StateFolder(present_folder(state_folder(config))) as state:
        if "paused" in change:
            set_paused(state, change["paused"], clock.now())
        elif "target_rate" in change:
            Dials(state, config.budget.dial, clock).set(change["target_rate"], change["task"] or None)
        else:
            Dials(state, config.budget.dial, clock).forget(change["task"])


def _settings(config: AgentConfig) -> StoredSettings:
    from edge.app import switched_off
    from edge.budget.overview import StoredSettings

    return StoredSettings(config.budget.dial, config.serve.task or "", switched_off(config))


def _say(budgets: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        print_json(budgets)
    else:
        print(visible("\n".join(budget_lines(budgets))))
    return 0


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
    parts = [
        f"calls {_used(budget['calls'], budget['calls_limit'])}",
        f"tokens {_used(budget['tokens'], budget['tokens_limit'])}",
        f"spend {_used(budget['spend_uusd'], budget['spend_limit_uusd'], dollars)}",
        f"learning's target {percent(budget['target_rate'])}",
        f"λ {budget['dual']:.3f}",
    ]
    return " · ".join(parts)


def chat_budget_lines(value: Mapping[str, Any]) -> list[str]:
    """In short, for a conversation: what may still be spent, the dial of its task, and why the cloud is off where it is."""
    dial, off = value["dial"], value["switched_off"]
    lines = [budget_line(value["budget"])]
    lines += [] if dial is None else [f"dial: {_dial_words(dial['target_rate'])}{_realised(dial)}"]
    return lines + ([f"cloud off: {off}"] if off else [])


def _used(used: int | None, limit: int | None, words: Callable[[int], str] = str) -> str:
    if used is None:
        return "not known yet"
    return f"{words(used)} of {'no limit' if limit is None else words(limit)}"


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
