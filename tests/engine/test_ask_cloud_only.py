"""`edge-agent ask` that only the cloud may answer, with an agent of its own and no coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.cli import main


def test_a_cloud_that_is_away_is_one_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = ["--coordinator", "127.0.0.1:1", "--state", str(tmp_path)]
    assert main(["ask", "What is 2 + 2?", "--cloud", *place]) == 1
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("error: no coordinator answers at 127.0.0.1:1; is `edge-coordinator serve` running there?")
