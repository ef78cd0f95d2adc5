"""Seconds of one learner update at the nano shape: prompts computed once and shared, against whole rows.

    python -m tools.bench.update [--prompts 16] [--group-size 8] [--layers 5] [--precision fp32] [--gradient-checkpointing] [--json]

Random weights and tokens: the time does not depend on the values. Run it on an idle machine, and with the allocator settings of our
processes (MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ at 1 GiB), else page faults are measured too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from edge.core.rng import stream
from edge.core.types import TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.training.learner import LearnerSettings, Precision, PrefixSharing
from tools.arguments import positive
from tools.bench.harness import command, show

PATHS: tuple[PrefixSharing, ...] = ("shared", "plain")


@dataclass(frozen=True, slots=True)
class Workload:
    """Shape of the model and of a batch; lengths in tokens are drawn within the bounds."""

    vocab_size: int = 1024
    width: int = 192
    layers: int = 5
    heads: int = 6
    kv_heads: int = 2
    ffn_width: int = 576
    prompts: int = 16
    group_size: int = 8
    prompt_tokens: tuple[int, int] = (50, 70)
    response_tokens: tuple[int, int] = (40, 75)


def random_batch(workload: Workload, seed: int) -> list[TrainingGroup]:
    """Groups of random tokens with centred advantages."""
    draw = stream(seed, "bench", "update")
    return [_group(workload, draw) for _ in range(workload.prompts)]


async def measure(workload: Workload, settings: LearnerSettings, repeats: int) -> dict[str, Any]:
    """Busy seconds of every update after one to warm up."""
    from edge.training.torch_learner import TorchLearner

    worker = EngineWorker()
    try:
        learner = TorchLearner(_random_decoder(workload), worker, _no_conversion, seed=1, settings=settings)
        await learner.update(random_batch(workload, 0))
        reports = [await learner.update(random_batch(workload, step)) for step in range(1, repeats + 1)]
    finally:
        worker.close()
    seconds = sorted(report.seconds for report in reports)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "path": settings.prefix_sharing,
        "seconds_min": seconds[0],
        "seconds_median": seconds[len(seconds) // 2],
        "response_tokens": reports[-1].tokens,
        "skipped": reports[-1].skipped,
        "peak_rss_mib": peak / (1024 if sys.platform == "linux" else 1 << 20),
        "load_1min": os.getloadavg()[0],
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure both paths and print a line for each."""
    options = _parser().parse_args(arguments)
    workload = Workload(prompts=options.prompts, group_size=options.group_size, layers=options.layers)
    paths = PATHS if options.path == "both" else (options.path,)
    show((asyncio.run(measure(workload, _settings(options, path), options.repeats)) for path in paths), as_json=options.json)
    return 0


def _settings(options: argparse.Namespace, path: PrefixSharing) -> LearnerSettings:
    return LearnerSettings(
        prefix_sharing=path,
        precision=options.precision,
        tokens_per_slice=options.tokens_per_slice,
        gradient_checkpointing=options.gradient_checkpointing,
        threads=options.threads,
        max_mismatch_nats=1e9,
    )


def _group(workload: Workload, draw: Random) -> TrainingGroup:
    raw = [draw.gauss(0, 1) for _ in range(workload.group_size)]
    mean = sum(raw) / len(raw)
    samples = []
    for value in raw:
        tokens = _tokens(workload, draw, workload.response_tokens)
        samples.append(TrainingSample(tokens, (-7.0,) * len(tokens), value - mean))
    return TrainingGroup(_tokens(workload, draw, workload.prompt_tokens), tuple(samples), 1 / (workload.group_size - 1))


def _tokens(workload: Workload, draw: Random, bounds: tuple[int, int]) -> tuple[int, ...]:
    return tuple(draw.randrange(workload.vocab_size) for _ in range(draw.randint(*bounds)))


def _random_decoder(workload: Workload) -> Any:
    import torch

    from edge.models.decoder import Decoder, DecoderSpec

    shape = (workload.vocab_size, workload.width, workload.layers, workload.heads, workload.kv_heads)
    decoder = Decoder(DecoderSpec("qwen2", *shape, workload.width // workload.heads, workload.ffn_width))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.05, generator=draw)
    return decoder


def _no_conversion(_peft_folder: Path, _target: Path) -> None:
    """Nothing is exported here."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.update", description=(__doc__ or "").splitlines()[0])
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "auto")
    parser.add_argument("--prompts", type=positive, default=16)
    parser.add_argument("--group-size", type=positive, default=8)
    parser.add_argument("--layers", type=positive, default=Workload().layers)
    parser.add_argument("--path", choices=(*PATHS, "both"), default="both", help="peak memory is that of all paths so far")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="compute blocks again in the backward pass")
    parser.add_argument("--precision", choices=precisions, default="auto")
    parser.add_argument("--tokens-per-slice", type=positive, default=LearnerSettings().tokens_per_slice)
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's own choice)")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


if __name__ == "__main__":
    sys.exit(command(main))
