"""Whether the cloud may be asked at all."""

from __future__ import annotations

import sqlite3

from edge.core.errors import StateError
from edge.state.folder import StateFolder
from edge.state.reader import StateReader

PAUSED = "the cloud is paused (edge-agent budget resume ends it)"
_PAUSED_SINCE = "cloud_paused_since"


def is_paused(state: StateReader) -> bool:
    """Whether the cloud was paused and not resumed."""
    return bool(state.meta(_PAUSED_SINCE))


def set_paused(state: StateFolder, paused: bool, at: float) -> None:
    """Pause or resume; `at` in seconds since the epoch. Raises StateError when it cannot be written."""
    try:
        state.set_meta(_PAUSED_SINCE, repr(at) if paused else "")
    except sqlite3.Error as error:
        raise StateError(f"{state.folder}: cannot be written ({error})", hint="make room on the disk") from error


class CloudSwitch:
    """Why the cloud may not be asked now, if so. `always_off`: a reason that holds as long as the process, or ""."""

    def __init__(self, state: StateFolder, always_off: str = "") -> None:
        self._state = state
        self.always_off = always_off
        self.paused = is_paused(state)

    @property
    def reason(self) -> str:
        """One line, or "" when it may be asked."""
        return self.always_off or (PAUSED if self.paused else "")

    def pause(self, paused: bool, at: float) -> str:
        """Pause or resume, on disk before it holds. A pause that cannot be written holds as long as the process, and why is
        returned ("": it was written). Raises StateError for a resumption that cannot be written: the pause goes on."""
        failure = ""
        try:
            set_paused(self._state, paused, at)
        except StateError as error:
            if not paused:
                raise
            failure = str(error)
        self.paused = paused
        return failure
