"""The folder that a learning run leaves: configuration, events, held-out results, metrics, figures, adapter, summary."""

from __future__ import annotations

import csv
import fcntl
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from math import fsum
from pathlib import Path
from typing import Any

from edge.config.loader import dotted, leaves, resolve
from edge.config.schema import AgentConfig
from edge.core.errors import ConfigError, StateError, UsageError
from edge.core.events import Event, JsonLinesSink
from edge.core.files import drop_cut_line, write_atomically
from edge.core.formatting import shown
from edge.core.types import AdapterRef
from edge.dagrpo.advantages import mean
from edge.learning.figures import what_is_missing, write_figures
from edge.learning.forgetting import forgetting_of, phase_spans
from edge.state.events import EvalProgress, FamilyScores, HeldOutScored, RunFinished, StepFinished, StepProgress

_MAY_DIFFER = (
    "budget", "chat", "coordinator.address", "coordinator.allow_insecure", "coordinator.call_deadline_s",
    "coordinator.control_deadline_s", "coordinator.device_id", "coordinator.embedded.allow_plaintext", "coordinator.embedded.api_key",
    "coordinator.embedded.api_key_env", "coordinator.embedded.price_in_uusd_per_mtok",
    "coordinator.embedded.price_out_uusd_per_mtok", "coordinator.embedded.start_timeout_s", "coordinator.embedded.threads",
    "coordinator.tls", "coordinator.token_file", "device", "device_profile", "engine.gpu_layers", "engine.max_rows", "engine.repack",
    "engine.threads", "engine.weights", "learning.device", "learning.memory", "learning.torch_threads", "learning.when", "privacy",
    "programs.sandbox", "programs.unsafe", "serve", "state_folder",
)  # fmt: skip
_MOST_NAMED = 3
_WHERE_MEASURED = ("floor_s", "times_floor")
"""Columns of metrics.csv only on a device that was measured."""


