"""What learning costs with each method: cloud calls, tokens, spend, wall time, processor time, memory. Knows what a result says of it."""

from __future__ import annotations

from collections.abc import Callable

from edge.dagrpo.hyperparameters import GVPO_UPDATES
from tools.experiments.findings import Findings, Runs
from tools.experiments.published import NAMES
from tools.experiments.result import Result
from tools.experiments.tables import MISSING, Table


def cost_table(findings: Findings) -> Table:
    """Means over directions and seeds."""
    rows = [
        (model, NAMES.get(method, method), *_costs(findings.runs(model, method), len(findings.spec.phases)))
        for model in findings.spec.models
        for method in findings.spec.ways
    ]
    return Table(
        "What learning costs: means over the runs of a method",
        ("SLM", "method", "runs", *(name for name, _, _ in _COSTS)),
        tuple(rows),
        (
            "Asked is the share of responses that ask for help, which λ is moved by; billed the share of prompts for which a call was "
            "paid, at most one for the G responses to a prompt. Compare processor minutes, which hold the looks at held-out items, too: "
            "wall time hangs on what else the machine had to do. Memory is the peak of each process.",
        ),
    )


def _updates(result: Result) -> float:
    """Optimiser steps: those of every rollout whose update was not left out."""
    training = result.body["cost"]["training"]
    usual = GVPO_UPDATES if result.cell.method == "gvpo" else 1
    each = result.body["settings"]["learning"].get("updates_per_rollout") or usual
    return float((training["steps"] - training.get("skipped_updates", 0)) * each)


def _wall_s(result: Result) -> float:
    training = result.body["cost"]["training"]
    return float(training["seconds"] / training["steps"])


def _processor_min(result: Result) -> float:
    cost = result.body["cost"]
    return float(cost["cpu_agent_s"] + cost["cpu_programs_s"] + cost["cpu_coordinator_s"]) / 60


def _training(name: str, scale: float = 1.0) -> Callable[[Result], float]:
    return lambda result: scale * float(result.body["cost"]["training"][name] or 0.0)


_COSTS: tuple[tuple[str, Callable[[Result], float], str], ...] = (
    ("optimiser steps", _updates, "{:.0f}"),
    ("cloud calls", _training("billed_calls"), "{:.0f}"),
    ("cloud tokens", _training("cloud_tokens"), "{:.0f}"),
    ("spend, $", _training("spend_uusd", 1e-6), "{:.4f}"),
    ("asked, % of responses", _training("response_rate", 100), "{:.1f}"),
    ("billed, % of prompts", _training("billed_rate", 100), "{:.1f}"),
    ("wall s a step", _wall_s, "{:.2f}"),
    ("processor min", _processor_min, "{:.1f}"),
    ("agent MiB", lambda result: float(result.body["cost"]["peak_agent_mib"]), "{:.0f}"),
    ("coordinator MiB", lambda result: float(result.body["cost"]["peak_coordinator_mib"]), "{:.0f}"),
)


def _costs(runs: Runs, directions: int) -> list[str]:
    if not runs.results:
        return ["0", *[MISSING] * len(_COSTS)]
    means = [sum(map(value, runs.results)) / len(runs.results) for _, value, _ in _COSTS]
    count = len(runs.results)
    wanted = directions * runs.wanted
    told = str(count) if count == wanted else f"{count} of {wanted}"
    return [told, *(form.format(mean) for (_, _, form), mean in zip(_COSTS, means, strict=True))]
