"""Which folder a TRL run may take: steps that were made bind it to their settings, starts that failed do not. None of it needs TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.agent.state import StateFolder
from edge.agent.state_rows import Position
from edge.config.loader import Resolved
from edge.core.errors import StateError, UsageError
from tools.integrations.trl.__main__ import main
from tools.integrations.trl.config import TrlConfig, resolve_run
from tools.integrations.trl.desk import OPENED
from tools.integrations.trl.folder import take


def resolved(out: Path, *sets: str) -> Resolved[TrlConfig]:
    path = out.parent / "run.yaml"
    path.write_text(yaml.safe_dump({"agent": {"phases": [{"source": "practice:arith", "steps": 2}]}, "out": str(out)}))
    return resolve_run(path, sets)


def begun(out: Path, *, steps: int = 0, opened: bool = False) -> Path:
    """What a run leaves that made so many steps; `opened`: it was killed in the one after them."""
    out.mkdir()
    (out / "config.yaml").write_text(resolved(out).to_yaml())
    with StateFolder(out / "state") as state:
        state.set_position(Position(steps, 0, steps))
        if opened:
            state.set_meta(OPENED, "{}")
    (out / "state" / "coordinator").mkdir()
    (out / "state" / "coordinator" / "ledger.sqlite3").write_text("paid")
    return out


OTHER = "agent.learning.group_size=4"


def test_a_folder_with_steps_is_kept_from_other_settings_which_are_named(tmp_path):
    out = begun(tmp_path / "run", steps=1)
    with pytest.raises(UsageError, match=r"holds a run with other settings \(agent\.learning\.group_size 8 -> 4\)"):
        take(resolved(out, OTHER))
    assert (out / "state" / "coordinator" / "ledger.sqlite3").is_file()


def test_a_folder_with_steps_goes_on_with_its_settings_and_with_those_that_change_nothing(tmp_path):
    out = begun(tmp_path / "run", steps=1)
    for sets in ((), ("trainer.rows_per_pass=4", "trainer.checkpoint_every=1")):
        assert take(resolved(out, *sets)) == ""
    assert (out / "state" / "agent.sqlite").is_file()


def test_a_start_that_asked_nothing_binds_nobody_and_leaves_nothing(tmp_path):
    out = begun(tmp_path / "run")
    assert take(resolved(out, OTHER)) == ""
    assert not list(out.glob("state*"))


def test_what_a_step_that_was_cut_has_paid_for_is_set_aside_and_told(tmp_path):
    out = begun(tmp_path / "run", opened=True)
    (out / "state-1").mkdir()
    told = take(resolved(out, OTHER))
    assert told.endswith(f"made no step; what it asked for stands in {out / 'state-2'}")
    assert (out / "state-2" / "coordinator" / "ledger.sqlite3").read_text() == "paid"
    assert not (out / "state").exists()


def test_a_step_that_was_cut_goes_on_under_the_same_settings(tmp_path):
    out = begun(tmp_path / "run", opened=True)
    assert take(resolved(out)) == ""
    assert (out / "state" / "coordinator" / "ledger.sqlite3").is_file()


def test_a_run_at_work_in_the_folder_keeps_it(tmp_path):
    out = begun(tmp_path / "run")
    with StateFolder(out / "state"), pytest.raises(StateError):
        take(resolved(out, OTHER))


def test_steps_whose_settings_cannot_be_read_any_more_are_kept(tmp_path):
    out = begun(tmp_path / "run", steps=1)
    (out / "config.yaml").write_text("agent: {learning: {price_levels: [0, 1]}}\n")
    with pytest.raises(UsageError, match="holds a run with settings that cannot be read") as refusal:
        take(resolved(out))
    assert "\n" not in str(refusal.value)


def test_fresh_empties_the_folder_of_what_a_run_leaves_and_of_nothing_else(tmp_path):
    out = begun(tmp_path / "run", steps=1)
    (out / "state-1").mkdir()
    (out / "notes.txt").write_text("mine")
    assert take(resolved(out, OTHER), fresh=True) == ""
    assert list(out.iterdir()) == [out / "notes.txt"]


@pytest.mark.parametrize("below", ["", "below"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_is_no_folder_of_a_run(below, fresh, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"file.* cannot be the folder of a run: ") as refusal:
        take(resolved(tmp_path / "run", f"out={tmp_path / 'file' / below}"), fresh=fresh)
    assert refusal.value.hint == "give another folder with --out"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_setting_that_trl_does_not_follow_is_one_line_and_wrong_usage_before_anything_is_made(tmp_path, capsys: Any):
    path, out = tmp_path / "run.yaml", tmp_path / "run"
    resolved(out)
    assert main(["run", str(path), "--set", "agent.learning.cloud_samples=on"]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert (len(told), "cloud_samples must be off" in told[0], out.exists()) == (1, True, False)
