"""One evaluation from its plan to its report, and the journal from which an interrupted one goes on.

The journal is a JSON Lines file. Its first line names the evaluation (all that its verdicts depend on, and the tag of its cloud calls),
every further line is one judged item. Items whose cloud call failed are not kept, so that they are asked again. A last line that a kill
cut off is dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge.core.clock import Clock
from edge.core.columns import Columns
from edge.core.errors import StateError
from edge.core.events import EventSink
from edge.core.files import drop_cut_line
from edge.core.formatting import counted
from edge.core.types import GGUF_ADAPTER
from edge.evaluation.cloud import NOT_RECORDED
from edge.evaluation.evaluate import EvalRoles, Evaluation
from edge.evaluation.judging import Candidate, Judged, JudgedItem, RolloutSettings
from edge.evaluation.scores import CloudSource, EvalReport, Measured, build_report
from edge.state.events import EvalProgress, Notice

_FIRST_LINE, _NEXT_LINE = b'{"evaluation": ', b'{"item": '


class Journal:
    """An open journal. `known` is what it held; `tag` the tag under which its evaluation began. Close it; who has kept the report deletes
    the file."""

    def __init__(self, path: Path, evaluation: Mapping[str, Any], tag: str) -> None:
        """Open, or create with this tag. Raises StateError: another evaluation's, damaged (FILE:LINE), or not writable."""
        self.path = path
        self.tag = tag
        self.known: dict[str, Judged] = {}
        wanted = json.loads(json.dumps(evaluation))
        try:
            begun = self._read(wanted)
            self._stream = path.open("a", encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"{path} cannot be used to keep what was judged: {error}") from error
        if not begun:
            self._write({"evaluation": wanted, "tag": tag})

    def add(self, key: str, judged: Judged) -> None:
        """Keep one item."""
        if not judged.failure:
            self._write({"item": key, "judged": judged.to_json()})

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._stream.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def _read(self, wanted: Mapping[str, Any]) -> bool:
        """Take over what the file holds; False when it is new."""
        drop_cut_line(self.path, _FIRST_LINE, _NEXT_LINE)
        content = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        if content and not content.endswith("\n"):
            raise StateError(f"{self.path}:{content.count(chr(10)) + 1}: not a line of an evaluation's journal", hint=self._hint)
        lines = content.split("\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if number == 1:
                    found, self.tag = entry["evaluation"], str(entry["tag"])
                    for name in sorted({*found, *wanted}):
                        was, now = found.get(name), wanted.get(name)
                        if was != now:
                            text = f"{self.path} keeps another evaluation: {name} was {was!r} and is {now!r}"
                            raise StateError(text, hint=self._hint)
                else:
                    self.known[str(entry["item"])] = Judged.from_json(entry["judged"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StateError(f"{self.path}:{number}: not a line of an evaluation's journal", hint=self._hint) from error
        return bool(lines)

    @property
    def _hint(self) -> str:
        return "remove the file to start anew, or write the report to another one"


ADAPTER_FILES = (GGUF_ADAPTER, "adapter_model.safetensors")
"""An adapter is known by the first of these that it has; one trained over an MLX folder has no GGUF file."""


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What is measured. `sources` as on the command line, `limit` items of each, or `per_level` items of every level.

    `adapters` are tried in order, the first usable one is measured ((): the bare model). `max_tokens` None: as in learning; `max_steps`
    None: each item's own. `record`: a file that receives every cloud answer; `replay`: a file that gives them. `journal`: where judged
    items are kept until the report is there. `candidates` are the sources' items where somebody has read them, else None. `policy` names
    who decides that a response is handed over.
    """

    sources: tuple[str, ...]
    limit: int = 200
    per_level: int | None = None
    adapters: tuple[Path, ...] = ()
    temperature: float = 0.0
    max_tokens: int | None = None
    max_steps: int | None = None
    cloud: CloudSource = "coordinator"
    cloud_all: bool = False
    record: Path | None = None
    replay: Path | None = None
    journal: Path | None = None
    candidates: tuple[Candidate, ...] | None = None
    policy: str = "self"
    columns: Mapping[str, Columns | None] = field(default_factory=dict)
    """Of task files among the sources, what is read of them (None: the columns of the usual names)."""


@dataclass(frozen=True, slots=True)
class EvalOutcome:
    """The report, and the items it sums up."""

    report: EvalReport
    judged: tuple[JudgedItem, ...]


@dataclass(frozen=True, slots=True)
class EvalRun:
    """Carries out a plan with opened roles.

    `settings` has the plan's temperature and lengths, `adapter` is the one in use (None: the bare model), `adapter_version` its version
    (0: the bare model, None: not known).
    """

    plan: EvalPlan
    roles: EvalRoles
    settings: RolloutSettings
    adapter: Path | None
    adapter_version: int | None
    sink: EventSink
    clock: Clock

    async def outcome(self, candidates: Sequence[Candidate]) -> EvalOutcome:
        """Judge all candidates and sum up. Raises StateError for a journal that cannot be used."""
        if repeated := sum(candidate.repeats for candidate in candidates):
            text = f"{repeated} items that an earlier source has too are dropped: each is judged and counted once"
            self.sink.emit(Notice(text, self.clock.now()))
        began, tag = self.clock.monotonic(), f"{int(self.clock.now() * 1000)}"
        known: Mapping[str, Judged] = {}
        with ExitStack() as stack:
            journal = None
            if self.plan.journal is not None:
                journal = Journal(self.plan.journal, self._identity(), tag)
                stack.callback(journal.close)
                known, tag = journal.known, journal.tag
            done = sum(candidate.key in known for candidate in candidates)
            if done:
                text = f"going on: {done} of {counted(len(candidates), 'item')} were judged before"
                self.sink.emit(Notice(text, self.clock.now()))

            def on_judged(candidate: Candidate, judged: Judged) -> None:
                nonlocal done
                done += 1
                if journal is not None:
                    journal.add(candidate.key, judged)
                self.sink.emit(EvalProgress(done, len(candidates)))

            evaluation = Evaluation(self.roles, self.settings, cloud_all=self.plan.cloud_all)
            judged = await evaluation.judge_all(candidates, tag, known, on_judged)
        plan, model = self.plan, self.roles.backend.model
        measured = Measured(
            sources=plan.sources,
            model=model.name,
            model_sha256=model.sha256,
            adapter=None if self.adapter is None else str(self.adapter),
            adapter_version=self.adapter_version,
            temperature=self.settings.temperature,
            seed=self.settings.seed,
            max_tokens=self.settings.max_tokens,
            max_steps=plan.max_steps,
            per_level=plan.per_level,
            cloud=plan.cloud,
            cloud_all=plan.cloud_all,
            policy=plan.policy,
        )
        missing = sum(one.judged.failure == NOT_RECORDED for one in judged)
        report = build_report(measured, judged, missing)
        return EvalOutcome(replace(report, seconds=self.clock.monotonic() - began), tuple(judged))

    def _identity(self) -> dict[str, Any]:
        """All that a verdict depends on except the item itself."""
        settings = self.settings
        return {
            "model": self.roles.backend.model.sha256,
            "adapter": None if self.adapter is None else _digest_of(self.adapter),
            "temperature": settings.temperature,
            "seed": settings.seed,
            "max_tokens": settings.max_tokens,
            "prompt_form": settings.prompt_form,
            "cloud": self.plan.cloud,
            "cloud_all": self.plan.cloud_all,
            "cloud_model": settings.model_alias,
            "cloud_prompt_form": settings.cloud_prompt_form,
            "hint_chars": settings.hint_chars,
            "cloud_max_tokens": settings.max_output_tokens,
            "both_readings": self.roles.math is not None,
            "policy": self.plan.policy,
        }


def _digest_of(adapter: Path) -> str:
    file = next((adapter / name for name in ADAPTER_FILES if (adapter / name).is_file()), adapter / ADAPTER_FILES[0])
    return hashlib.sha256(file.read_bytes()).hexdigest()
