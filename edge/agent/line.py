"""Which adapter serves and which one training goes on from. Knows version numbers; knows nothing of files, models or why.

Versions are step numbers; 0 is the bare model. The versions that a version was trained from, back to 0, are its line. Going back leaves
the versions in between where they are: they are history, but no longer on the line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Outcome = Literal["serves", "waits", "promoted", "refused"]
"""What becomes of a step's adapter: it serves at once (no gate), waits for the gate, or has passed or failed it."""


@dataclass(frozen=True, slots=True)
class Line:
    """`head`: training goes on from it. `serving`: it answers people. `refusals` in a row; `kept`: versions to go back to, oldest first."""

    head: int
    serving: int
    refusals: int = 0
    kept: tuple[int, ...] = ()

    def after_step(self, step: int, base: int, outcome: Outcome, *, max_refusals: int = 1, keep: int = 3) -> Line:
        """After the step that was trained from `base`. One whose base was left meanwhile changes nothing.

        The refusal number `max_refusals` in a row takes training back to the version that serves.
        """
        if base != self.head:
            return self
        if outcome == "serves":
            return replace(self, head=step, serving=step, refusals=0)
        if outcome == "waits":
            return replace(self, head=step)
        if outcome == "promoted":
            return Line(step, step, 0, _newest((*self.kept, self.serving, step), keep))
        if self.refusals + 1 >= max_refusals:
            return replace(self, head=self.serving, refusals=0)
        return replace(self, head=step, refusals=self.refusals + 1)

    def back_to(self, version: int, keep: int = 3) -> Line:
        """Serve and train on from `version`; what is left stays on disk for a while."""
        return Line(version, version, 0, _newest((*self.kept, self.serving, self.head, version), keep))

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Line:
        """From what `to_json` made."""
        fields: Mapping[str, Any] = json.loads(text)
        return cls(**{**fields, "kept": tuple(fields["kept"])})


def _newest(versions: tuple[int, ...], keep: int) -> tuple[int, ...]:
    """The last `keep` different versions, each at the place where it stands last; the bare model needs no keeping."""
    ordered = dict.fromkeys(version for version in reversed(versions) if version)
    return tuple(reversed(list(ordered)[: max(keep, 1)]))
