"""Rollout speed of the llama.cpp backend: `python -m tools.bench.rollout [MODEL.gguf] [--rows 1,8,16,32]`.

Prints tokens/s of whole rollouts (prompts, sampling and bookkeeping included) at several numbers of rows, beside what bare decode calls of
the same width reach. All responses have the same length and all prompts random ids, as in llama.cpp's own batched bench, with which the
table compares these rollouts. Figures from a busy machine mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.core.machine import physical_cores
from edge.core.types import Message, Sampling
from tools.arguments import positive
from tools.bench.harness import command, show
from tools.bench.table.memory import memory_now

if TYPE_CHECKING:
    from edge.inference.batched import BatchedBackend

BUNDLED = Path(__file__).parents[2] / "edge" / "models" / "files" / "nano-edge.gguf"


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
    """Seconds of every repeat, after one to warm up. `rows`: how many are decoded together (default: all)."""
    from edge.core.worker import EngineWorker
    from edge.inference.batched import BatchedBackend
    from edge.inference.gguf_model import GgufModel
    from edge.inference.llama_engine import LlamaEngine
    from edge.inference.model_tokenizer import gguf_tokenizer

    responses = job["prompts"] * job["group_size"]
    rows = job.get("rows", responses)
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
            "tokens": responses * job["max_tokens"],
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


def decode_speed(job: dict[str, Any]) -> float:
    """Tokens/s of bare decode calls of this width, rows of about half the rollouts' length."""
    from edge.inference.gguf_model import GgufModel
    from edge.inference.llama_engine import LlamaEngine

    rows = job["rows"]
    model = GgufModel(Path(job["model"]))
    engine = LlamaEngine(model, rows=rows, n_ctx=job["context_tokens"], n_threads=job["threads"])
    calls, first = min(job["max_tokens"], 64), 64
    for row in range(rows):
        engine.prefill(row, [1] * first)
    engine.decode(np.ones(rows, dtype=np.int32), np.full(rows, first, dtype=np.int32))
    start = time.perf_counter()
    for call in range(calls):
        engine.decode(np.ones(rows, dtype=np.int32), np.full(rows, first + 1 + call, dtype=np.int32))
    seconds = time.perf_counter() - start
    engine.close()
    model.close()
    return float(rows * calls / seconds)


def at_width(job: dict[str, Any]) -> dict[str, Any]:
    """Speeds in tokens/s at one width; `efficiency` is rollouts / bare decode calls."""
    bare, found = decode_speed(job), asyncio.run(measure(job))
    speed = found["tokens"] / found["seconds"][0]
    return {
        "rows": job["rows"],
        "tokens": found["tokens"],
        "rollout_tok_per_s": round(speed, 1),
        "decode_tok_per_s": round(bare, 1),
        "efficiency": round(speed / bare, 3),
    }


def widths(text: str) -> list[int]:
    """`1,8,16`."""
    return [positive(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each width and print a line for it."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.rollout", description="Rollout speed of the llama.cpp backend.")
    parser.add_argument("model", nargs="?", type=Path, default=BUNDLED)
    parser.add_argument(
        "--rows", type=widths, default="1,8,16,32", help="widths to measure, comma separated (default: %(default)s)"
    )
    parser.add_argument("--prompts", type=positive, default=16)
    parser.add_argument("--group-size", type=positive, default=8)
    parser.add_argument("--prompt-tokens", type=positive, default=64)
    parser.add_argument("--max-tokens", type=positive, default=110)
    parser.add_argument("--threads", type=positive, default=physical_cores())
    parser.add_argument("--context", type=positive, default=512, help="tokens per row (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = vars(parser.parse_args(arguments))
    job = {**given, "context_tokens": given["context"], "repeats": 1}
    show((at_width({**job, "rows": rows}) for rows in given["rows"]), as_json=given["json"])
    return 0


if __name__ == "__main__":
    sys.exit(command(main))
