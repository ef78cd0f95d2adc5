"""What every engine and learner runs on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge.core.worker import EngineWorker


@pytest.fixture
def worker() -> Iterator[EngineWorker]:
    """The thread of an engine, closed at the end."""
    worker = EngineWorker()
    yield worker
    worker.close()
