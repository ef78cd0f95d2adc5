"""Our side of the rollout row: whole rollouts of the llama.cpp backend, prompts, sampling and bookkeeping included.

All responses have the same length and all prompts random ids, as in llama.cpp's own batched bench.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from edge.core.types import Message, Sampling
from tools.bench.table.memory import memory_now

if TYPE_CHECKING:
    from edge.inference.batched import BatchedBackend


class RandomPrompts:
    """In the chat template's place: ids drawn from the text of the last message."""

    def __init__(self, tokens: int, vocab_size: int) -> None:
        self._tokens = tokens
        self._vocab_size = vocab_size

    def prompt_ids(self, messages: Sequence[Message], prefix: str = "") -> list[int]:
        """Always as many ids as were asked for."""
        draw = Random(messages[-1].content)
        return [draw.randrange(self._vocab_size) for _ in range(self._tokens)]


async def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every repeat, after one to warm up; all rows are decoded together."""
    from edge.core.worker import EngineWorker
    from edge.inference.batched import BatchedBackend
    from edge.inference.gguf_model import GgufModel
    from edge.inference.llama_engine import LlamaEngine
    from edge.inference.model_tokenizer import gguf_tokenizer

    rows = job["prompts"] * job["group_size"]
    model, worker = GgufModel(Path(job["model"])), EngineWorker()
    model.vocabulary.ends[:] = [False] * model.vocabulary.size
    engine = LlamaEngine(model, rows=rows + 1, n_ctx=job["context_tokens"], n_threads=job["threads"])
    template: Any = RandomPrompts(job["prompt_tokens"], model.vocabulary.size - 8)
    info = gguf_tokenizer(model).describe(model.path, model.header.architecture, model.parameters, model.trained_context_tokens)
    backend = BatchedBackend(engine, model.vocabulary, template, info, worker, rollout_rows=rows, close_model=model.close)
    try:
        await rollouts(backend, job, 0)
        return {
            "seconds": [await rollouts(backend, job, 1 + repeat) for repeat in range(job["repeats"])],
            "tokens": rows * job["max_tokens"],
            "peak_mib": memory_now().get("peak_mib", 0.0),
        }
    finally:
        await backend.aclose()
        worker.close()


async def rollouts(backend: BatchedBackend, job: dict[str, Any], repeat: int) -> float:
    """All groups concurrently, as in a learning step; returns seconds. Raises AssertionError when a response has another length."""
    sampling, seeds = Sampling(max_tokens=job["max_tokens"]), range(job["group_size"])
    began = time.perf_counter()
    groups = await asyncio.gather(
        *(backend.sample_group([Message("user", f"{repeat} {prompt}")], sampling, seeds) for prompt in range(job["prompts"]))
    )
    seconds = time.perf_counter() - began
    lengths = {len(response.token_ids) for group in groups for response in group.responses}
    if lengths != {job["max_tokens"]}:
        raise AssertionError(f"responses of {sorted(lengths)} tokens")
    return seconds
