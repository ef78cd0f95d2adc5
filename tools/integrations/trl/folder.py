"""The folder of a run: checked, locked against other processes, and reused.

A folder is a run's where it has the run's mark: nothing else is ever written to or emptied. Settings bind from the first completed step.
A start that failed before that does not bind; what it paid for stays on disk.

A fresh run replaces an earlier one late and atomically: the earlier files are in `.earlier` until the new run has started. A failed start
restores them, and after a killed start the next one does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
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
_EARLIER, _REMOVED = ".earlier", ".removed-"
_OWN = re.compile(
    r"state|state-[1-9]\d*|trl|trained|adapter|model-[0-9a-f]{12}"
    r"|events\.jsonl|evals\.jsonl|config\.yaml|config\.tmp|summary\.json|metrics\.csv"
    r"|(rate_and_dual|accuracy|families|forgetting)\.png|\.(rate_and_dual|accuracy|families|forgetting)\.png\.part"
)
_REMOVABLE = re.compile(rf"{re.escape(_REMOVED)}[a-z0-9_]{{8}}")
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
_BACK_OR_ANEW = "put it back, begin again with --fresh, or give another folder with --out"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run: its checkpoint to resume from, if any, and notices for the user."""

    checkpoint: Path | None
    notices: tuple[str, ...]


class HeldFolder:
    """A run's folder, held against other processes until it is closed; use it as a context manager."""

    def __init__(self, resolved: Resolved[TrlConfig], *, fresh: bool = False) -> None:
        """Create the folder, or check that a run can resume in it, or with `fresh` restart in it. Changes no file of an earlier run.

        Raises UsageError for a folder that cannot be written, is not a run's, lacks a part that it needs or holds steps of a run with
        other settings, StateError while another process works in it.
        """
        self.out = Path(resolved.config.out).expanduser()
        self._fresh, self._changed, self._locks = fresh, "", list[int]()
        with _one_line(self.out):
            _require_own(self.out)
            try:
                self._hold()
                if not fresh:
                    self._changed = _require_same_run(self.out, resolved)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> HeldFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder to other processes. Safe to call twice."""
        while self._locks:
            os.close(self._locks.pop())

    @contextlib.contextmanager
    def beginning(self, model: str = "") -> Iterator[Start]:
        """A run opens everything within this block; a fresh run's place is free there, and the earlier files are restored if it fails.

        `model`: the name of a bundled model's folder in it. Raises UsageError and StateError.
        """
        try:
            with _one_line(self.out):
                if self._fresh:
                    _move_aside(self.out, keep=model)
                start = self._start(model)
            yield start
        except BaseException:
            with _one_line(self.out):
                _put_back(self.out)
            raise
        with _one_line(self.out):
            _discard(self.out)

    def _hold(self) -> None:
        self._locks.append(_locked(self.out / _MARK))
        if not _is_marked(self.out):
            (self.out / _MARK).write_text(json.dumps(_MADE_BY) + "\n", encoding="utf-8")
        _put_back(self.out)
        for path in self.out.iterdir():
            if _REMOVABLE.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        if self._fresh and (self.out / "state" / "lock").exists():
            self._locks.append(_locked(self.out / "state" / "lock"))

    def _start(self, model: str) -> Start:
        aside = _leave_behind(self.out, self._changed) if self._changed else ""
        with open_state(self.out) as state:
            _bind_model(self.out, state, model)
        whole, broken = newest_whole(checkpoints(self.out / "trl"))
        notices = [aside] if aside else []
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


def _require_same_run(out: Path, resolved: Resolved[TrlConfig]) -> str:
    """The differing settings of a start without a step, or "". Raises UsageError where steps bind the settings."""
    newest = next((f"trl/{one.folder.name}" for one in checkpoints(out / "trl")), "")
    if not (out / "state" / "agent.sqlite").is_file():
        if left := newest or next((name for name in _LEFT_BY_STEPS if (out / name).exists()), ""):
            raise UsageError(f"{shown(str(out))} holds {left} of a run whose state/ is gone", hint=_BACK_OR_ANEW)
        return ""
    with open_state(out) as state:
        made = state.position().steps_done
    if any(one.step > made for one in checkpoints(out / "trl")):
        raise UsageError(f"{shown(str(out))} holds {newest}, but its state/ knows of {made} steps only", hint=_BACK_OR_ANEW)
    difference = _other_settings(out, resolved)
    if difference and made:
        hint = _ANOTHER if (out / "config.yaml").is_file() else _BACK_OR_ANEW
        raise UsageError(f"{shown(str(out))} holds a run with {difference}", hint=hint)
    return difference


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


def _leave_behind(out: Path, difference: str) -> str:
    """Begin anew where a state exists in which no step was made. Where the cloud may have been asked, it is set aside with its ledger."""
    state = out / "state"
    with open_state(out) as opened:
        asked = opened.meta(OPENED) is not None
    if not asked:
        shutil.rmtree(state)
        return ""
    aside = next(path for path in (out / f"state-{number}" for number in count(1)) if not path.exists())
    state.rename(aside)
    return f"a start with {difference} made no step; what it asked for is in {aside}"


def _bind_model(out: Path, state: StateFolder, model: str) -> None:
    """Raises UsageError where the run trains other weights by the same name."""
    known, begun = state.meta(MODEL), state.position().steps_done or state.meta(OPENED) is not None
    if model and known not in (None, model) and begun:
        raise UsageError(
            f"{shown(str(out))} holds a run of other weights ({known}, not {model})",
            hint=f"begin again with --fresh, or {_ANOTHER}",
        )
    if model:
        state.set_meta(MODEL, model)


def _move_aside(out: Path, keep: str) -> None:
    aside = out / _EARLIER
    aside.mkdir()
    for path in list(out.iterdir()):
        if _OWN.fullmatch(path.name) and path.name != keep:
            path.rename(aside / path.name)


def _put_back(out: Path) -> None:
    """Restore what a fresh start had moved aside; that start made no step and no call."""
    aside = out / _EARLIER
    if not aside.is_dir():
        return
    for path in list(aside.iterdir()):
        new = out / path.name
        if new.is_dir() and not new.is_symlink():
            shutil.rmtree(new)
        else:
            new.unlink(missing_ok=True)
        path.rename(new)
    aside.rmdir()


def _discard(out: Path) -> None:
    """One rename, so that a kill leaves all of the earlier run or nothing of it; what cannot be removed stays."""
    if (out / _EARLIER).is_dir():
        gone = (out / _EARLIER).rename(tempfile.mkdtemp(prefix=_REMOVED, dir=out))
        shutil.rmtree(gone, ignore_errors=True)


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
