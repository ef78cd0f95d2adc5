"""Rollout speed of the llama.cpp backend: `python -m tools.bench.rollout [MODEL.gguf] [--rows 1,8,16,32]`.

Prints tokens/s of whole rollouts (prompts included) at several numbers of rows, beside what bare decode calls of the same width reach, so
that the share lost to sampling and bookkeeping shows. Figures from a machine that does other work mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge.core.clock import Clock, SystemClock
from edge.core.machine import physical_cores
from edge.core.types import FinishReason, Message, PromptGroup, Sampling
from edge.core.worker import EngineWorker
from edge.inference.gguf_model import GgufModel
from edge.inference.llama_engine import LlamaEngine
from edge.inference.llamacpp import LlamaCppBackend
from tools.bench.harness import show

BUNDLED = Path(__file__).parents[2] / "edge" / "models" / "files" / "nano-edge.gguf"


@dataclass(frozen=True)
class Settings:
    """What is measured: model, responses of `max_tokens` tokens, G per prompt, threads, context per row in tokens."""

    model: Path
    prompts: int
    group_size: int
    max_tokens: int
    n_threads: int
    n_ctx: int


def question(number: int) -> list[Message]:
    """A made-up question."""
    return [Message("user", f"Tom has {number} apples and buys {number % 7 + 2} boxes of {number % 5 + 3}. How many has he?")]


async def rollouts(backend: LlamaCppBackend, settings: Settings, offset: int = 0) -> list[PromptGroup]:
    """All groups at once, as a learning step asks for them."""
    sampling = Sampling(max_tokens=settings.max_tokens)
    seeds = range(offset, offset + settings.group_size)
    return await asyncio.gather(*(backend.sample_group(question(number), sampling, seeds) for number in range(settings.prompts)))


async def rollout_speed(settings: Settings, rows: int, clock: Clock) -> tuple[float, list[PromptGroup]]:
    """Tokens/s of one batch of rollouts, after a warm-up."""
    worker = EngineWorker()
    backend = LlamaCppBackend(
        settings.model, worker, n_threads=settings.n_threads, n_ctx=settings.n_ctx, max_rows=rows, serving_rows=1
    )
    try:
        await backend.sample_group(question(1), Sampling(max_tokens=8), range(rows))
        start = clock.monotonic()
        groups = await rollouts(backend, settings)
        return count_tokens(groups) / (clock.monotonic() - start), groups
    finally:
        await backend.aclose()
        worker.close()


def decode_speed(settings: Settings, rows: int, clock: Clock) -> float:
    """Tokens/s of bare decode calls of this width, rows of about half the rollouts' length."""
    model = GgufModel(settings.model)
    engine = LlamaEngine(model, rows=rows, n_ctx=settings.n_ctx, n_threads=settings.n_threads)
    calls, first = min(settings.max_tokens, 64), 64
    for row in range(rows):
        engine.prefill(row, [1] * first)
    engine.decode(np.ones(rows, dtype=np.int32), np.full(rows, first, dtype=np.int32))
    start = clock.monotonic()
    for call in range(calls):
        engine.decode(np.ones(rows, dtype=np.int32), np.full(rows, first + 1 + call, dtype=np.int32))
    seconds = clock.monotonic() - start
    engine.close()
    model.close()
    return rows * calls / seconds


def count_tokens(groups: Sequence[PromptGroup]) -> int:
    """Sampled tokens of all groups."""
    return sum(len(response.token_ids) for group in groups for response in group.responses)


async def measure(settings: Settings, rows: int, clock: Clock) -> dict[str, Any]:
    """Speeds in tokens/s at one width; `efficiency` is rollouts / bare decode calls."""
    bare = decode_speed(settings, rows, clock)
    speed, groups = await rollout_speed(settings, rows, clock)
    responses = [response for group in groups for response in group.responses]
    cut = sum(response.finish is FinishReason.LENGTH for response in responses) / len(responses)
    return {
        "rows": rows,
        "responses": len(responses),
        "tokens": count_tokens(groups),
        "cut_share": round(cut, 3),
        "rollout_tok_per_s": round(speed, 1),
        "decode_tok_per_s": round(bare, 1),
        "efficiency": round(speed / bare, 3),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.rollout", description="Rollout speed of the llama.cpp backend.")
    parser.add_argument("model", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument("--rows", default="1,8,16,32", help="widths to measure, comma separated (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=110)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--context", type=int, default=512, help="tokens per row (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each width and print a line for it."""
    given = parse(arguments)
    settings = Settings(given.model, given.prompts, given.group_size, given.max_tokens, given.threads, given.context)
    widths = [int(part) for part in given.rows.split(",")]
    show((asyncio.run(measure(settings, rows, SystemClock())) for rows in widths), as_json=given.json)


if __name__ == "__main__":
    main()
