"""What `edge-agent learn` leaves: configuration, events, metrics, figures, adapter, summary. Knows files; knows nothing of learning."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from edge import __version__
from edge.agent.agent import AgentStatus
from edge.agent.events import RunFinished, StepFinished
from edge.console import whole_seconds
from edge.core.errors import StateError
from edge.core.events import EventSink, FanOutSink, JsonLinesSink
from edge.core.types import AdapterRef

_WINDOW, _RATE_WINDOW = 20, 50


class RunFolder:
    """One run's folder. A run that is resumed goes on in the same one."""

    def __init__(self, folder: Path) -> None:
        """Create it. Raises StateError when that is not possible."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"{folder}: cannot create the run folder: {error.strerror}", hint="choose another with --out"
            ) from error

    @property
    def state(self) -> Path:
        """Where the run keeps its state when no other folder is named."""
        return self.folder / "state"

    @property
    def adapter(self) -> Path:
        """The final adapter."""
        return self.folder / "adapter"

    def write_config(self, text: str) -> None:
        """The resolved configuration."""
        (self.folder / "config.yaml").write_text(text, encoding="utf-8")

    @contextmanager
    def recording(self, sink: EventSink) -> Iterator[EventSink]:
        """A sink that also writes `events.jsonl`."""
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as stream:
            yield FanOutSink([sink, JsonLinesSink(stream)])

    def finish(self, steps: Sequence[StepFinished], summary: Mapping[str, Any], adapter: AdapterRef | None) -> None:
        """Metrics, figures, adapter and summary; the summary last, so that its presence says the folder is complete."""
        write_metrics(self.folder / "metrics.csv", steps)
        draw_figures(self.folder / "figures", steps)
        self._keep_adapter(adapter)
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
        (self.folder / "summary.json").write_text(text + "\n", encoding="utf-8")

    def _keep_adapter(self, adapter: AdapterRef | None) -> None:
        shutil.rmtree(self.adapter, ignore_errors=True)
        if adapter is not None:
            shutil.copytree(adapter.folder, self.adapter)


def summarise(status: AgentStatus, finished: RunFinished, steps: Sequence[StepFinished], seed: int) -> dict[str, Any]:
    """The run in one JSON object. `first_*` and `last_*` are means of 20 steps, the assist rate of the last 50."""
    first, last = steps[:_WINDOW], steps[-_WINDOW:]
    kept = {
        name: _mean([(step.kept_accuracy, step.coverage) for step in part]) for name, part in (("first", first), ("last", last))
    }
    joint = {name: _mean([(step.joint_accuracy, 1.0) for step in part]) for name, part in (("first", first), ("last", last))}
    seconds = sum(whole_seconds(step.seconds_by_part) for step in steps)
    return {
        "version": __version__,
        "run_id": finished.run_id,
        "reason": finished.reason,
        "model": {"name": status.model.name, "sha256": status.model.sha256, "parameters": status.model.parameters},
        "seed": seed,
        "tasks": sorted({step.task for step in steps}),
        "steps": finished.steps_done,
        "target_rate": steps[-1].target_rate if steps else None,
        "assist_rate_last_50": _mean([(step.assist_rate, 1.0) for step in steps[-_RATE_WINDOW:]]),
        "dual": steps[-1].dual_after if steps else None,
        **{f"{name}_kept_accuracy": value for name, value in kept.items()},
        **{f"{name}_joint_accuracy": value for name, value in joint.items()},
        "first_coverage": _mean([(step.coverage, 1.0) for step in first]),
        "last_coverage": _mean([(step.coverage, 1.0) for step in last]),
        "cloud_calls": finished.total_cloud_calls,
        "cloud_tokens": finished.total_cloud_tokens,
        "spend_uusd": finished.total_spend_uusd,
        "learning_s": seconds,
        "seconds_per_step": seconds / len(steps) if steps else None,
        "tokens_per_s": _mean([(step.tokens_per_s, 1.0) for step in steps]),
        "adapter_version": finished.adapter_version,
    }


def write_metrics(file: Path, steps: Sequence[StepFinished]) -> None:
    """One row per step."""
    names = [field.name for field in fields(StepFinished) if field.name != "seconds_by_part"]
    parts = ("rollout", "cloud", "update", "save", "close", "swap")
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*names, *(f"{part}_s" for part in parts)])
        for step in steps:
            writer.writerow([*(getattr(step, name) for name in names), *(getattr(step.seconds_by_part, part) for part in parts)])


def draw_figures(folder: Path, steps: Sequence[StepFinished]) -> None:
    """λ and assist rate against τ; kept and joint accuracy with coverage. Nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    if not steps:
        return
    folder.mkdir(exist_ok=True)
    for name, draw in (("rate", _draw_rate), ("accuracy", _draw_accuracy)):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        draw(figure.subplots(), steps)
        figure.savefig(folder / f"{name}.png", dpi=140)


def smoothed(values: Sequence[float | None], window: int = 10) -> list[float]:
    """Mean of the last `window` known values at each place; NaN before the first one."""
    means = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - window) : end] if value is not None]
        means.append(sum(known) / len(known) if known else float("nan"))
    return means


def _draw_rate(axes: Any, steps: Sequence[StepFinished]) -> None:
    numbers = [step.step for step in steps]
    rates = [step.assist_rate for step in steps]
    axes.plot(numbers, rates, color="tab:blue", alpha=0.25, linewidth=1)
    axes.plot(numbers, smoothed(rates), color="tab:blue", label="assist rate (mean of 10 steps)")
    axes.step(numbers, [step.target_rate for step in steps], where="mid", color="black", linestyle="--", label="target rate τ")
    axes.plot(numbers, [step.dual_after for step in steps], color="tab:red", label="λ")
    axes.set(
        xlabel="learning step", ylabel="share of responses; λ", ylim=(0, None), title="How often help is asked for, and its price"
    )
    axes.legend(loc="best")
    axes.grid(alpha=0.3)


def _draw_accuracy(axes: Any, steps: Sequence[StepFinished]) -> None:
    numbers = [step.step for step in steps]
    curves: tuple[tuple[str, str, list[float | None]], ...] = (
        ("right of the kept", "tab:green", [step.kept_accuracy for step in steps]),
        ("right with help (joint)", "tab:purple", [step.joint_accuracy for step in steps]),
        ("kept (coverage)", "tab:gray", [step.coverage for step in steps]),
    )
    for label, colour, values in curves:
        raw = [float("nan") if value is None else value for value in values]
        axes.plot(numbers, raw, color=colour, alpha=0.25, linewidth=1)
        axes.plot(numbers, smoothed(values), color=colour, label=label, linestyle=":" if colour == "tab:gray" else "-")
    axes.set(xlabel="learning step", ylabel="share of responses", ylim=(0, 1), title="Accuracy (means of 10 steps)")
    axes.legend(loc="best")
    axes.grid(alpha=0.3)


def _mean(weighted: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
