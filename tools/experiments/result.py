"""The result of one cell: a JSON file from which every table and figure can be regenerated.

Form 1. `series` has one value a step: `dual` (λ after the step), `assist`, `joint`, `kept` (accuracy of kept responses, null: none was
kept), `reward`, `format`, `entropy`, `calls` (billed). `held_out` has one entry for each source and time of evaluation: `step`, `phase`
(phases done), and per-item texts of 0, 1 and - as `tools.experiments.held_out` packs them. `settings` and `models` (digests of the model
files) identify the measured configuration. Later versions only add keys.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from edge.app.settings import model_file
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError, ModelFileError
from edge.state.events import StepFinished
from tools.experiments.cells import Cell, section_of
from tools.places import put

RESULTS = Path(__file__).resolve().parent / "results"
FORM = 1
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Result:
    """A finished cell and its result."""

    cell: Cell
    body: Mapping[str, Any]

    @property
    def series(self) -> Mapping[str, list[Any]]:
        """One value a step by name."""
        found: Mapping[str, list[Any]] = self.body["series"]
        return found

    def evaluations(self, phase: int | None = None) -> Iterator[Mapping[str, Any]]:
        """The evaluations of each source after `phase` phases (None: all)."""
        return (evaluation for evaluation in self.body["held_out"] if phase is None or evaluation.get("phase") == phase)

    def evaluation(self, source: str, phase: int) -> Mapping[str, Any] | None:
        """The evaluation of one source after `phase` phases."""
        return next((evaluation for evaluation in self.evaluations(phase) if evaluation["source"] == source), None)


# -- reading and writing ---------------------------------------------------------------------------------------------------------------


def result_file(cell: Cell, folder: Path = RESULTS) -> Path:
    """The path of a cell's result."""
    return folder / f"{cell.key}.json"


def read_result(cell: Cell, folder: Path = RESULTS) -> Result | None:
    """The result of a cell, None where there is none. Raises EdgeError for a damaged file, or one of other settings or models."""
    path = result_file(cell, folder)
    if not path.is_file():
        return None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        require_form(cell, body)
    except (OSError, ValueError, RecursionError) as error:
        raise EdgeError(
            f"{path}: not the result of {cell.key} ({error})", hint="remove the file to run the cell again"
        ) from error
    if (difference := changed(cell, body)) is not None:
        raise EdgeError(
            f"{path}: {difference}", hint=f"to run the cell again remove the file, and {cell.key} from the runs (--work)"
        )
    return Result(cell, body)


def strays(cells: Iterable[Cell], folder: Path = RESULTS) -> list[str]:
    """The names of the files of a folder that are the result of none of these cells; hidden ones aside."""
    known = {result_file(cell, folder).name for cell in cells}
    return sorted(path.name for path in folder.iterdir() if path.name not in known and not path.name.startswith("."))


