"""The checks of `edge-agent learn` before it loads or creates anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.learn import with_an_end
from edge.cli.settings import Settings
from edge.core.errors import EdgeError
from tests.unit.conftest import EdgeAgent


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--tasks", "nowhere.jsonl"], 1, "no such task file"),
        (["--tasks", "practice:nonsense"], 2, "unknown practice family"),
        (["--tasks", "practice:arith", "--model", "nowhere.gguf"], 1, "no such model file"),
        (["--tasks", "practice:arith", "--eval-every", "10"], 2, "--eval-every"),
        (["german.csv"], 1, "german.csv:1"),
    ],
)
def test_a_bad_task_source_or_model_ends_learn_before_anything_is_created(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edge_agent: EdgeAgent,
    words: list[str],
    code: int,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "german.csv").write_text("frage,antwort\nWer?,Ilka\n", encoding="utf-8")
    edge_agent("learn", *words).refused(code, complaint)
    assert [path.name for path in tmp_path.iterdir()] == ["german.csv"]


def lengths(settings: Settings) -> list[tuple[str, int | None]]:
    return [(phase.source, phase.steps) for phase in with_an_end(settings).config().phases]


def test_learning_ends_after_the_given_steps_or_150_of_the_last_source(tmp_path: Path) -> None:
    assert lengths(Settings()) == [("practice:group1", 150), ("practice:group2", 150)]
    assert lengths(Settings(phase_steps=4)) == [("practice:group1", 4), ("practice:group2", 4)]
    file = tmp_path / "agent.yaml"
    file.write_text("phases:\n  - {source: 'practice:arith', steps: 7}\n  - {source: 'practice:facts'}\n", encoding="utf-8")
    assert lengths(Settings(config_file=file)) == [("practice:arith", 7), ("practice:facts", 150)]


def test_a_file_alone_is_enough_and_tasks_add_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "facts.csv"
    file.write_text("question,answer\nWho?,Ilka\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    planned: list[list[tuple[str, int | None]]] = []
    monkeypatch.setattr(
        "edge.app.agents.check_inputs", lambda config: planned.append([(one.source, one.steps) for one in config.phases])
    )
    monkeypatch.setattr("edge.learning.run_folder.require_same_run", stop)
    for words in ([str(file), "--steps", "5"], [str(file), "--tasks", "practice:arith"]):
        assert main(["learn", *words]) == 1
    assert planned == [[(str(file), 5)], [(str(file), 150), ("practice:arith", 150)]]


def stop(*_: object) -> None:
    raise EdgeError("far enough")
