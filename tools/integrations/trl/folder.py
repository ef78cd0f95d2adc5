"""The folder of a run: checked, locked against other processes, and resumed.

A folder is a run's where it has the run's mark: nothing else is ever written to. Settings bind from the first
step that was opened; a start that failed before that does not bind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edge.config.loader import Resolved, resolve
from edge.core.errors import ConfigError, StateError, UsageError
from edge.core.formatting import shown
from edge.learning.run_folder import other_settings
from edge.state.folder import StateFolder
from tools.integrations.trl.checkpoints import checkpoints, newest_whole, set_broken_aside
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.steps import OPENED

MODEL = "trl_model"
"""Under this name the state folder keeps which bundled model's folder the run trains."""

_MARK = "run.json"
_MADE_BY = {"made_by": "edge-agent on TRL"}
_LEFT_BY_STEPS = ("trained", "summary.json", "metrics.csv")
_MAY_CHANGE = (
    "out",
    "trainer.rows_per_pass",
    "trainer.checkpoint_every",
    "trainer.keep_checkpoints",
    "trainer.gradient_checkpointing",
    "trainer.options.ddp_timeout",
)
_ANOTHER = "give another folder with --out"
_NO_STATE_OPTION = re.compile(r"(choose|name) another( folder)? with --state")
_BACK_OR_ANEW = "put it back, or give another folder with --out"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run: its checkpoint to resume from, if any, and notices for the user."""

    checkpoint: Path | None
    notices: tuple[str, ...]


class HeldFolder:
    """A run's folder, held against other processes until it is closed; use it as a context manager."""

    def __init__(self, resolved: Resolved[TrlConfig]) -> None:
        """Create the folder, or check that a run can resume in it. Changes no file of an earlier run.

        Raises UsageError for a folder that cannot be written, is not a run's, lacks a part that it needs or holds a run with other
        settings, StateError while another process works in it.
        """
        self.out = Path(resolved.config.out).expanduser()
        self._lock: int | None = None
        with _one_line(self.out):
            _require_own(self.out)
            try:
                self._hold()
                self._asked_nothing = _require_same_run(self.out, resolved)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> HeldFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder to other processes. Safe to call twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def start(self, model: str = "") -> Start:
        """The checkpoint to resume from. `model`: the name of a bundled model's folder in this one. Raises UsageError and StateError."""
        with _one_line(self.out):
            return self._start(model)

    def _hold(self) -> None:
        self._lock = _locked(self.out / _MARK)
        if not _is_marked(self.out):
            (self.out / _MARK).write_text(json.dumps(_MADE_BY) + "\n", encoding="utf-8")

    def _start(self, model: str) -> Start:
        if self._asked_nothing:
            shutil.rmtree(self.out / "state")
        with open_state(self.out) as state:
            _bind_model(self.out, state, model)
        whole, broken = newest_whole(checkpoints(self.out / "trl"))
        notices = []
        if broken:
            names = ", ".join(f"trl/{one.folder.name}" for one in broken)
            where = f"trl/{whole.folder.name}" if whole else "the first step, and nothing is paid for twice"
            notices.append(f"{names}: not written to the end; going on from {where}")
        for one in broken:
            set_broken_aside(one)
        return Start(None if whole is None else whole.folder, tuple(notices))


def open_state(out: Path) -> StateFolder:
    """The run's state folder, open. Raises StateError."""
    try:
        return StateFolder(out / "state")
    except StateError as error:
        raise StateError(str(error), hint=_NO_STATE_OPTION.sub(_ANOTHER, error.hint)) from error


def _require_own(out: Path) -> None:
    """Raises UsageError for a folder that cannot be written or that holds anything but a run."""
    if out.is_file():
        raise UsageError(f"{_named(out)}: it is a file", hint=_ANOTHER)
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(f"{_named(out)}: it cannot be written", hint=_ANOTHER)
    new = all(path.name == _MARK and path.is_file() and not path.stat().st_size for path in out.iterdir())  # or a killed start
    if not (new or _is_marked(out)):
        raise UsageError(f"{_named(out)}: it holds other files, and no run", hint=_ANOTHER)


def _is_marked(out: Path) -> bool:
    try:
        found = json.loads((out / _MARK).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return bool(found == _MADE_BY)


def _locked(path: Path) -> int:
    """An open descriptor that holds a lock; the system drops it when the process dies, however it dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            f"{shown(str(path.parent))}: another process works in it", hint=f"wait until it ends, or {_ANOTHER}"
        ) from error
    return descriptor


def _require_same_run(out: Path, resolved: Resolved[TrlConfig]) -> bool:
    """Whether a start with other settings lies there that opened no step. Raises UsageError for steps without their state, and for a run
    with other settings."""
    newest = next((f"trl/{one.folder.name}" for one in checkpoints(out / "trl")), "")
    if not (out / "state" / "agent.sqlite").is_file():
        if left := newest or next((name for name in _LEFT_BY_STEPS if (out / name).exists()), ""):
            raise UsageError(f"{shown(str(out))} holds {left} of a run whose state/ is gone", hint=_BACK_OR_ANEW)
        return False
    with open_state(out) as state:
        made, begun = state.position().steps_done, _is_begun(state)
    if any(one.step > made for one in checkpoints(out / "trl")):
        raise UsageError(f"{shown(str(out))} holds {newest}, but its state/ knows of {made} steps only", hint=_BACK_OR_ANEW)
    difference = _other_settings(out, resolved)
    if difference and begun:
        hint = _ANOTHER if (out / "config.yaml").is_file() else _BACK_OR_ANEW
        raise UsageError(f"{shown(str(out))} holds a run with {difference}", hint=hint)
    return bool(difference)


def _is_begun(state: StateFolder) -> bool:
    """Whether a step was opened: from then on the cloud may have been asked."""
    return bool(state.position().steps_done) or state.meta(OPENED) is not None


def _other_settings(out: Path, resolved: Resolved[TrlConfig]) -> str:
    """The settings that differ from those in the folder so that it would be another run, or ""."""
    path = out / "config.yaml"
    if not path.is_file():
        return "settings that are gone (config.yaml)"
    try:
        before = resolve(TrlConfig, files=[path])
    except ConfigError as error:
        return f"settings that cannot be read ({error})"
    then, now = (
        {key: value for key, value, _ in one.rows() if not key.startswith("agent.") and key not in _MAY_CHANGE and value != {}}
        for one in (before, resolved)
    )
    others = (
        f"{key} {then.get(key, 'none')} -> {now.get(key, 'none')}" for key in {**then, **now} if then.get(key) != now.get(key)
    )
    difference = next(others, "") or other_settings(before.config.agent, resolved.config.agent, under="agent.")
    return f"other settings ({difference})" if difference else ""


def _bind_model(out: Path, state: StateFolder, model: str) -> None:
    """Raises UsageError where the run trains other weights by the same name."""
    known = state.meta(MODEL)
    if model and known not in (None, model) and _is_begun(state):
        raise UsageError(
            f"{shown(str(out))} holds a run of other weights ({known}, not {model})",
            hint=_ANOTHER,
        )
    if model:
        state.set_meta(MODEL, model)


def _named(out: Path) -> str:
    return f"{shown(str(out))} cannot be the folder of a run"


@contextlib.contextmanager
def _one_line(out: Path) -> Iterator[None]:
    """The system's refusal as a UsageError that names the place."""
    try:
        yield
    except OSError as error:
        place = f" ({shown(str(error.filename))})" if error.filename and str(error.filename) != str(out) else ""
        raise UsageError(f"{_named(out)}: {error.strerror}{place}", hint=_ANOTHER) from error
