"""Minutes of mixed load with faults on a real coordinator: nothing grows, every call ends, and the ledger is consistent (I14)."""

from __future__ import annotations

import pytest

from tools.bench.coordinator import rows, soak
from tools.bench.coordinator.__main__ import SOAK_SAMPLES

pytestmark = pytest.mark.long


def test_two_minutes_of_mixed_load_with_faults_leave_nothing_behind(tmp_path) -> None:
    row = rows.soak_row(soak.measure({"minutes": 2.0, "looks": SOAK_SAMPLES, "seed": 1, "scratch": str(tmp_path / "soak")}))
    assert not row.missed, row.verdicts
