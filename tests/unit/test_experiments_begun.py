"""A cell's initial settings bind its folder: no result mixes steps of two models or settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.config.agent import resolve_agent_config
from edge.core.errors import EdgeError
from tests.unit.test_experiments_spec import CHOSEN
from tools.experiments.cells import expand
from tools.experiments.held_out import recording_of
from tools.experiments.run_cell import hold_to_beginning
from tools.experiments.spec import load_spec

CELL = next(cell for cell in expand(load_spec("schedules"), CHOSEN).cells if cell.phases)
CONFIG = CELL.resolved("state").config


def test_same_settings_and_models_continue(tmp_path: Path) -> None:
    for _ in range(2):
        hold_to_beginning(tmp_path / "begun", CELL, CONFIG)
    assert set(json.loads((tmp_path / "begun").read_text())["models"]) == {"nano-edge", "nano-cloud"}


def test_another_model_file_or_setting_is_refused_with_the_folder_to_remove(tmp_path: Path) -> None:
    file = tmp_path / "begun"
    hold_to_beginning(file, CELL, CONFIG)
    begun = json.loads(file.read_text())
    file.write_text(json.dumps({**begun, "models": {**begun["models"], "nano-edge": "0123"}}))
    with pytest.raises(EdgeError, match="it was begun with another file of nano-edge") as error:
        hold_to_beginning(file, CELL, CONFIG)
    assert str(tmp_path) in str(error.value.hint)
    file.write_text(json.dumps({**begun, "settings": {"learning": {"learning_rate": 0.5}}}))
    with pytest.raises(EdgeError, match=r"it was begun with learning\.learning_rate 0\.5, which is 0\.0005 now"):
        hold_to_beginning(file, CELL, CONFIG)
    file.write_text("{")
    with pytest.raises(EdgeError, match="cannot be read"):
        hold_to_beginning(file, CELL, CONFIG)


def test_each_cloud_model_has_its_own_answers() -> None:
    def named(*sets: str) -> str:
        return recording_of(resolve_agent_config(sets=sets).config)

    others = ["coordinator.embedded.model=nano-edge", "coordinator.model_alias=other", "coordinator.address=127.0.0.1:1"]
    assert len({named(), *(named(one) for one in others)}) == 4
    assert named() == named("learning.control.dual_lr=0.5")
