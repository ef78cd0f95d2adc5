"""What `edge-agent learn` looks at before it loads or creates anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.learn import with_an_end
from edge.cli.settings import Settings
from edge.core.errors import EdgeError


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--tasks", "nowhere.jsonl"], 1, "no such task file"),
        (["--tasks", "practice:nonsense"], 2, "unknown practice family"),
        (["--tasks", "practice:arith", "--model", "nowhere.gguf"], 1, "no such model file"),
        (["--tasks", "practice:arith", "--eval-every", "10"], 2, "--eval-every says when, but not how much is evaluated"),
    ],
)
def test_a_bad_task_source_or_model_ends_learn_before_anything_is_created(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["learn", *words]) == code
    said = capsys.readouterr().err
    assert complaint in said
    assert "starting" not in said
    assert list(tmp_path.iterdir()) == []


def lengths(settings: Settings) -> list[tuple[str, int | None]]:
    return [(phase.source, phase.steps) for phase in with_an_end(settings).config().phases]


def test_learning_without_tasks_or_lengths_ends_150_steps_into_the_second_group() -> None:
    assert lengths(Settings()) == [("practice:group1", 150), ("practice:group2", 150)]
    assert lengths(Settings(phase_steps=4)) == [("practice:group1", 4), ("practice:group2", 4)]


def test_an_end_does_not_replace_the_lengths_that_a_configuration_gives(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("phases:\n  - {source: 'practice:arith', steps: 7}\n  - {source: 'practice:facts'}\n", encoding="utf-8")
    assert lengths(Settings(config_file=file)) == [("practice:arith", 7), ("practice:facts", 150)]


def test_a_file_alone_is_enough_and_tasks_add_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "facts.csv"
    file.write_text("question,answer\nWho?,Ilka\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    planned: list[list[tuple[str, int | None]]] = []
    monkeypatch.setattr(
        "edge.app.check_inputs", lambda config: planned.append([(one.source, one.steps) for one in config.phases])
    )
    monkeypatch.setattr("edge.learning.run_folder.require_same_run", stop)
    for words in ([str(file), "--steps", "5"], [str(file), "--tasks", "practice:arith"]):
        assert main(["learn", *words]) == 1
    assert planned == [[(str(file), 5)], [(str(file), 150), ("practice:arith", 150)]]


def stop(*_: object) -> None:
    raise EdgeError("far enough")


def test_a_file_that_cannot_be_read_is_named_whichever_way_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facts.csv").write_text("frage,antwort\nWer?,Ilka\n", encoding="utf-8")
    for words in (["learn", "facts.csv"], ["eval", "facts.csv"], ["learn", "--tasks", "facts.csv"]):
        assert main(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "facts.csv:1" in line and "question and answer" in line
