"""Calendar days, rates and amounts as people write and read them, including the days on which the clocks change."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from edge.cli.options import since_of
from edge.core.clock import day_began, local_day
from edge.core.formatting import uusd_of
from edge.core.rates import rate_of
from edge.serve.agent_schemas import DialRequest, WhatIfRequest
from edge.state.folder import StateFolder
from tests.unit.conftest import EdgeAgent, TimeZone

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("day", [datetime(2026, 3, 29), datetime(2026, 3, 30), datetime(2026, 10, 25), datetime(2026, 10, 26)])
def test_days_begin_at_midnight_also_where_the_clocks_change(day: datetime, time_zone: TimeZone) -> None:
    time_zone("Europe/Berlin")
    noon = (day + timedelta(hours=12)).replace(tzinfo=BERLIN).timestamp()
    before = day - timedelta(days=1)
    assert since_of("today", noon) == day.replace(tzinfo=BERLIN).timestamp()
    assert since_of("yesterday", noon) == before.replace(tzinfo=BERLIN).timestamp()
    assert local_day(noon) == f"{day:%Y-%m-%d}"


@given(at=st.floats(0.0, 4e9), before=st.integers(0, 400))
def test_law_a_day_begins_in_itself_and_the_moment_before_belongs_to_another(at: float, before: int) -> None:
    began = day_began(at, before)
    assert began <= at
    assert local_day(began - 1.0) < local_day(began) <= local_day(at)
    assert before or local_day(began) == local_day(at)


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
