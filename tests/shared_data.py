"""The place of the real data sets: the folder `shared/data` next to the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(relative: str) -> Path:
    """The file or folder `relative` of the shared data, e.g. "gsm8k/test.jsonl"; skips the test with the reason where it is absent."""
    path = SHARED_DATA / relative
    if not path.exists():
        pytest.skip(f"the real data set is not here: no {relative} in ../shared/data next to the repository")
    return path
