"""What each layout of a table or a figure needs of a grid. Knows counts and names; knows nothing of results."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

DIRECTIONS = ("g1-g2", "g2-g1")
"""The phases of the main experiment, by name."""


@dataclass(frozen=True, slots=True)
class Need:
    """How much of each kind a layout can show. `varied`: how many settings vary; `setting`: which one it has to be."""

    methods: int | None = None
    phases: int | None = None
    varied: int | None = 0
    setting: str = ""
    directions: bool = False

    def unmet(self, methods: Collection[str], phases: Collection[str], varied: Collection[str]) -> str | None:
        """What a grid has too much or too little of, in words; None where it suits."""
        if self.methods is not None and len(methods) > self.methods:
            return f"shows one method, and there are {len(methods)} ({', '.join(methods)})"
        if self.phases is not None and len(phases) > self.phases:
            return f"shows one list of phases, and there are {len(phases)} ({', '.join(phases)})"
        if self.varied is not None and len(varied) != self.varied:
            wanted = "one setting under vary" if self.varied else "nothing under vary"
            return f"shows {wanted}, and there is {', '.join(varied) or 'none'}"
        if self.setting and self.setting not in varied:
            return f"shows {self.setting} under vary, and there is {', '.join(varied)}"
        if self.directions and tuple(sorted(phases)) != DIRECTIONS:
            return f"shows the phases {' and '.join(DIRECTIONS)}, and there is {', '.join(phases)}"
        return None


_MAIN, _ONE_SETTING = Need(directions=True), Need(methods=1, phases=1, varied=1)
_NEEDS = {
    "": Need(varied=None),
    "methods": Need(varied=None),
    "over-steps": Need(methods=1),
    "paper": _MAIN,
    "curves": _MAIN,
    "forgetting": _MAIN,
    "assist-rewards": Need(varied=1),
    "lambda": Need(methods=1, phases=1, varied=1, setting="learning.dual_init"),
    "sensitivity": _ONE_SETTING,
    "schedules": Need(),
    "rates": Need(methods=1),
    "prices": Need(),
}


def unsuited(layout: str, methods: Collection[str], phases: Collection[str], varied: Collection[str]) -> str | None:
    """Why a table or figure cannot be made of a grid, in words with what to do; None where it can."""
    unmet = _NEEDS[layout].unmet(methods, phases, varied)
    return None if unmet is None else f"{layout} {unmet}; table: methods shows any grid"
