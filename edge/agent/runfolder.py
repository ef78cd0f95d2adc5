"""The folder a learning run leaves: configuration, events, metrics table, figures, final adapter, summary.

Knows file names and their forms; knows nothing of how learning works. Everything but the figures and the summary is written as it
happens, so that a killed run keeps what it had.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from math import fsum
from pathlib import Path
from typing import Any

from edge.agent.events import RunFinished, StepFinished, StepProgress
from edge.core.errors import StateError
from edge.core.events import Event, JsonLinesSink
from edge.core.types import AdapterRef
from edge.dagrpo.advantages import mean

_FIRST, _LAST = 10, 50
"""Steps at the beginning (few: learning moves fast) and at the end that a summary averages over, at most a third of the run each."""


class RunFolder:
    """An event sink that writes a run's files. `open` makes the folder or goes on in one; `finish` writes figures and summary."""

    def __init__(self, folder: Path, config_yaml: str) -> None:
        """Raises StateError when the folder cannot be written."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.yaml").write_text(config_yaml, encoding="utf-8")
            self._stream = (folder / "events.jsonl").open("a", encoding="utf-8")
        except OSError as error:
            raise StateError(
                f"{folder}: cannot write the run folder: {error.strerror}", hint="choose another with --out"
            ) from error
        self._events = JsonLinesSink(self._stream)

    def emit(self, event: Event) -> None:
        """Write the event; progress inside a step is for screens only."""
        if not isinstance(event, StepProgress) and not self._stream.closed:
            self._events.emit(event)

    def finish(self, steps: Sequence[StepFinished], finished: RunFinished, adapter: AdapterRef | None) -> dict[str, Any]:
        """Write metrics.csv, figures, the final adapter and summary.json; returns the summary."""
        summary = summary_of(steps, finished)
        _write_metrics(self.folder / "metrics.csv", steps)
        if steps:
            from edge.agent.figures import write_figures

            summary["figures"] = [path.name for path in write_figures(self.folder, steps)]
        if adapter is not None and Path(adapter.folder).is_dir():
            shutil.copytree(adapter.folder, self.folder / "adapter", dirs_exist_ok=True)
            summary["adapter"] = "adapter"
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
        (self.folder / "summary.json").write_text(text + "\n", encoding="utf-8")
        return summary

    def close(self) -> None:
        """Close the event file. Safe to call twice."""
        self._stream.close()


def summary_of(steps: Sequence[StepFinished], finished: RunFinished) -> dict[str, Any]:
    """What a run came to: the first and the last steps side by side, totals, and seconds a step."""
    third = max(1, len(steps) // 3)
    first, last = min(_FIRST, third, len(steps)), min(_LAST, third, len(steps))
    return {
        "run_id": finished.run_id,
        "reason": finished.reason,
        "steps": finished.steps_done,
        "first_steps": first,
        "first": _means(steps[:first]),
        "last_steps": last,
        "last": _means(steps[-last:]),
        "dual": steps[-1].dual_after if steps else None,
        "cloud_calls": finished.total_cloud_calls,
        "cloud_tokens": finished.total_cloud_tokens,
        "spend_uusd": finished.total_spend_uusd,
        "masked": sum(step.masked for step in steps),
        "refused": sum(step.refused for step in steps),
        "offline_steps": sum(step.offline for step in steps),
        "skipped_updates": sum(bool(step.learner_skipped) for step in steps),
        "seconds": sum(step.seconds for step in steps),
        "seconds_per_step": sum(step.seconds for step in steps) / len(steps) if steps else None,
        "adapter_version": finished.adapter_version,
    }


def _means(steps: Sequence[StepFinished]) -> dict[str, float | None]:
    """Means over steps; kept accuracy weighted by the responses that were kept."""
    if not steps:
        return {}
    kept = fsum(step.coverage * step.responses for step in steps if step.kept_accuracy is not None)
    kept_right = fsum((step.kept_accuracy or 0.0) * step.coverage * step.responses for step in steps)
    joint = [step.joint_accuracy for step in steps if step.joint_accuracy is not None]
    return {
        "kept_accuracy": kept_right / kept if kept else None,
        "coverage": mean([step.coverage for step in steps]),
        "joint_accuracy": mean(joint) if joint else None,
        "assist_rate": mean([step.assist_rate for step in steps]),
        "target_rate": mean([step.target_rate for step in steps]),
        "dual": mean([step.dual_before for step in steps]),
        "reward": mean([step.reward_mean for step in steps]),
        "format_ok": mean([step.format_ok for step in steps]),
        "tokens_per_s": mean([step.tokens_per_s for step in steps]),
    }


def _write_metrics(path: Path, steps: Sequence[StepFinished]) -> None:
    rows = [_flat(step) for step in steps]
    with path.open("w", newline="", encoding="utf-8") as file:
        if rows:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def _flat(step: StepFinished) -> dict[str, Any]:
    row = asdict(step)
    parts = row.pop("seconds_by_part")
    return {**row, **{f"{name}_s": seconds for name, seconds in parts.items()}}
