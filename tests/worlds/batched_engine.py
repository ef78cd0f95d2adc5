"""Questions to an engine that batches them: one by one, and many at once with others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import AdapterError
from edge.core.rng import stream
from edge.core.types import AdapterRef, Message, PromptGroup, Sampling
from edge.core.worker import Priority


def question(number: int) -> list[Message]:
    """Questions of very different lengths."""
    return [Message("user", f"Question {number}: " + "how many? " * (number * 13 % 23))]


async def one_by_one(backend: Any, sampling: Sampling, numbers: Sequence[int], seeds: Sequence[int]) -> list[PromptGroup]:
    """Each response on its own, nothing else in flight."""
    groups = []
    for number in numbers:
        singles = [await backend.sample_group(question(number), sampling, [seed]) for seed in seeds]
        groups.append(PromptGroup(singles[0].prompt_ids, tuple(single.responses[0] for single in singles)))
    return groups


async def concurrent(backend: Any, sampling: Sampling, numbers: Sequence[int], seeds: Sequence[int]) -> list[PromptGroup]:
    """Concurrent requests that arrive at odd moments, with served ones and a withdrawn one in between."""
    random = stream(1, "arrivals")

    async def late(number: int, priority: Priority = Priority.ROLLOUT) -> Any:
        await asyncio.sleep(random.random() * 0.02)
        return await backend.sample_group(question(number), sampling, seeds, priority)

    withdrawn = asyncio.create_task(backend.sample_group(question(99), Sampling(max_tokens=200), range(3)))
    served = [asyncio.create_task(late(number, Priority.SERVING)) for number in numbers if number % 3 == 0]
    groups = await asyncio.gather(*(late(number) for number in numbers))
    withdrawn.cancel()
    await asyncio.gather(withdrawn, *served, return_exceptions=True)
    assert all(task.exception() is None for task in served)
    return list(groups)


async def refuses_each(backend: Any, used: AdapterRef, folders: Sequence[Path]) -> None:
    """Each of these adapters is refused in one line that names it, and the one in use stays."""
    sampling = Sampling(max_tokens=10)
    await backend.swap_adapter(used)
    before = await backend.sample_group(question(1), sampling, [1])
    for folder in folders:
        with pytest.raises(AdapterError) as caught:
            await backend.swap_adapter(AdapterRef(8, str(folder)))
        assert "\n" not in str(caught.value) and str(folder) in str(caught.value), folder.name
        assert await backend.sample_group(question(1), sampling, [1]) == before, folder.name
        assert backend.adapter_version == used.version, folder.name