def other_settings(then: AgentConfig, now: AgentConfig, *, under: str = "") -> str:
    """In one line what differs so that the record would be false, `target_rate 0.3 -> 0.7`; "" where the run can go on.

    It may grow: its last phase may be longer now, and phases may follow it. `under` is the section of a larger configuration that the
    agent's settings are in, as `agent.`: keys are named with it and in full.
    """
    before, after = _record(then, len(then.phases)), _record(now, len(then.phases))
    one_phase = len(then.phases) == 1 and not under
    changes = []
    for name in {**before, **after}:
        was, becomes = before.get(name), after.get(name)
        if was != becomes:
            short = name.removeprefix("phases.0.") if one_phase else name
            was, becomes = ("none" if value is None else value for value in (was, becomes))
            changes.append(f"{under}{short} {was} -> {becomes}")
    last, same = then.phases[-1].steps, now.phases[len(then.phases) - 1].steps if not changes else None
    if same is not None and (last is None or same < last):  # it ends earlier than it did
        place = f"{under}phases.{len(then.phases) - 1}." if under else ""
        changes = [f"{place}steps {'without end' if last is None else last} -> {same}"]
    return ", ".join(changes[:_MOST_NAMED]) + (f" and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else "")


def _record(config: AgentConfig, phases: int) -> dict[str, Any]:
    """The settings that count, by their dotted names; the length of the last phase is none of them."""
    data = config.model_dump(mode="json")
    data["phases"] = data["phases"][:phases]
    if len(data["phases"]) == phases:
        del data["phases"][-1]["steps"]
    named = ((dotted(path), value) for path, value in leaves(data))
    return {name: value for name, value in named if not any(name == free or name.startswith(f"{free}.") for free in _MAY_DIFFER)}


_FIRST, _LAST = 10, 50
"""Steps at the beginning (few: learning moves fast) and at the end that a summary averages over, at most a third of them all each."""


class RunFolder:
    """An event sink that writes a run's files. The constructor makes the folder or goes on in one; `finish` writes figures and summary."""

    def __init__(self, folder: Path, config_yaml: str) -> None:
        """Raises StateError when the folder cannot be written, when another run writes it, or when its evals.jsonl is damaged."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                self._stream = opened.enter_context((folder / "events.jsonl").open("a", encoding="utf-8"))
                fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, however the process ends
                write_atomically(folder / "config.yaml", config_yaml)
                for name in ("events.jsonl", "evals.jsonl"):
                    drop_cut_line(folder / name, b"{")
                self._held_out = _read_held_out(folder / "evals.jsonl")
                opened.pop_all()
        except BlockingIOError as error:
            raise StateError(
                f"{folder}: another run is writing this folder", hint="stop it first, or choose another with --out"
            ) from error
        except OSError as error:
            raise StateError(
                f"{folder}: cannot write the run folder: {error.strerror}", hint="choose another with --out"
            ) from error
        self._events = JsonLinesSink(self._stream)

    def emit(self, event: Event) -> None:
        """Write the event; progress inside a step or an evaluation is for screens only."""
        if isinstance(event, (StepProgress, EvalProgress)) or self._stream.closed:
            return
        self._events.emit(event)
        if isinstance(event, HeldOutScored):
            self._held_out.append(event)
            with (self.folder / "evals.jsonl").open("a", encoding="utf-8") as stream:
                JsonLinesSink(stream).emit(event)

    def held_out(self, run_id: str) -> list[HeldOutScored]:
        """The results on held-out items that this run has left here so far, in the order of steps."""
        own = [result for result in self._held_out if result.run_id == run_id]
        return sorted(own, key=lambda result: result.step)

    def finish(self, steps: Sequence[StepFinished], finished: RunFinished, adapter: AdapterRef | None) -> dict[str, Any]:
        """Write metrics.csv, figures, the final adapter and summary.json; returns the summary."""
        held_out = self.held_out(finished.run_id)
        summary = summary_of(steps, finished, held_out)
        _write_metrics(self.folder / "metrics.csv", steps)
        if steps and not what_is_missing():
            summary["figures"] = [path.name for path in write_figures(self.folder, steps, held_out)]
        if adapter is not None and Path(adapter.folder).is_dir():
            shutil.copytree(adapter.folder, self.folder / "adapter", dirs_exist_ok=True)
            summary["adapter"] = "adapter"
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(self.folder / "summary.json", text + "\n")
        return summary

    def close(self) -> None:
        """Close the event file. Safe to call twice."""
        self._stream.close()


def is_begun(folder: Path) -> bool:
    """Whether a run has measured anything in this folder."""
    events, results = folder / "events.jsonl", folder / "evals.jsonl"
    measured = results.is_file() and results.stat().st_size > 0
    if not measured and events.is_file():
        with events.open(encoding="utf-8", errors="replace") as lines:
            measured = any(f'"{StepFinished.kind}"' in line for line in lines)
    return measured


def require_same_run(folder: Path, config: AgentConfig) -> None:
    """Refuse to go on in the folder of a run that was begun under settings that make its record another one. Changes nothing.

    Settings under which nothing was measured (they failed to start, or were stopped before the first step) bind nobody. Raises UsageError
    that names the settings; also where they cannot be read any more.
    """
    if not is_begun(folder):
        return
    name = shown(str(folder))
    try:
        then = resolve(AgentConfig, files=[folder / "config.yaml"]).config
    except ConfigError as error:
        raise UsageError(
            f"{name} holds a run whose settings cannot be read ({error})", hint="give another folder with --out"
        ) from error
    if changed := other_settings(then, config) or _another_state(folder, then, config):
        raise UsageError(f"{name} holds a run with other settings ({changed})", hint="give another folder with --out")


def _another_state(folder: Path, then: AgentConfig, now: AgentConfig) -> str:
    """A run goes on from its state folder, which may lie in the run folder and be moved with it."""
    if then.state_folder is None or now.state_folder is None:
        return ""
    before, after = Path(then.state_folder).expanduser().resolve(), Path(now.state_folder).expanduser().resolve()
    moved_along = after == (folder / "state").resolve() and after.exists()
    return "" if before == after or moved_along else f"state_folder {then.state_folder} -> {now.state_folder}"


def summary_of(steps: Sequence[StepFinished], finished: RunFinished, held_out: Sequence[HeldOutScored] = ()) -> dict[str, Any]:
    """What a run came to: the first and the last steps side by side, for the run and each phase, totals, and what was forgotten.

    Where the floor of some steps is known: seconds a step at the floor, and how many times that these steps took.
    """
    measured = [(step.time.seconds, step.time.floor_s) for step in steps if step.time.floor_s]
    floor_s = fsum(floor for _, floor in measured)
    return {
        "run_id": finished.run_id,
        "reason": finished.reason,
        "steps": finished.steps_done,
        **_first_and_last(steps),
        "dual": steps[-1].control.dual_after if steps else None,
        "cloud_calls": finished.total_cloud_calls,
        "cloud_tokens": finished.total_cloud_tokens,
        "spend_uusd": finished.total_spend_uusd,
        "masked": sum(step.scores.masked for step in steps),
        "refused": sum(step.scores.refused for step in steps),
        "uncalled": sum(step.scores.uncalled for step in steps),
        "offline_steps": sum(step.control.offline for step in steps),
        "skipped_updates": sum(bool(step.update.learner_skipped) for step in steps),
        "seconds": sum(step.time.seconds for step in steps),
        "seconds_per_step": sum(step.time.seconds for step in steps) / len(steps) if steps else None,
        **(
            {"floor_s_per_step": floor_s / len(measured), "times_floor": fsum(seconds for seconds, _ in measured) / floor_s}
            if measured
            else {}
        ),
        "adapter_version": finished.adapter_version,
        "phases": [
            {
                "phase": span.phase,
                "source": span.source,
                "task": span.task,
                "first_step": span.first,
                "last_step": span.last,
                "dual": span.steps[-1].control.dual_after,
                **_first_and_last(span.steps),
            }
            for span in phase_spans(steps)
        ],
        "forgetting": [entry.to_json() for entry in forgetting_of(steps, held_out)],
    }


def _first_and_last(steps: Sequence[StepFinished]) -> dict[str, Any]:
    """Means over some steps at either end, and how many."""
    third = max(1, len(steps) // 3)
    first, last = min(_FIRST, third, len(steps)), min(_LAST, third, len(steps))
    return {"first_steps": first, "first": _means(steps[:first]), "last_steps": last, "last": _means(steps[-last:])}


def _means(steps: Sequence[StepFinished]) -> dict[str, Any]:
    """Means over steps; local accuracy weighted by the responses that were answered locally, a family's shares by its prompts."""
    if not steps:
        return {}
    overall = [step.scores.joint_accuracy for step in steps if step.scores.joint_accuracy is not None]
    by_family: dict[str, list[FamilyScores]] = {}
    for scores in sorted((scores for step in steps for scores in step.scores.families), key=lambda one: one.family):
        by_family.setdefault(scores.family, []).append(scores)
    return {
        "kept_accuracy": _weighted([(step.scores.kept_accuracy, step.scores.coverage * step.scores.responses) for step in steps]),
        "coverage": mean([step.scores.coverage for step in steps]),
        "joint_accuracy": mean(overall) if overall else None,
        "assist_rate": mean([step.control.assist_rate for step in steps]),
        "target_rate": mean([step.control.target_rate for step in steps]),
        "dual": mean([step.control.dual_before for step in steps]),
        "reward": mean([step.scores.reward_mean for step in steps]),
        "format_ok": mean([step.scores.format_ok for step in steps]),
        "tokens_per_s": mean([step.time.tokens_per_s for step in steps]),
        "families": {
            name: {
                "prompts": sum(one.prompts for one in own),
                "kept_accuracy": _weighted([(one.kept_accuracy, (1.0 - one.assist_rate) * one.prompts) for one in own]),
                "joint_accuracy": _weighted([(one.joint_accuracy, one.prompts) for one in own]),
                "assist_rate": _weighted([(one.assist_rate, one.prompts) for one in own]),
            }
            for name, own in by_family.items()
        },
    }


def _weighted(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    """Mean of (value, weight) pairs whose value is known."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = fsum(weight for _, weight in known)
    return fsum(value * weight for value, weight in known) / total if total else None


def _read_held_out(path: Path) -> list[HeldOutScored]:
    """What the file holds. Raises StateError with the line of what is damaged."""
    found: list[HeldOutScored] = []
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            fields = {name: value for name, value in json.loads(line).items() if name != "kind"}
            low, high = fields.pop("forced_local_interval")
            found.append(HeldOutScored(**fields, forced_local_interval=(low, high)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            where, hint = f"{path}:{number}", "remove the line; it will be measured again"
            raise StateError(f"{where}: not a result on held-out items", hint=hint) from error
    return found


def _write_metrics(path: Path, steps: Sequence[StepFinished]) -> None:
    """One row a step. A family's columns are `FAMILY.kept_accuracy` and so on, a band's `band_known.right`; empty where it did not
    occur. `help_auc`: how the help log-odds order right and wrong responses; empty without both.
    """
    rows = []
    for step in steps:
        row = {name: value for name, value in step.flat().items() if name not in _WHERE_MEASURED or value is not None}
        row |= {f"{name}_s": seconds for name, seconds in row.pop("seconds_by_part").items()}
        row["help_auc"] = (row.pop("ranked") or {}).get("auc")
        del row["drawn"]
        for column, key, prefix in (
            ("families", "family", "{}"),
            ("bands", "band", "band_{}"),
        ):
            for part in row.pop(column):
                row |= {f"{prefix.format(part[key])}.{name}": value for name, value in part.items() if name != key}
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        if rows:
            writer = csv.DictWriter(file, fieldnames=names)
            writer.writeheader()
            writer.writerows(rows)
