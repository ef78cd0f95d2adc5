"""Result files: missing or truncated content is refused with the file's name; complete files, including the published ones, are
accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import EdgeError
from tests.unit.test_experiments_spec import CHOSEN
from tests.worlds.experiment import made_result, make_results
from tools.experiments.cells import expand, shared
from tools.experiments.chosen import read_chosen
from tools.experiments.result import RESULTS, read_result, require_form, result_file, write_result
from tools.experiments.spec import load_spec, spec_names

CELL = next(cell for cell in expand(load_spec("table"), CHOSEN).cells if cell.router)


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        ("series.kept", lambda body: body["series"]["kept"].pop()),
        ("held_out: help", lambda body: body["held_out"][0]["help"].pop()),
        ("held_out: asked", lambda body: body["held_out"][0].update(asked="1")),
        ("forced", lambda body: body["held_out"][0].pop("forced")),
        ("nothing of practice:arith after step 100", lambda body: body.update(held_out=[])),
        ("cell", lambda body: body.update(cell={**body["cell"], "seed": 5})),
        ("cell", lambda body: body.update(form=2)),
        ("series", lambda body: body.pop("series")),
    ],
)
def test_a_damaged_result_names_its_file_and_the_place(
    tmp_path: Path, place: str, damage: Callable[[dict[str, Any]], None]
) -> None:
    body = made_result(CELL)
    damage(body)
    result_file(CELL, tmp_path).write_text(json.dumps(body), encoding="utf-8")
    with pytest.raises(EdgeError) as caught:
        read_result(CELL, tmp_path)
    assert str(result_file(CELL, tmp_path)) in str(caught.value) and place in str(caught.value)
    assert "remove the file" in caught.value.hint


def test_complete_results_are_accepted_including_all_published_ones(tmp_path: Path) -> None:
    make_results([CELL], tmp_path)
    assert read_result(CELL, tmp_path) is not None
    for cell in shared([expand(load_spec(name), read_chosen()) for name in spec_names()]):
        if result_file(cell, RESULTS).is_file():
            require_form(cell, json.loads(result_file(cell, RESULTS).read_text(encoding="utf-8")))


def test_result_is_read_back_through_a_link(tmp_path: Path) -> None:
    body = made_result(CELL)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_result(tmp_path / "link", body)
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "real").read_text(encoding="utf-8")) == body
