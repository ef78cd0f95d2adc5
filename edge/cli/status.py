"""`edge-agent status`: what runs, what it learns, what is active, and what may still be spent, on one screen; also where no agent runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.budget import amounts
from edge.cli.options import Json
from edge.cli.output import local_time, one_line, print_result
from edge.cli.remote import ask_agent
from edge.cli.report import headline_lines
from edge.cli.settings import Settings, takes
from edge.core.clock import SystemClock
from edge.core.errors import StateError
from edge.core.formatting import counted, money, percent
from edge.state.reader import no_state_in

if TYPE_CHECKING:
    from edge.serve.ports import AgentControl

_STAGES = {"idle": "not learning", "learning": "learning", "paused": "waiting", "stopped": "stopped"}
_LEARNING = ("task", "phase", "phases", "steps_done", "steps_planned", "paused", "waiting", "target_rate", "dual")


@takes("coordinator state")
def command(settings: Settings, json: Json = False) -> None:
    """What runs, what it learns, the active adapter, the budget and the address; without an agent, what the state folder holds."""
    from edge.app.settings import state_folder

    config = settings.config()
    found = ask_agent(config, lambda agent: _status(agent, state_folder(config)))
    print_result(found, (f"{name:<12} {one_line(text)}" for name, text in _status_lines(found)), as_json=json)


async def _status(agent: AgentControl, folder: Path) -> dict[str, Any]:
    """`assist_rate` and its target are of the last step; `used_today` and `headline` are None where the folder is of a version that did
    not note them."""
    found = await agent.status()
    running = found["running"]
    if not running and not (folder / "agent.sqlite").is_file():
        raise no_state_in(folder)
    steps = await agent.steps(max(0, found["steps_done"] - 1))
    budget = await agent.budget()
    try:
        used_today = dict((await agent.usage())["today"])
    except StateError:
        used_today = None
    last = {name: steps[-1][name] for name in ("assist_rate", "target_rate")} if steps else {"assist_rate": None}
    try:
        headline = dict(await agent.headline())
    except StateError:
        headline = None
    return {
        "headline": headline,
        "running": running,
        "address": found["address"],
        "pid": found["pid"],
        "since": round(SystemClock().now() - found["uptime_s"], 1) if running else None,
        "state_folder": str(folder),
        "model": found["model"]["name"] if found["model"] else None,
        "mode": found["mode"],
        "learning": {"stage": found["learning"], **{name: found[name] for name in _LEARNING}, **last},
        "adapter": {"active": found["adapter_version"], "trained": found["trained_version"]},
        "budget": budget,
        "used_today": used_today,
        "cloud": {"online": found["online"], "reason": found["offline_reason"], "coordinator": found.get("coordinator", "")},
    }


def _status_lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names, each with what is printed after it."""
    running, learning, budget, cloud = found["running"], found["learning"], found["budget"], found["cloud"]
    if found["headline"]:
        yield "result", next(headline_lines(found["headline"]))
    if running:
        pid = "" if found["pid"] is None else f" (pid {found['pid']})"
        yield "agent", f"runs since {local_time(found['since'])}{pid} at {found['address']}"
    else:
        yield "agent", "none that can be reached runs on this state folder, whose contents follow; edge-agent run starts one"
    if found["model"]:
        yield "model", f"{found['model']}, mode {found['mode']}"

    stage = learning["waiting"] or (_STAGES.get(learning["stage"], learning["stage"]) if running else "")
    planned = "" if learning["steps_planned"] is None else f" of {learning['steps_planned']}"
    where = f"task {learning['task']}, phase {learning['phase'] + 1} of {learning['phases']}"
    done = f"{counted(learning['steps_done'], 'step')}{planned} done"
    if learning["task"]:
        yield "learning", ", ".join(filter(None, (stage, where, done)))
    else:
        yield "learning", stage if running else "nothing yet"

    rates = []
    if learning["assist_rate"] is not None:
        rates.append(f"learning {percent(learning['assist_rate'])}, target {percent(learning['target_rate'])}")
    for task in budget["tasks"]:
        dial = task["dial"]
        if dial["questions"]:
            target = "no target" if dial["target_rate"] is None else f"target {percent(dial['target_rate'])}"
            rates.append(f"answers of {task['task']} {percent(dial['realised_rate'])}, {target}")
    if rates:
        yield "assist rate", " · ".join(rates)

    active, trained = found["adapter"]["active"], found["adapter"]["trained"]
    adapter = f"{active} is active" if active else "none is active: the bare model answers"
    yield "adapter", adapter if trained == active else f"{adapter}; training goes on from {trained}"
    yield "target", budget["target"]
    if budget["device"]:  # what the tasks share
        yield "budget", amounts(budget["device"])
    else:
        of_tasks = " | ".join(f"{task['task']}: {amounts(task)}" for task in budget["tasks"])
        yield "budget", of_tasks or "nothing was asked or learned here yet"
    if used := found["used_today"]:
        calls = [f"{counted(used[n]['calls'], 'call')}, {money(used[n]['spend_uusd'])} for {n}" for n in ("serving", "learning")]
        month = f" · {money(found['headline']['spent_this_month_uusd'])} this month" if found["headline"] else ""
        yield "today", f"{counted(used['answers'], 'answer')} · cloud: {'; '.join(calls)}{month}"
    else:
        yield "today", "not known"
    if off := budget["switched_off"]:
        yield "cloud", f"off: {off}"
    elif not running:
        yield "cloud", "may be asked" + ("" if budget["origin"] == "stored" else "; the coordinator answers")
    else:
        name = f", {budget['cloud_name']}" if budget["cloud_name"] else ""
        yield "cloud", f"reached ({cloud['coordinator']}{name})" if cloud["online"] else f"away: {cloud['reason']}"
    yield "state", found["state_folder"]
