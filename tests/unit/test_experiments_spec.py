"""Specifications of experiments: their keys, their errors, and the cells they become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.config.reference import keys_of
from edge.config.schema import LearningConfig
from edge.core.errors import ConfigError
from tools.experiments.cells import Cell, ChosenRewards, expand
from tools.experiments.result import RESULTS
from tools.experiments.spec import Spec, load_spec, spec_names

CHOSEN: ChosenRewards = {
    model: {method: {"group1": 0.3, "group2": 0.4} for method in ("grpo", "gvpo", "gapg")}
    for model in ("nano-edge", "nano-edge-llama")
}


def _spec(folder: Path, **changes: Any) -> Spec:
    """A small specification, from a file, with some keys changed."""
    body = {
        "name": "small",
        "about": "A small one.",
        "models": ["nano-edge"],
        "seeds": [0, 1],
        "phases": {"g1-g2": [{"source": "group1", "steps": 2}, {"source": "group2", "steps": 3}]},
        **changes,
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return load_spec(str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seedz": [1]}, "unknown key seedz; did you mean seeds?"),
        ({"phases": {"a": []}}, "a has no phase"),
        ({"vary": {"learning.control.dual_lr": []}}, "learning.control.dual_lr has no value to try"),
        ({"routers": ["grpo"]}, "grpo is no method of this experiment; there is: da-grpo"),
        ({"evaluate": {"sources": ["practice:nope"]}}, "evaluate.sources.0: unknown practice family 'nope'; known: arith"),
        ({"evaluate": {"sources": ["arith", "practice:arith"]}}, "evaluate.sources has practice:arith twice"),
        ({"phases": {"a": [{"source": "nope", "steps": 1}]}}, "phases.a.0.source: nope: no such task file"),
        ({"seeds": [0, 1, 0]}, "seeds has 0 twice"),
        ({"settings": {"learning.method": "nope"}}, "learning.method must be 'da-grpo'"),
        ({"settings": {"learning.dual_speed": 1}}, "unknown key learning.dual_speed"),
        ({"vary": {"learning.control.dual_lr": [0.1, "x"]}}, "learning.control.dual_lr must be a number"),
        (
            {"table": "sensitivity", "vary": {"learning.control.dual_lr": [0.1]}, "methods": {"a": {}, "b": {}}},
            "shows one method",
        ),
        ({"table": "sensitivity"}, "shows one setting under vary, and there is none"),
        ({"table": "lambda", "vary": {"learning.control.dual_lr": [0.1]}}, "shows learning.control.dual_init under vary"),
        ({"figure": ["rates"], "methods": {"a": {}, "b": {}}}, "figure.0: rates shows one method"),
        ({"figure": ["curves"], "phases": {"a": [{"source": "group1", "steps": 2}]}}, "curves shows the phases g1-g2 and g2-g1"),
        ({"settings": {"learning.seed": 3}}, "learning.seed is set by seeds"),
        ({"methods": {"a": {"model.path": "nano-edge"}}}, "model.path is set by models"),
        ({"seeds": [True]}, "seeds.0"),
        ({"name": "another"}, "name: is another, and the file is called"),
    ],
)
def test_a_mistake_is_one_line_with_file_line_and_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _spec(tmp_path, **changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'small.yaml'}:")
    assert "\n" not in str(caught.value)


def test_own_task_file_must_exist(tmp_path: Path) -> None:
    tasks = tmp_path / "own.jsonl"
    phases = {"a": [{"source": str(tasks), "steps": 1}]}
    with pytest.raises(ConfigError, match=r"small\.yaml:\d+: phases\.a\.0\.source: .*own\.jso.*: no such task file"):
        _spec(tmp_path, phases=phases)
    tasks.write_text('{"question": "2+3?", "answer": 5, "task": "sums", "split": "train"}\n', encoding="utf-8")
    assert _spec(tmp_path, phases=phases).phases


def test_missing_model_is_reported_before_running_but_its_tables_can_be_made(tmp_path: Path) -> None:
    assert _spec(tmp_path, models=["nano-edge", "nano-egde"]).models
    with pytest.raises(ConfigError, match=r"small\.yaml:\d+: models\.1: nano-egde: no such model file") as caught:
        load_spec(str(tmp_path / "small.yaml"), to_run=True)
    assert "nano-edge" in caught.value.hint


def test_a_grid_is_the_product_of_its_axes_seed_by_seed_with_the_bare_models_first(tmp_path: Path) -> None:
    spec = _spec(
        tmp_path,
        methods={"da-grpo": {}, "edge-only": {"learning.method": "edge-only"}},
        vary={"learning.control.dual_init": [0.1, 0.2]},
    )
    grid = expand(spec, {})
    assert len(grid.placed) == 2 * 2 * 2
    keys = [cell.key for cell in grid.cells]
    assert keys[0].startswith("nano-edge.bare.s0-")
    assert [key.split(".")[-1].split("-")[0] for key in keys[1:]] == ["s0"] * 4 + ["s1"] * 4


def test_cell_keys_are_stable() -> None:
    """Results are found by their key: a change here would orphan all of them."""
    cells = {cell.key for cell in expand(load_spec("table"), CHOSEN).cells}
    assert "nano-edge.group1-group2.da-grpo.s0-ce806e2d" in cells


def test_a_result_names_settings_of_learning_without_their_section() -> None:
    values = {
        "learning.control.dual_init": 0.1,
        "learning.objective.assist_rewards.group1": 0.3,
        "learning.seed": 1,
        "mode": "auto",
    }
    cell = Cell("nano-edge", 0, (), values, load_spec("table").evaluate)
    assert set(cell.to_json()["settings"]) == {"learning.dual_init", "learning.assist_rewards.group1", "learning.seed", "mode"}
    assert Cell.from_json(cell.to_json()).settings == values
    names = [key.name for key in keys_of(LearningConfig) if not key.has_keys and key.parent != "when"]
    assert len(names) == len(set(names)), "else two settings would have one name in a result"


def test_every_published_result_matches_the_cell_of_its_key() -> None:
    first_edition = RESULTS.parent / "first-edition" / "results"
    files = sorted([*RESULTS.glob("*.json"), *first_edition.glob("*.json")])
    assert files
    for file in files:
        stored = json.loads(file.read_text(encoding="utf-8"))["cell"]
        if "prices" in stored["evaluate"]:  # prompts that state a price, an experiment of the first edition alone
            continue
        cell = Cell.from_json(stored)
        assert (cell.key, cell.to_json()) == (file.stem, stored)


def test_chosen_rewards_are_used_in_the_cells_by_task() -> None:
    grid = expand(load_spec("table"), CHOSEN)
    assert not grid.waits_for
    settings = [dict(one.cell.settings) for one in grid.placed if one.method == "gapg"]
    assert len(settings) == 12
    wanted = {"learning.method": "gapg", "learning.objective.assist_rewards": {"group1": 0.3, "group2": 0.4}}
    assert all(one == wanted for one in settings)


@pytest.mark.parametrize("name", spec_names())
def test_every_specification_can_be_expanded_and_is_named_like_its_file(name: str) -> None:
    spec = load_spec(name)
    assert spec.name == name
    grid = expand(spec, CHOSEN)
    assert grid.cells
    for cell in grid.cells[:3]:
        cell.resolved("/tmp/state")
