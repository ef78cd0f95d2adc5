"""The folder of a run: whether it can be taken. Knows what a run leaves in it and which settings may change between two parts of one run.

Settings bind from the first step that was made. A start that failed before it binds nobody; what it paid for stays on disk.
"""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

from edge.agent.state import StateFolder
from edge.config.loader import Resolved, resolve
from edge.core.errors import ConfigError, UsageError
from edge.core.names import shown
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.desk import OPENED

_MAY_CHANGE = (
    "out",
    "trainer.rows_per_pass",
    "trainer.checkpoint_every",
    "trainer.keep_checkpoints",
    "trainer.gradient_checkpointing",
)
_ANOTHER = "give another folder with --out"


def take(resolved: Resolved[TrlConfig], *, fresh: bool = False) -> str:
    """Make the run's folder, or find it fit to go on in; with `fresh`, empty it first. Returns a line that a person should read, or "".

    Raises UsageError for a folder that cannot be written or holds steps of a run with other settings, StateError while another process
    works in it.
    """
    out = Path(resolved.config.out).expanduser()
    _require_writable(out)
    if fresh:
        begin_again(out)
        return ""
    return _require_same_run(out, resolved)


def begin_again(out: Path) -> None:
    """Remove what an earlier run left in its folder, the ledger of its coordinator with it."""
    for path in (*(out / name for name in ("state", "trl", "trained", "adapter")), *out.glob("state-*")):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("events.jsonl", "evals.jsonl", "config.yaml", "summary.json", "metrics.csv"):
        (out / name).unlink(missing_ok=True)


def _require_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if out.is_file() else error.strerror
        raise UsageError(f"{shown(str(out))} cannot be the folder of a run: {reason}", hint=_ANOTHER) from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise UsageError(f"{shown(str(out))} cannot be the folder of a run: it cannot be written", hint=_ANOTHER)


def _require_same_run(out: Path, resolved: Resolved[TrlConfig]) -> str:
    if not (out / "state" / "agent.sqlite").is_file() or not (out / "config.yaml").is_file():
        return ""
    told = _other_settings(out / "config.yaml", resolved)
    return _leave_behind(out, told) if told else ""


def _other_settings(path: Path, resolved: Resolved[TrlConfig]) -> str:
    """The first setting that differs from those in the file so that it would be another run, or ""."""
    try:
        then = {key: value for key, value, _ in resolve(TrlConfig, files=[path]).rows()}
    except ConfigError as error:
        return f"settings that cannot be read ({error})"
    now = {key: value for key, value, _ in resolved.rows()}
    other = next((key for key in now if then.get(key) != now[key] and key not in _MAY_CHANGE), "")
    return f"other settings ({other} {then.get(other)} -> {now[other]})" if other else ""


def _leave_behind(out: Path, told: str) -> str:
    """Begin anew beside a state in which no step was made. Where the cloud may have been asked, it is set aside with its ledger."""
    state = out / "state"
    with StateFolder(state) as opened:
        made, asked = opened.position().steps_done, opened.meta(OPENED) is not None
    if made:
        raise UsageError(f"{shown(str(out))} holds a run with {told}", hint=_ANOTHER)
    if not asked:
        shutil.rmtree(state)
        return ""
    aside = next(path for path in (out / f"state-{number}" for number in count(1)) if not path.exists())
    state.rename(aside)
    return f"a start with {told} made no step; what it asked for stands in {aside}"
