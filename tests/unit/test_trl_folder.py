"""The folders that a TRL run may use: settings bind a folder, and foreign files are never touched. Needs no TRL."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.config.loader import Resolved
from edge.core.errors import StateError, UsageError
from edge.state.folder import StateFolder
from edge.state.rows import Position
from tests.worlds.trl import write_checkpoint
from tools.integrations.trl.config import TrlConfig, resolve_run
from tools.integrations.trl.folder import HeldFolder, Start
from tools.integrations.trl.steps import OPENED

MARK = '{"made_by": "edge-agent on TRL"}'


def resolved(out: Path, *sets: str) -> Resolved[TrlConfig]:
    path = out.parent / "run.yaml"
    path.write_text(yaml.safe_dump({"agent": {"phases": [{"source": "practice:arith", "steps": 2}]}, "out": str(out)}))
    return resolve_run(path, sets)


def begun(out: Path, *, steps: int = 0, opened: bool = False) -> Path:
    """The folder of a run with `steps` steps; `opened`: it was killed in the next one."""
    out.mkdir()
    (out / "run.json").write_text(MARK)
    (out / "config.yaml").write_text(resolved(out).to_yaml())
    with StateFolder(out / "state") as state:
        state.set_position(Position(steps, 0, steps))
        if opened:
            state.set_meta(OPENED, "{}")
    (out / "state" / "coordinator").mkdir()
    (out / "state" / "coordinator" / "ledger.sqlite3").write_text("paid")
    return out


def take(settings: Resolved[TrlConfig], *, model: str = "") -> Start:
    """A run that starts and ends immediately."""
    with HeldFolder(settings) as held:
        return held.start(model)


def listed(out: Path) -> dict[str, str]:
    """Everything in a folder except the marks of runs and SQLite's files of an opened database."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "run.json" and "sqlite-" not in path.name]
    return {str(path.relative_to(out)): path.read_text(encoding="latin-1") for path in files}


OTHER = "agent.learning.group_size=4"


@pytest.mark.parametrize(
    "changed",
    [
        "trainer.rows_per_pass=4",
        "agent.budget.calls_limit=100",
        "agent.coordinator.address=10.0.0.9:7443",
        "agent.privacy.terms=[me]",
        "agent.phases.0.steps=9",
        "trainer.options={ddp_timeout: 60}",
    ],
)
def test_operational_settings_and_more_steps_at_the_end_let_a_run_resume(changed: str, tmp_path: Path) -> None:
    out = begun(tmp_path / "run", steps=1)
    assert take(resolved(out, changed)).notices == ()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (OTHER, "agent.learning.group_size 8 -> 4"),
        ("agent.phases.0.steps=1", "agent.phases.0.steps 2 -> 1"),
        ("trainer.tuning=full", "trainer.tuning lora -> full"),
        ("model=bundled:nano-edge-llama", "model bundled:nano-edge -> bundled:nano-edge-llama"),
    ],
)
def test_setting_that_makes_another_run_is_refused(changed: str, expected: str, tmp_path: Path) -> None:
    out = begun(tmp_path / "run", steps=1)
    with pytest.raises(UsageError) as refusal:
        take(resolved(out, changed))
    assert f"holds a run with other settings ({expected})" in str(refusal.value)
    assert (out / "state" / "coordinator" / "ledger.sqlite3").is_file()


def test_start_without_any_call_does_not_bind_the_folder(tmp_path: Path) -> None:
    out = begun(tmp_path / "run")
    assert take(resolved(out, OTHER)).notices == ()
    assert not (out / "state" / "coordinator").exists()


def test_a_cut_first_step_binds_the_folder_too_since_its_calls_may_be_paid(tmp_path: Path) -> None:
    out = begun(tmp_path / "run", opened=True)
    with pytest.raises(UsageError, match="holds a run with other settings"):
        take(resolved(out, OTHER))
    assert (out / "state" / "coordinator" / "ledger.sqlite3").read_text() == "paid"


def test_folder_in_use_by_a_run_is_refused(tmp_path: Path) -> None:
    out = begun(tmp_path / "run", steps=1)
    before = listed(out)
    with HeldFolder(resolved(out)), pytest.raises(StateError, match="another process works in it") as refusal:
        take(resolved(out))
    assert "--out" in refusal.value.hint
    assert listed(out) == before


