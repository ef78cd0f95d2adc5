"""What `edge-agent learn` looks at before it loads or creates anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.cli import main


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--tasks", "nowhere.jsonl"], 1, "no such task file"),
        (["--tasks", "practice:nonsense"], 2, "unknown practice family"),
        (["--tasks", "practice:arith", "--model", "nowhere.gguf"], 1, "no such model file"),
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
