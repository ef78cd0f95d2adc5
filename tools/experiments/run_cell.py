"""Runs one cell in this process: learns its phases with the product's own loop, evaluates held-out items in between, and writes the
result.

Everything is stored in the cell's folder as it happens: `state` (the agent's own), `events.jsonl`, `looks` and `adapters` (see
`held_out.py`), `usage`; the same call resumes after an interruption.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import resource
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from edge.agent import Agent
from edge.app.agents import build_agent, check_inputs
from edge.cli.exits import stop_on_signals
from edge.config.schema import AgentConfig
from edge.core.clock import Clock, SystemClock
from edge.core.concurrency import Stop
from edge.core.errors import EdgeError
from edge.core.machine import MachineFacts, machine_facts
from edge.learning.curriculum import StepPlan
from edge.learning.run_folder import RunFolder, require_same_run
from tools.bench.harness import commit
from tools.bench.table.memory import memory_now
from tools.experiments.cells import Cell
from tools.experiments.held_out import Evaluator, Report, evaluations_in
from tools.experiments.result import (
    FORM,
    RESULTS,
    changed,
    models_of,
    result_file,
    series_of,
    settings_of,
    training_cost,
    write_result,
)
from tools.places import put

BEGUN_WITH = "begun-with.json"
"""In a cell's folder: its settings and models when it was begun."""
_CODE = ("edge", "coordinator", "tools/experiments/*.py")
DONE, FAILED, STOPPED, BUSY = 0, 1, 130, 75


def run_cell(cell: Cell, work: Path, results: Path = RESULTS, report: Report = lambda line: None) -> int:
    """Run a cell to its end; DONE, STOPPED where a signal cut it, BUSY where another process is at it. Raises EdgeError."""
    folder = work / cell.key
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return BUSY
        if result_file(cell, results).is_file():
            return DONE
        put(json.dumps(cell.to_json(), indent=1) + "\n", folder / "cell.json")
        resolved = cell.resolved(str((folder / "state").absolute()))
        check_inputs(resolved.config)
        require_same_run(folder, resolved.config)
        hold_to_beginning(folder / BEGUN_WITH, cell, resolved.config)
        with closing(RunFolder(folder, resolved.to_yaml())) as run_folder:
            body = asyncio.run(_run(cell, resolved.config, run_folder, report))
    if body is None:
        return STOPPED
    write_result(result_file(cell, results), body)
    return DONE


def hold_to_beginning(file: Path, cell: Cell, config: AgentConfig) -> None:
    """Record the cell's initial settings. Raises EdgeError where it was started with other ones: one result would mix both."""
    if not file.is_file():
        put(json.dumps({"settings": settings_of(config), "models": models_of(config)}), file)
        return
    try:
        begun = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EdgeError(f"{file}: cannot be read ({error})", hint=f"remove {file.parent} to begin anew") from error
    if (difference := changed(cell, begun)) is not None:
        begun_with = difference.replace("measured", "begun")
        raise EdgeError(f"{cell.key}: {begun_with}", hint=f"remove {file.parent} to begin anew")


async def _run(cell: Cell, config: AgentConfig, run_folder: RunFolder, report: Report) -> dict[str, Any] | None:
    """The result, None where it was stopped."""
    clock, folder, stop = SystemClock(), run_folder.folder, Stop()
    async with build_agent(config, run_folder) as agent:
        meter = UsageMeter(folder / "usage", clock, lambda: getattr(agent.components.coordinator, "pid", None))
        evaluator = Evaluator(cell, config, agent, folder, clock, report, meter.note)

        def end() -> None:
            stop.ask()
            agent.request_stop()

        with stop_on_signals(end):
            if cell.phases:
                finished = await agent.learn(between_steps=_watching_parent(evaluator.between_steps, end))
                done = finished.reason == "done"
            else:
                await stop.cuts(evaluator.evaluate(0, 0))
                done = not stop.asked
        meter.note()
        return _body(cell, config, agent, folder) if done else None


