"""The report of one evaluation. Knows its JSON form; knows nothing of terminals or of how items were judged.

The JSON object (`edge-agent eval --json`; `schema` 1; fields are only ever added) holds

- what was measured: `schema`, `sources`, `tasks`, `model`, `model_sha256`, `adapter` (folder or null), `adapter_version` (0: the bare
  model, null: not known), `temperature`, `seed`, `max_tokens`, `max_steps` (null: each item's own), `per_level` (null: the sources' own
  mix of levels), `price` (of help, as every prompt told it; null: none did), `seconds`;
- `repeated`: how many items were dropped because an earlier source had them;
- `cloud`: "coordinator", "replay" or "none"; `cloud_all`: whether every item was asked; `with_cloud`: whether anything could be asked;
  `extra`: what asking the items that had not asked for it cost (`calls`, `tokens`, `spend_uusd`; `cached` of the calls cost
  nothing); `missing_recordings`;
- `scores`: all items together (edge.evaluation.scores.Scores), with `intervals` and `math` (the mathematical
  items alone, with their own `assist_rate` and `coverage`);
- `families`: a list of {`family`, `scores`, `levels`: [{`level`, `scores`}]}.

Shares lie in [0, 1] and are null where nothing was counted. Money is micro-USD; a replay repeats what was charged at its recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from edge.evaluation.judged import Bill, JudgedItem
from edge.evaluation.scores import Scores, score, total_bill

SCHEMA = 1
CloudSource = Literal["coordinator", "replay", "none"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What an evaluation measures, and how. `max_steps` None: each item's own; `per_level` None: the sources' own mix of levels.

    `price` of help that every prompt told; None: none did.
    """

    sources: tuple[str, ...]
    model: str
    model_sha256: str
    adapter: str | None
    adapter_version: int | None
    temperature: float
    seed: int
    max_tokens: int
    max_steps: int | None
    per_level: int | None
    cloud: CloudSource
    cloud_all: bool
    policy: str = "self"
    price: float | None = None


@dataclass(frozen=True, slots=True)
class LevelScores:
    """The scores of one difficulty level of a family."""

    level: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class FamilyScores:
    """The scores of one family, and of each of its levels."""

    family: str
    scores: Scores
    levels: tuple[LevelScores, ...]


@dataclass(frozen=True, slots=True)
class EvalReport:
    """One evaluation. `extra` is what was spent on items that had not asked."""

    measured: Measured
    tasks: tuple[str, ...]
    scores: Scores
    families: tuple[FamilyScores, ...]
    extra: Bill
    missing_recordings: int = 0
    first_failure: str = ""
    seconds: float = 0.0
    repeated: int = 0

    def to_json(self) -> dict[str, Any]:
        """The JSON object that the module describes."""
        body = asdict(self)
        measured = body.pop("measured")
        return {"schema": SCHEMA, **measured, "with_cloud": self.measured.cloud != "none", **body}


def build_report(measured: Measured, judged: Sequence[JudgedItem], missing_recordings: int = 0) -> EvalReport:
    """Sum up at least one judged item."""
    families = list(dict.fromkeys(one.item.family for one in judged))
    return EvalReport(
        measured=measured,
        tasks=tuple(dict.fromkeys(one.item.task for one in judged)),
        scores=score(judged),
        families=tuple(_family(name, [one for one in judged if one.item.family == name]) for name in families),
        extra=total_bill(one for one in judged if not one.judged.asked),
        missing_recordings=missing_recordings,
        repeated=sum(one.candidate.repeats for one in judged),
        first_failure=next((one.judged.failure for one in judged if one.judged.failure), ""),
    )


def _family(name: str, judged: Sequence[JudgedItem]) -> FamilyScores:
    levels = sorted({one.item.level for one in judged})
    return FamilyScores(
        name,
        score(judged),
        tuple(LevelScores(level, score([one for one in judged if one.item.level == level])) for level in levels),
    )


def with_seconds(report: EvalReport, seconds: float) -> EvalReport:
    """The report with how long it took."""
    return replace(report, seconds=seconds)
