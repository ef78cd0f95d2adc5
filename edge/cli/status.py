"""`edge-agent status`: what runs, what it learns, what is active, and what may still be spent, on one screen; also where no agent runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.budget import amounts
from edge.cli.options import Json
from edge.cli.output import local_time, one_line, print_result
from edge.cli.remote import ask_agent
from edge.cli.report import headline_lines
from edge.cli.settings import Settings, takes
from edge.core.clock import SystemClock
from edge.core.formatting import counted, money, percent

if TYPE_CHECKING:
    from edge.serve.agent_schemas import BudgetsView, HeadlineView, StatusView, StepView, UsedView
    from edge.serve.ports import AgentControl

_STAGES = {"idle": "not learning", "learning": "learning", "paused": "waiting", "stopped": "stopped"}
_LEARNING = ("task", "phase", "phases", "steps_done", "steps_planned", "progress", "paused", "waiting", "target_rate", "dual")


@takes("coordinator state")
def command(settings: Settings, json: Json = False) -> None:
    """What runs, what it learns, the active adapter, the budget and the address; without an agent, what the state folder holds."""
    from edge.app.settings import state_folder

    config = settings.config()
    found = ask_agent(config, lambda agent: _status(agent, state_folder(config)))
    lines = (f"{name:<12} {one_line(text)}" for name, text in found.lines())
    print_result(found.to_json() if json else None, lines, as_json=json)


async def _status(agent: AgentControl, folder: Path) -> StatusScreen:
    """Raises StateError where no agent runs and nothing is in the folder."""
    status = await agent.status()
    if not status.running and not (folder / "agent.sqlite").is_file():
        from edge.state.reader import no_state_in

        raise no_state_in(folder)
    steps = await agent.steps(max(0, status.steps_done - 1))
    return StatusScreen(
        folder, status, steps[-1] if steps else None, await agent.budget(), (await agent.usage()).today, await agent.headline()
    )


@dataclass(frozen=True, slots=True)
class StatusScreen:
    """What one screen shows of an agent. `last_step`: None before the first."""

    folder: Path
    status: StatusView
    last_step: StepView | None
    budgets: BudgetsView
    used_today: UsedView
    headline: HeadlineView

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; `assist_rate` and its target are of the last step."""
        status, last = self.status, self.last_step
        learning = {name: getattr(status, name) for name in _LEARNING}
        rates = {"assist_rate": last.assist_rate, "target_rate": last.target_rate} if last else {"assist_rate": None}
        return {
            "headline": self.headline,
            "running": status.running,
            "address": status.address,
            "pid": status.pid,
            "since": self.since,
            "state_folder": str(self.folder),
            "model": status.model.name if status.model else None,
            "mode": status.mode,
            "learning": {"stage": status.learning, **learning, **rates},
            "adapter": {"active": status.adapter_version, "trained": status.trained_version},
            "budget": self.budgets,
            "used_today": self.used_today,
            "cloud": {"online": status.online, "reason": status.offline_reason, "coordinator": status.coordinator},
        }

    @property
    def since(self) -> float | None:
        """When the agent was started, in seconds since the epoch; None where none runs."""
        return None if self.status.uptime_s is None else round(SystemClock().now() - self.status.uptime_s, 1)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names, each with what is printed after it."""
        from edge.console import inside_step
        from edge.state.events import StepProgress

        status, last, budgets = self.status, self.last_step, self.budgets
        yield "result", next(headline_lines(self.headline))
        if status.running:
            pid = "" if status.pid is None else f" (pid {status.pid})"
            yield "agent", f"runs since {local_time(self.since)}{pid} at {status.address}"
        else:
            yield "agent", "none that can be reached runs on this state folder, whose contents follow; edge-agent run starts one"
        if status.model:
            yield "model", f"{status.model.name}, mode {status.mode}"

        stage = status.waiting or (_STAGES.get(status.learning, status.learning) if status.running else "")
        planned = "" if status.steps_planned is None else f" of {status.steps_planned}"
        where = f"task {status.task}, phase {min(status.phase + 1, status.phases)} of {status.phases}"
        done = f"{counted(status.steps_done, 'step')}{planned} done"
        if status.learning == "off":
            yield "learning", f"off for this model: {status.waiting}"
        elif status.task:
            yield "learning", ", ".join(filter(None, (stage, where, done)))
            if status.progress is not None:
                yield "", inside_step(StepProgress(**status.progress.model_dump()))
        else:
            yield "learning", stage if status.running else "nothing yet"

        rates, signals = [], []
        if last is not None:
            rates.append(f"learning {percent(last.assist_rate)}, target {percent(last.target_rate)}")
        for task in budgets.tasks:
            if task.dial.questions:
                target = "no target" if task.dial.target_rate is None else f"target {percent(task.dial.target_rate)}"
                rates.append(f"answers of {task.task} {percent(task.dial.realised_rate)}, {target}")
            ranking = task.dial.ranking
            if task.dial.questions or ranking.right or ranking.wrong:
                signals.append(f"of {task.task}: {ranking.words}")
        if rates:
            yield "assist rate", " · ".join(rates)
        if signals:
            yield "log-odds", " · ".join(signals)

        active, trained = status.adapter_version, status.trained_version
        adapter = f"{active} is active" if active else "none is active: the bare model answers"
        yield "adapter", adapter if trained == active else f"{adapter}; training goes on from {trained}"
        yield "target", budgets.target
        if budgets.device:  # what the tasks share
            yield "budget", amounts(budgets.device)
        else:
            of_tasks = " | ".join(f"{task.task}: {amounts(task)}" for task in budgets.tasks)
            yield "budget", of_tasks or "nothing was asked or learned here yet"
        used = self.used_today
        purposes = {"serving": used.serving, "learning": used.learning}
        calls = [f"{counted(units.calls, 'call')}, {money(units.spend_uusd)} for {name}" for name, units in purposes.items()]
        month = f"{money(self.headline.spent_this_month_uusd)} this month"
        yield "today", f"{counted(used.answers, 'answer')} · cloud: {'; '.join(calls)} · {month}"
        if off := budgets.switched_off:
            yield "cloud", f"off: {off}"
        elif not status.running:
            yield "cloud", "may be asked" + ("" if budgets.origin == "stored" else "; the coordinator answers")
        else:
            name = f", {budgets.cloud_name}" if budgets.cloud_name else ""
            yield "cloud", f"reached ({status.coordinator}{name})" if status.online else f"away: {status.offline_reason}"
        yield "state", str(self.folder)