def _watching_parent(between: Any, end: Callable[[], None]) -> Any:
    """Ends a cell after its step when its runner is gone."""
    parent = os.getppid()

    async def watched(plan: StepPlan | None, steps_done: int, version: int) -> None:
        if os.getppid() != parent:
            end()
        await between(plan, steps_done, version)

    return watched


def _body(cell: Cell, config: AgentConfig, agent: Agent, folder: Path) -> dict[str, Any]:
    steps = agent.components.state.steps()
    if len(steps) != cell.steps:
        raise EdgeError(f"{cell.key}: {len(steps)} of {cell.steps} steps are recorded", hint=f"remove {folder} to begin anew")
    evaluations = evaluations_in(folder)
    used = account(folder / "usage")
    return {
        "form": FORM,
        "key": cell.key,
        "cell": cell.to_json(),
        "commits": used.pop("commits"),
        "machine": machine_of(machine_facts()),
        "threads": {
            "engine": config.engine.threads,
            "torch": config.learning.torch_threads,
            "coordinator": config.coordinator.embedded.threads,
        },
        "settings": settings_of(config),
        "models": models_of(config),
        "cost": {
            **used,
            "looks_s": round(sum(evaluation.pop("seconds") for evaluation in evaluations), 1),
            "training": training_cost(steps),
        },
        "series": series_of(steps),
        "held_out": evaluations,
    }


# -- what a run costs in time, processor and memory: one file for each process that worked on it, written again and again -----------------


class UsageMeter:
    """The account of this process. `coordinator`: the process id of its coordinator while it runs."""

    def __init__(self, folder: Path, clock: Clock, coordinator: Callable[[], int | None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{int(clock.now() * 1000)}.json"
        self._clock = clock
        self._began = clock.monotonic()
        self._coordinator = coordinator
        self._coordinator_cpu_s, self._coordinator_peak_mib = 0.0, 0.0
        self._commit = commit(*_CODE)

    def note(self) -> None:
        """Record the use so far; programs are those that this process has waited for (judged programs)."""
        own, programs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        self._read_coordinator()
        body = {
            "commit": self._commit,
            "wall_s": round(self._clock.monotonic() - self._began, 1),
            "cpu_agent_s": round(own.ru_utime + own.ru_stime, 1),
            "cpu_programs_s": round(programs.ru_utime + programs.ru_stime, 1),
            "cpu_coordinator_s": round(self._coordinator_cpu_s, 1),
            "peak_agent_mib": round(memory_now().get("peak_mib", 0.0)),
            "peak_coordinator_mib": round(self._coordinator_peak_mib),
        }
        put(json.dumps(body), self._file)

    def _read_coordinator(self) -> None:
        import psutil

        pid = self._coordinator()
        if pid is None:
            return
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            return
        self._coordinator_cpu_s = times.user + times.system
        self._coordinator_peak_mib = max(self._coordinator_peak_mib, memory_now(pid).get("peak_mib", 0.0))


def account(folder: Path) -> dict[str, Any]:
    """The processes of a run together: sums of seconds, the highest peaks, and every commit that had a part in it."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    summed = ("wall_s", "cpu_agent_s", "cpu_programs_s", "cpu_coordinator_s")
    return {
        "commits": list(dict.fromkeys(part["commit"] for part in parts)),
        "processes": len(parts),
        **{name: round(sum(part[name] for part in parts), 1) for name in summed},
        **{name: max((part[name] for part in parts), default=0) for name in ("peak_agent_mib", "peak_coordinator_mib")},
    }


def machine_of(facts: MachineFacts) -> dict[str, Any]:
    """Processor, cores and memory; no names of hosts or people."""
    return {"cpu": facts.chip or facts.board or facts.architecture, "cores": facts.cores, "memory_mib": facts.memory_mib}
