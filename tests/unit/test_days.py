"""Calendar days, including those on which the clocks change."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.cli.options import since_of
from edge.core.clock import day_began, local_day
from tests.unit.conftest import TimeZone

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