def write_result(path: Path, body: Mapping[str, Any]) -> None:
    """The file, whole, one line for each of its parts, so that a person can read its beginning. Raises EdgeError."""
    lines = [f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'), allow_nan=False)}" for name, value in body.items()]
    put("{" + ",\n".join(lines) + "}\n", path)


# -- what a result must have to be read ------------------------------------------------------------------------------------------------


_BY_ITEM = ("asked", "own", "forced", "cloud", "joint", "format", "help")
_OF_SOME = ("doubt", "router")
"""What an evaluation has of each item, and what it may have."""


def require_form(cell: Cell, body: Any) -> None:
    """Raises ValueError with the defect unless this is a complete result of the cell."""
    try:
        if (body["form"], body["key"], body["cell"]) != (FORM, cell.key, cell.to_json()):
            raise ValueError("cell is not the one that the key is made of")
        for name, values in body["series"].items():
            if len(values) != cell.steps:
                raise ValueError(f"series.{name} has {len(values)} of {cell.steps} steps")
        for evaluation in body["held_out"]:
            for name in (*_BY_ITEM, *(name for name in _OF_SOME if name in evaluation)):
                if len(evaluation[name]) != evaluation["items"]:
                    raise ValueError(f"held_out: {name} has {len(evaluation[name])} of {evaluation['items']} items")
        _require_every_evaluation(cell, body["held_out"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{error} is missing or of another kind") from error


def _require_every_evaluation(cell: Cell, evaluations: Sequence[Mapping[str, Any]]) -> None:
    """After each phase (before learning: once) every source."""
    ends = list(accumulate(phase.steps for phase in cell.phases)) or [0]
    names = cell.evaluate.sources if cell.evaluate.items else ()
    wanted = {(name, end, number) for number, end in enumerate(ends, 1 if cell.phases else 0) for name in names}
    if missing := sorted(wanted - {(each["source"], each["step"], each["phase"]) for each in evaluations}):
        raise ValueError(f"held_out has nothing of {missing[0][0]} after step {missing[0][1]}")


# -- what a result was measured with ---------------------------------------------------------------------------------------------------
# A cell's key holds what an experiment sets. What it leaves as usual, and the bytes of the models, can change under it: results of before
# would then be compared with results of after as if they were alike.


def settings_of(config: AgentConfig) -> dict[str, Any]:
    """The settings that a result keeps: of learning, by their recorded names, and of the adapter."""
    learning = config.learning.model_dump(mode="json", exclude={"when", "enabled"})
    for section in set(section_of().values()):
        learning |= learning.pop(section)
    return {"learning": learning, "adapter": config.adapter.model_dump(mode="json")}


def models_of(config: AgentConfig) -> dict[str, str]:
    """Digests of the SLM's file and the cloud LLM's, by name; missing files are left out."""
    embedded = config.coordinator.embedded
    names = [config.model.path, *([embedded.path or embedded.model] if embedded.upstream == "bundled" else [])]
    return {name: found for name in names if (found := _digest_of(name)) is not None}


def cloud_of(config: AgentConfig) -> str:
    """A digest of which cloud LLM answers, and where: of its file where it is one of ours."""
    coordinator, embedded = config.coordinator, config.coordinator.embedded
    where = [coordinator.address, coordinator.model_alias, embedded.upstream, embedded.model, embedded.path, embedded.base_url]
    file = _digest_of(embedded.path or embedded.model) if embedded.upstream == "bundled" else None
    return hashlib.blake2b(json.dumps([*where, file]).encode(), digest_size=_DIGEST_BYTES // 2).hexdigest()


def changed(cell: Cell, body: Mapping[str, Any]) -> str | None:
    """One difference from today's settings or models; None where there is none. Keys added later are not compared, nor is what a null now
    leaves to be chosen for the model, as skills are."""
    config = cell.resolved("state").config
    for key, then, now in _both(body.get("settings", {}), settings_of(config)):
        if then != now and now is not None:
            return f"it was measured with {key} {then}, which is {now} now"
    models = models_of(config)
    for name, digest in body.get("models", {}).items():
        if models.get(name, digest) != digest:
            return f"it was measured with another file of {name}"
    return None


def _both(then: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in (key for key in then if key in now):
        where = f"{within}{key}"
        if isinstance(then[key], Mapping) and isinstance(now[key], Mapping):
            yield from _both(then[key], now[key], f"{where}.")
        else:
            yield where, then[key], now[key]


def _digest_of(name: str) -> str | None:
    try:
        path = model_file(name)
    except ModelFileError:
        return None
    stat = path.stat()
    return _digest(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=16)
def _digest(path: Path, changed_ns: int, size: int) -> str:
    """Of a file's bytes; of a folder's files in the order of their names."""
    del changed_ns, size  # another file of the same name is read again
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


# -- from steps to a result ------------------------------------------------------------------------------------------------------------


def series_of(steps: Sequence[StepFinished]) -> dict[str, list[Any]]:
    """The arrays of a run's steps."""
    values: dict[str, tuple[int, list[float | None]]] = {
        "dual": (4, [step.control.dual_after for step in steps]),
        "assist": (4, [step.control.assist_rate for step in steps]),
        "joint": (3, [step.scores.joint_accuracy for step in steps]),
        "kept": (3, [step.scores.kept_accuracy for step in steps]),
        "reward": (3, [step.scores.reward_mean for step in steps]),
        "format": (3, [step.scores.format_ok for step in steps]),
        "entropy": (3, [step.update.entropy for step in steps]),
    }
    rounded = {name: [_rounded(value, digits) for value in column] for name, (digits, column) in values.items()}
    return {**rounded, "calls": [step.cloud.cloud_calls for step in steps]}


def training_cost(steps: Sequence[StepFinished]) -> dict[str, Any]:
    """The requests and cost of learning: responses that asked (help units) and billed calls, their tokens and micro-USD, and seconds."""
    prompts, responses = sum(step.scores.prompts for step in steps), sum(step.scores.responses for step in steps)
    help_units = sum(round(step.control.assist_rate * step.scores.responses) for step in steps)
    calls = sum(step.cloud.cloud_calls for step in steps)
    return {
        "steps": len(steps),
        "prompts": prompts,
        "responses": responses,
        "help_units": help_units,
        "billed_calls": calls,
        "cloud_tokens": sum(step.cloud.cloud_tokens for step in steps),
        "spend_uusd": sum(step.cloud.spend_uusd for step in steps),
        "response_rate": _rounded(help_units / responses, 4) if responses else None,
        "billed_rate": _rounded(calls / prompts, 4) if prompts else None,
        "masked": sum(step.scores.masked for step in steps),
        "refused": sum(step.scores.refused for step in steps),
        "skipped_updates": sum(bool(step.update.learner_skipped) for step in steps),
        "local_tokens": sum(step.time.tokens for step in steps),
        "seconds": round(sum(step.time.seconds for step in steps), 1),
        "seconds_by_part": {
            name: round(sum(getattr(step.time.seconds_by_part, name) for step in steps), 1)
            for name in ("rollout", "cloud", "update", "save", "close", "swap")
        },
    }


def _rounded(value: float | None, digits: int) -> float | int | None:
    """Whole numbers without a fraction, which are shorter."""
    if value is None:
        return None
    short = round(value, digits)
    return int(short) if short == int(short) else short