def whole_run(out: Path) -> Path:
    """The complete folder of a run with three steps."""
    begun(out, steps=3)
    for name in ("trained", "adapter", "model-0123456789ab", "state-1"):
        (out / name).mkdir()
        (out / name / "file").write_text(name)
    write_checkpoint(out / "trl", 2)
    for name in ("events.jsonl", "evals.jsonl", "summary.json", "metrics.csv", "accuracy.png", "rate_and_dual.png"):
        (out / name).write_text(name)
    return out


def test_a_part_that_cannot_be_read_is_one_line_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = whole_run(tmp_path / "run")
    before = listed(out)
    real = Path.iterdir

    def closed(path: Path) -> Any:
        if path == out / "trl":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(UsageError, match=r"cannot be the folder of a run: Permission denied \(.*trl\)") as refusal:
        take(resolved(out))
    assert refusal.value.hint == "give another folder with --out"
    monkeypatch.undo()
    assert listed(out) == before


@pytest.mark.parametrize(
    "name",
    [
        "state/thesis.txt",
        "trained/b",
        "config.yaml",
        "run.json",
    ],
)
def test_folder_without_a_run_is_refused_and_left_unchanged(name: str, tmp_path: Path) -> None:
    out = tmp_path / "thesis"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    with pytest.raises(UsageError, match="it holds other files, and no run") as refusal:
        take(resolved(out))
    assert refusal.value.hint == "give another folder with --out"
    assert [path.read_text() for path in out.rglob("*") if path.is_file()] == ["mine"]


def test_folder_without_the_mark_of_a_run_is_refused(tmp_path: Path) -> None:
    out = begun(tmp_path / "run", steps=1)
    (out / "run.json").unlink()
    with pytest.raises(UsageError, match="it holds other files, and no run"):
        take(resolved(out))


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (["state"], "holds trl/checkpoint-2 of a run whose state/ is gone"),
        (["state", "trl"], "holds trained of a run whose state/ is gone"),
        (["state", "trl", "trained"], "holds summary.json of a run whose state/ is gone"),
        (["config.yaml"], r"holds a run with settings that are gone \(config.yaml\)"),
    ],
)
def test_incomplete_run_is_not_resumed(removed: list[str], message: str, tmp_path: Path) -> None:
    out = whole_run(tmp_path / "run")
    take(resolved(out))
    for name in removed:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    with pytest.raises(UsageError, match=message) as refusal:
        take(resolved(out))
    assert "--out" in refusal.value.hint
    assert (out / "metrics.csv").read_text() == "metrics.csv"


def test_checkpoint_of_steps_unknown_to_the_state_is_refused(tmp_path: Path) -> None:
    out = begun(tmp_path / "run", steps=3)
    write_checkpoint(out / "trl", 4)
    with pytest.raises(UsageError, match=r"holds trl/checkpoint-4, but its state/ knows of 3 steps only"):
        take(resolved(out))


def test_incomplete_checkpoint_is_replaced_by_the_complete_one_before_it(tmp_path: Path) -> None:
    out = begun(tmp_path / "run", steps=3)
    whole, cut = write_checkpoint(out / "trl", 2), write_checkpoint(out / "trl", 3)
    (cut / "trainer_state.json").unlink()
    start = take(resolved(out))
    assert (start.checkpoint, len(start.notices)) == (whole, 1)
    assert "trl/checkpoint-3: not written to the end; going on from trl/checkpoint-2" in start.notices[0]
    assert not cut.exists()
    assert (out / "trl" / "broken-checkpoint-3" / "optimizer.pt").is_file()
    assert take(resolved(out)) == Start(whole, ())


def test_steps_of_other_weights_by_the_same_name_are_not_resumed(tmp_path: Path) -> None:
    out = begun(tmp_path / "run", steps=1)
    take(resolved(out), model="model-0123456789ab")
    assert take(resolved(out), model="model-0123456789ab").notices == ()
    with pytest.raises(UsageError, match=r"other weights \(model-0123456789ab, not model-ba9876543210\)"):
        take(resolved(out), model="model-ba9876543210")
