"""Damaged results and choices: whatever is missing or too short is told with the file's name and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import ConfigError, EdgeError
from tests.unit.experiment_world import made_result, make_results
from tests.unit.test_experiments_spec import CHOSEN
from tools.experiments.cells import expand, shared
from tools.experiments.chosen import read_chosen
from tools.experiments.form import require_form
from tools.experiments.result import RESULTS, read_result, result_file, write_result
from tools.experiments.spec import load_spec, spec_names

CELL = next(cell for cell in expand(load_spec("table"), CHOSEN).cells if cell.router)


def _series(body: dict[str, Any]) -> None:
    body["series"] = {}


def _short_series(body: dict[str, Any]) -> None:
    body["series"]["kept"].pop()


def _rate_of_nothing(body: dict[str, Any]) -> None:
    body["series"]["assist"][3] = None


def _short_text(body: dict[str, Any]) -> None:
    body["held_out"][1]["joint"] = body["held_out"][1]["joint"][:-1]


def _other_text(body: dict[str, Any]) -> None:
    body["held_out"][0]["asked"] = "x" * body["held_out"][0]["items"]


def _short_odds(body: dict[str, Any]) -> None:
    body["held_out"][0]["help"].pop()


def _no_threshold(body: dict[str, Any]) -> None:
    del body["held_out"][0]["router_fit"]


def _no_source(body: dict[str, Any]) -> None:
    del body["held_out"][0]["source"]


def _cost(body: dict[str, Any]) -> None:
    body["cost"] = {}


def _training(body: dict[str, Any]) -> None:
    del body["cost"]["training"]["seconds"]


def _settings(body: dict[str, Any]) -> None:
    body["settings"] = []


def _machine(body: dict[str, Any]) -> None:
    del body["machine"]


def _rate_above_one(body: dict[str, Any]) -> None:
    body["series"]["assist"][0] = 7.5


def _negative_price(body: dict[str, Any]) -> None:
    body["series"]["dual"][0] = -1.0


def _all_right(body: dict[str, Any]) -> None:
    body["held_out"][0]["joint"] = "1" * body["held_out"][0]["items"]


def _other_cell(body: dict[str, Any]) -> None:
    body["cell"] = {**body["cell"], "seed": 5}


def _no_looks(body: dict[str, Any]) -> None:
    body["held_out"] = []


def _look_at_another_step(body: dict[str, Any]) -> None:
    body["held_out"].append({**body["held_out"][0], "step": 999})


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_rate_above_one, "series.assist has a value outside 0 to 1"),
        (_negative_price, "series.dual has a value outside 0 to inf"),
        (_all_right, "held_out.0.joint is not what asked, own and cloud give"),
        (_other_cell, "cell is not the one that the key is made of"),
        (_no_looks, "held_out has no look at practice:arith after step 100"),
        (_look_at_another_step, "held_out has a look at practice:arith after step 999, which the cell has not"),
        (_series, "series.dual is missing or no list"),
        (_short_series, f"series.kept has {CELL.steps - 1} of {CELL.steps} steps"),
        (_rate_of_nothing, "series.assist has a value that is no number"),
        (_short_text, "held_out.1.joint is no text of 150 verdicts"),
        (_other_text, "held_out.0.asked is no text of 150 verdicts"),
        (_short_odds, "held_out.0.help is no list of 150 numbers"),
        (_no_threshold, "held_out.0.router_fit is missing or no mapping of keys"),
        (_no_source, "held_out.0 has no source"),
        (_cost, "cost.wall_s is missing or no number"),
        (_training, "cost.training.seconds is missing or no number"),
        (_settings, "settings is missing or no mapping of keys"),
        (_machine, "machine is missing or no mapping of keys"),
    ],
)
def test_a_damaged_result_names_its_file_and_what_is_wrong(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], told: str
) -> None:
    body = made_result(CELL)
    damage(body)
    write_result(result_file(CELL, tmp_path), body)
    with pytest.raises(EdgeError) as caught:
        read_result(CELL, tmp_path)
    assert str(caught.value) == f"{result_file(CELL, tmp_path)}: not the result of {CELL.key} ({told})"
    assert caught.value.hint == "remove the file to run the cell again"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"form": 1', "[" * 100_000])
def test_a_file_that_is_no_result_at_all_is_told_alike(tmp_path: Path, text: str) -> None:
    result_file(CELL, tmp_path).write_text(text, encoding="utf-8")
    with pytest.raises(EdgeError, match="not the result of nano-edge") as caught:
        read_result(CELL, tmp_path)
    assert "remove the file" in caught.value.hint


def test_whole_results_are_taken_also_all_that_are_there(tmp_path: Path) -> None:
    make_results([CELL], tmp_path)
    assert read_result(CELL, tmp_path) is not None
    for cell in shared([expand(load_spec(name), read_chosen()) for name in spec_names()]):
        if result_file(cell, RESULTS).is_file():
            require_form(cell, json.loads(result_file(cell, RESULTS).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"chosen": [1]}', "chosen: Input should be an object"),
        ('{"chosen": {"nano-edge": {"grpo": 0.3}}}', "chosen.nano-edge.grpo: "),
        ('{"chosen": {"nano-edge": {"grpo": {"group1": -1}}}}', "chosen.nano-edge.grpo.group1: "),
        ("[]", "the file: "),
    ],
)
def test_choices_of_another_form_are_told_with_their_file(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "chosen.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_chosen(tmp_path / "chosen.json")
    assert str(caught.value).startswith(f"{tmp_path / 'chosen.json'}: no chosen assistance rewards ({told}")


def test_a_folder_is_no_file_of_choices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chosen assistance rewards"):
        read_chosen(tmp_path)
