"""Rates and amounts as people write and read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from edge.core.formatting import uusd_of
from edge.core.rates import rate_of
from edge.serve.agent_routes import DialRequest, WhatIfRequest
from edge.state.folder import StateFolder
from tests.unit.conftest import EdgeAgent


@pytest.mark.parametrize("written", ["30%", "30 %", " 0.3 ", 0.3])
def test_rate_is_parsed_as_written(written: object) -> None:
    assert rate_of(written) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("written", "message"), [("30", "30 % or 0.3"), (30, "30 % or 0.3"), ("130%", "[0, 1]"), (True, "[0, 1]")]
)
def test_invalid_rate_is_refused_with_a_suggestion(written: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"must lie in") as refused:
        rate_of(written)
    assert message in str(refused.value)


@pytest.mark.parametrize("written", [("30%",), ("30", "%"), ("0.3",)])
def test_commands_and_requests_parse_a_rate_as_written(tmp_path: Path, edge_agent: EdgeAgent, written: tuple[str, ...]) -> None:
    StateFolder(tmp_path).close()
    assert "30 %" in edge_agent("budget", "set", *written, "--state", str(tmp_path)).out
    assert "a rate must" not in edge_agent("whatif", *written, "--state", str(tmp_path)).err
    for model in (DialRequest, WhatIfRequest):
        with pytest.raises(ValidationError, match=r"30 % or 0\.3"):
            model.model_validate({"target_rate": 30})


@pytest.mark.parametrize(("text", "uusd"), [("5", 5_000_000), ("0.000001", 1), (" 2.50 USD", 2_500_000), ("$0.25", 250_000)])
def test_amount_is_parsed_exactly(text: str, uusd: int) -> None:
    assert uusd_of(text) == uusd


@pytest.mark.parametrize("text", ["", "-5", "five", "0.0000001", "1e3", "1.2.3", "١"])
def test_invalid_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="amount of USD"):
        uusd_of(text)
