"""What is wrong with a ledger, for its operator. Knows SQLite's errors and when a line belongs in the log; knows nothing of rows.

To devices it is only reported that the ledger cannot be written: where it is and its database's message are for the operator.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from pathlib import Path

from edge.core.errors import CoordinatorUnavailable, StateError

log = logging.getLogger(__name__)
DAMAGED = (
    "restore a copy of it, or move it away to begin a new ledger; `edge-coordinator ledger export` gives what can still be read"
)
NO_SPACE = "make room on its disk"
READ_ONLY = (
    "its folder cannot be written, and a ledger is read through files next to it: make it writable, copy the ledger with its -wal "
    "file to where it is, or ask the running coordinator with --coordinator"
)
CHECK_RIGHTS = "check the file and its folder's permissions"
STEADY_WRITES = 8
_DAMAGES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class Writability:
    """Whether a ledger can be written, said in the log once when it cannot and once when it can again.

    That is after STEADY_WRITES in a row, because a little still fits on a full disk now and then.
    """

    def __init__(self) -> None:
        self._awaited_writes = 0

    @property
    def ok(self) -> bool:
        """False from the first failure until it is said that the ledger can be written again."""
        return self._awaited_writes == 0

    def failed(self, why: str) -> None:
        """Nothing could be written."""
        if self._awaited_writes == 0:
            log.error("the ledger cannot be written, calls are refused: %s", why)
        self._awaited_writes = STEADY_WRITES

    def wrote(self) -> None:
        """Something was written."""
        if self._awaited_writes > 0:
            self._awaited_writes -= 1
            if self._awaited_writes == 0:
                log.warning("the ledger can be written again")


def cannot_open_file(path: Path, error: Exception, *, reading: bool = False) -> StateError:
    """Why a ledger's file cannot be opened (`reading`: nor read), with what to do about it."""
    return StateError(f"ledger {path} cannot be opened: {error}", hint=advice(error, reading=reading))


def advice(error: Exception, *, reading: bool = False) -> str:
    """What an operator can do about an error of a ledger's file."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    number = error.errno if isinstance(error, OSError) else None
    if primary in _DAMAGES:
        return DAMAGED
    if primary == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT):
        return NO_SPACE
    if primary == sqlite3.SQLITE_READONLY or number == errno.EROFS or (reading and primary in _READ_ONLY):
        return READ_ONLY
    return CHECK_RIGHTS


def not_written(why: str = "the ledger cannot be written") -> CoordinatorUnavailable:
    """What a device receives whose operation could not be written."""
    hint = "the coordinator's log says why"
    return CoordinatorUnavailable(why, hint=hint, reason="LEDGER_UNAVAILABLE", retry_after_s=1.0)
