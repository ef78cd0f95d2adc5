"""`edge-agent status`: what runs, what it learns, what serves, and what may still be spent, on one screen; also where no agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edge.cli.budget import amounts
from edge.cli.control import agent_control
from edge.cli.options import Config, Coordinator, Json, Sets, State
from edge.cli.output import local_time, one_line, print_json
from edge.cli.settings import Settings
from edge.core.clock import SystemClock
from edge.core.errors import StateError
from edge.core.formatting import counted, dollars, percent

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig
    from edge.serve.ports import AgentControl

_STAGES = {"idle": "not learning", "learning": "learning", "paused": "waiting while somebody is answered", "stopped": "stopped"}


def command(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """What runs, what it learns, the active adapter, the budget and the address; without an agent, what the state folder holds."""
    found = asyncio.run(_status(Settings(config, sets, None, coordinator, state).config()))
    if json:
        print_json(found)
    else:
        print("\n".join(f"{name:<12} {one_line(text)}" for name, text in status_lines(found)))
    return 0


async def _status(config: AgentConfig) -> dict[str, Any]:
    from edge.app import state_folder

    async with agent_control(config) as agent:
        found = await agent.status()
        running, done = found["running"], found["steps_done"]
        steps = await agent.steps(max(0, done - 1))
        return {
            "running": running,
            "address": found["address"],
            "pid": found["pid"],
            "since": round(SystemClock().now() - found["uptime_s"], 1) if running else None,
            "state_folder": str(state_folder(config)),
            "model": found["model"]["name"] if found["model"] else None,
            "mode": found["mode"],
            "learning": _learning(found, steps[-1] if steps else None),
            "adapter": {"active": found["adapter_version"], "trained": found["trained_version"]},
            "budget": await agent.budget(),
            "used_today": await _used_today(agent),
            "cloud": {"online": found["online"], "reason": found["offline_reason"], "coordinator": found.get("coordinator", "")},
        }


def _learning(found: Mapping[str, Any], last_step: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is learned; `assist_rate` is of the last step."""
    names = ("task", "phase", "phases", "steps_done", "steps_planned", "paused", "waiting", "target_rate", "dual")
    rate = last_step["assist_rate"] if last_step else None
    return {"stage": found["learning"], **{name: found[name] for name in names}, "assist_rate": rate}


async def _used_today(agent: AgentControl) -> Mapping[str, Any] | None:
    """None where the folder is of a version that did not note it."""
    try:
        return dict((await agent.usage())["today"])
    except StateError:
        return None


def status_lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and what is to be said of them."""
    yield "agent", _agent(found)
    if found["model"]:
        yield "model", f"{found['model']}, mode {found['mode']}"
    yield "learning", _learning_words(found["learning"], running=found["running"])
    if rates := _rates(found["learning"], found["budget"]):
        yield "assist rate", rates
    yield "adapter", _adapter(found["adapter"])
    yield "budget", _budget(found["budget"])
    yield "today", _today(found["used_today"])
    yield "cloud", _cloud(found)
    yield "state", found["state_folder"]


def _agent(found: Mapping[str, Any]) -> str:
    if not found["running"]:
        return "none that can be reached runs on this state folder, whose contents follow; edge-agent run starts one"
    pid = "" if found["pid"] is None else f" (pid {found['pid']})"
    return f"runs since {local_time(found['since'])}{pid} at {found['address']}"


def _learning_words(learning: Mapping[str, Any], *, running: bool) -> str:
    planned = "" if learning["steps_planned"] is None else f" of {learning['steps_planned']}"
    if not learning["task"]:
        return "nothing yet" if not running else _stage(learning)
    where = f"task {learning['task']}, phase {learning['phase'] + 1} of {learning['phases']}"
    steps = f"{counted(learning['steps_done'], 'step')}{planned} done"
    stage = _stage(learning) if running or learning["waiting"] else ""
    return ", ".join(filter(None, (stage, where, steps)))


def _stage(learning: Mapping[str, Any]) -> str:
    return str(learning["waiting"] or _STAGES.get(learning["stage"], learning["stage"]))


def _rates(learning: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
    """The assist rates of learning and of answers beside their targets."""
    parts = []
    if learning["assist_rate"] is not None:
        parts.append(f"learning {percent(learning['assist_rate'])}, target {percent(learning['target_rate'])}")
    for task in budget["tasks"]:
        dial = task["dial"]
        if dial["questions"]:
            target = "no target" if dial["target_rate"] is None else f"target {percent(dial['target_rate'])}"
            parts.append(f"answers of {task['task']} {percent(dial['realised_rate'])}, {target}")
    return " · ".join(parts)


def _adapter(adapter: Mapping[str, Any]) -> str:
    active = f"{adapter['active']} is active" if adapter["active"] else "none is active: the bare model answers"
    return active if adapter["trained"] == adapter["active"] else f"{active}; training goes on from {adapter['trained']}"


def _budget(budget: Mapping[str, Any]) -> str:
    """Of the whole device where the tasks share it, else of each task."""
    if budget["device"]:
        return amounts(budget["device"])
    return " | ".join(f"{task['task']}: {amounts(task)}" for task in budget["tasks"]) or "nothing was asked or learned here yet"


def _today(used: Mapping[str, Any] | None) -> str:
    if used is None:
        return "not known"
    calls = (
        f"{counted(used[name]['calls'], 'call')}, {dollars(used[name]['spend_uusd'])} for {name}"
        for name in ("serving", "learning")
    )
    return f"{counted(used['answers'], 'answer')} · cloud: {'; '.join(calls)}"


def _cloud(found: Mapping[str, Any]) -> str:
    if off := found["budget"]["switched_off"]:
        return f"off: {off}"
    cloud = found["cloud"]
    if not found["running"]:
        return "may be asked" + ("" if found["budget"]["origin"] == "stored" else "; the coordinator answers")
    return f"reached ({cloud['coordinator']})" if cloud["online"] else f"away: {cloud['reason']}"
