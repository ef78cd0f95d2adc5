"""`python -m tools.simulate compare`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulate.sample_results import sample_result
from tools.simulate.__main__ import main


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    for seed, name in ((1, "a.json"), (2, "b.json")):
        (tmp_path / name).write_bytes(sample_result(seed).to_json())
    return str(tmp_path / "a.json"), str(tmp_path / "b.json")


def test_two_runs_are_put_side_by_side(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs]) == 0
    said = capsys.readouterr().out
    assert "a.json" in said and "b.json" in said
    assert any("Cloud calls" in line and "%)" in line for line in said.splitlines())
    assert any("phones: 95 % answered within" in line for line in said.splitlines())


def test_a_run_is_the_same_as_itself(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", runs[0], runs[0]]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "Spend" in line or "answered" in line]
    assert rows and all(line.rstrip().endswith("same") for line in rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        (b"", "is no result of a simulation"),
        (b"[1]", "is no result of a simulation"),
        (b'{"format": 99}', "has format 99, and this program reads format 1"),
        (b'{"format": 1, "scenario": 5}', "is damaged"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, says: str
) -> None:
    other = tmp_path / "other.json"
    if text is not None:
        other.write_bytes(text)
    assert main(["compare", runs[0], str(other)]) == 2
    told = capsys.readouterr()
    assert says in told.err and "other.json" in told.err
    assert told.err.count("\n") == 1 and not told.out
