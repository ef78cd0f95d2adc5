"""How near each method's rate came to τ while it learned. Knows the ends of phases at T = 1; knows nothing of held-out items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.experiments.contestants import TARGET
from tools.experiments.dynamics import BAND, END_STEPS, end_mean
from tools.experiments.findings import Findings, Runs
from tools.experiments.published import NAMES
from tools.experiments.tables import MISSING, Table, told_seeds


def kept_rates_table(findings: Findings) -> Table:
    """The assist rate over the end of each phase, mean over seeds, and how far off τ all of them are."""
    places = [(name, number) for name, phases in findings.spec.phases.items() for number in range(len(phases))]
    rows = [
        (model, NAMES.get(method, method), *_told(findings, model, method, places))
        for model in findings.spec.models
        for method, settings in findings.spec.ways.items()
        if settings.get("learning.method") != "edge-only"
    ]
    columns = (f"{name}, phase {number + 1}" for name, number in places)
    return Table(
        f"Assist rate at the end of each phase while learning, τ = {TARGET:g}",
        ("SLM", "method", "seeds", *columns, "off τ", f"within ±{BAND:g}"),
        tuple(rows),
        (
            f"Mean over the last {END_STEPS} steps of the phase, at T = 1, and over seeds. Off τ: mean absolute deviation over all phases "
            "of all runs; within: how many of them. λ moves DA-GRPO's rate; the others' rests on the assistance reward that was chosen.",
        ),
    )


def _told(findings: Findings, model: str, method: str, places: Sequence[tuple[str, int]]) -> Iterator[str]:
    runs = {name: findings.runs(model, method, name) for name, _ in places}
    yield told_seeds([len(one.results) for one in runs.values()], len(findings.spec.seeds))
    ends = [phase_ends(runs[name], number) for name, number in places]
    yield from (f"{sum(found) / len(found):.3f}" if found else MISSING for found in ends)
    off = [abs(rate - TARGET) for found in ends for rate in found]
    yield f"{sum(off) / len(off):.3f}" if off else MISSING
    yield f"{sum(one <= BAND for one in off)} of {len(off)}" if off else MISSING


def phase_ends(runs: Runs, phase: int) -> list[float]:
    """The mean rate over the end of a phase (from 0), of each run."""
    return [end_mean(result, "assist", phase) for result in runs.results]
