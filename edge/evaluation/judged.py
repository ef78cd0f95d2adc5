"""What is known of one item after it was judged. Knows facts; knows nothing of how they were found or are summed up.

A verdict says whether the reward counts the answer as right; of a mathematical answer also whether it is exactly the reference's string
and whether it is equivalent to it (None where nobody compared).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edge.core.types import TaskItem


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item to judge. Its weight in sums counts only beside the others'. `repeats`: how many further sources hold it."""

    item: TaskItem
    weight: float = 1.0
    repeats: int = 0

    @property
    def key(self) -> str:
        """Tells items apart by all that is asked of the model: 32 hex digits."""
        item = self.item
        content = [item.id, item.family, item.question, list(item.options), item.answer, item.preamble, item.max_steps]
        return hashlib.blake2b(json.dumps(content).encode("ascii"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`right` decides the reward; `exact` and `equivalent` are the two readings of a mathematical answer."""

    right: bool
    exact: bool | None = None
    equivalent: bool | None = None


WRONG = Verdict(False, False, False)


@dataclass(frozen=True, slots=True)
class Bill:
    """What the cloud cost: calls (items that were answered, or charged without an answer), billed tokens, and micro-USD.

    `cached` of the calls were answered out of the coordinator's cache, which costs nothing.
    """

    calls: int = 0
    tokens: int = 0
    spend_uusd: int = 0
    cached: int = 0

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.spend_uusd + other.spend_uusd,
            self.cached + other.cached,
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """One item's answers.

    `own`: the answer that was kept, wrong when it asked. `forced`: with asking made impossible. `joint`: after composition with the
    cloud's answer (None: asked, and no cloud was there to ask). `cloud`: the cloud's answer by itself, where it is known; `bill` what
    it cost. `failure`: why no answer came, or "". `too_long`: the question does not fit into the context, which is a wrong answer.
    `tokens` is the length of the response; `help_log_odds` log p/(1-p) of asking at its decision.
    """

    asked: bool
    format_ok: bool
    own: Verdict
    forced: Verdict
    joint: Verdict | None
    cloud: Verdict | None
    tokens: int
    help_log_odds: float | None
    bill: Bill = Bill()
    failure: str = ""
    too_long: bool = False

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Judged:
        """From what `to_json` made. Raises KeyError, TypeError or ValueError for anything else."""
        fields = {name: None if data[name] is None else Verdict(**data[name]) for name in ("own", "forced", "joint", "cloud")}
        return cls(**{**data, **fields, "bill": Bill(**data["bill"])})


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """A candidate with what became known of it."""

    candidate: Candidate
    judged: Judged

    @property
    def item(self) -> TaskItem:
        """The question."""
        return self.candidate.item

    @property
    def weight(self) -> float:
        """Its weight in sums."""
        return self.candidate.weight
