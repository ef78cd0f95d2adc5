"""Fixtures shared by the tests of engines and learners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.core.worker import EngineWorker
from edge.inference.llamacpp import LlamaCppBackend
from edge.models import hub


@pytest.fixture
def worker() -> Iterator[EngineWorker]:
    """The thread of an engine, closed at the end."""
    worker = EngineWorker()
    yield worker
    worker.close()


@pytest.fixture
async def llama(worker: EngineWorker) -> AsyncIterator[Callable[..., LlamaCppBackend]]:
    """Opens llama.cpp with a small model file and one thread; everything opened is closed at the end."""
    opened: list[LlamaCppBackend] = []

    def open_one(path: Any, **options: Any) -> LlamaCppBackend:
        opened.append(LlamaCppBackend(path, worker, **{"n_threads": 1, "n_ctx": 128, "max_rows": 2, **options}))
        return opened[-1]

    yield open_one
    for backend in opened:
        await backend.aclose()


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The agent's models folder; the hub's cache next to it is empty."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("EDGE_AGENT_MODELS", str(folder))
    monkeypatch.setattr(hub, "cache_folder", lambda: tmp_path / "hub")
    return folder
