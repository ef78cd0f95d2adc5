"""A cold start: a public model is fine-tuned on worked solutions or given answers before it learns by itself.

`python -m tools.experiments.cold_start practice:arith --minutes 6 --out FOLDER` leaves a LoRA adapter, whose answers
`python -m tools.experiments card "practice arith" --adapter FOLDER/adapter` measures.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from edge.app.openers import SharedWeights, torch_learner
from edge.app.settings import model_file
from edge.cli.exits import ending
from edge.config.schema import AgentConfig
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.types import Demonstration, TaskItem
from edge.core.worker import EngineWorker
from edge.dagrpo.demonstrations import demonstration
from edge.evaluation.judging import RolloutSettings
from edge.inference.llamacpp import LlamaCppBackend
from edge.learning.rollout import as_a_turn
from edge.tasks.registry import open_source
from edge.training import lora_learner
from tools.places import check_folder

_BATCH, _MAX_TOKENS = 16, 320
_SETTINGS = RolloutSettings("cold start", 0, 1, 0.0, _MAX_TOKENS, "full", "full", 1, guided=True)


async def fine_tuned(model: str, items: Iterable[TaskItem], minutes: float, threads: int, rate: float, out: Path) -> Path:
    """Supervised updates on the answers of 16 items each until the time is over; the adapter's folder."""
    lora_learner.MOST_IMITATIONS = 1  # type: ignore[attr-defined]
    clock, path, worker = SystemClock(), model_file(model), EngineWorker()
    config = AgentConfig.model_validate(
        {"model": {"path": str(path)}, "learning": {"torch_threads": threads, "imitation": {"imitation_rate": rate}}}
    )
    backend = LlamaCppBackend(path, worker, n_threads=threads, n_ctx=1024, max_rows=1)
    learner = torch_learner(config, path, worker, SharedWeights(path))
    left, began, place = iter(items), clock.monotonic(), 0
    while clock.monotonic() - began < 60.0 * minutes:
        shown = []
        for item in islice(left, _BATCH):
            prompt = backend.prompt_ids(_SETTINGS.messages(item))
            turn = as_a_turn(backend, _SETTINGS, item, demonstration(item), len(prompt))
            if turn is not None:
                shown.append(Demonstration(prompt, turn))
        if not shown:
            raise UsageError("no item has an answer or a worked solution that fits", hint="take another source")
        imitation = await learner.imitate(shown)
        place += _BATCH
        print(f"{place} items: {imitation.nats_before:.2f} nats", flush=True)
    await learner.export(out, 1)
    await backend.aclose()
    worker.close()
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Fine-tune, and print where the adapter lies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a task source, as of edge-agent learn --tasks")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=5e-4, help="learning rate")
    given = parser.parse_args(arguments)

    def play() -> int:
        check_folder(given.out, "--out")
        items = open_source(given.source).train(0)
        work = fine_tuned(given.model, items, given.minutes, given.threads, given.rate, given.out / "adapter")
        print(f"wrote {asyncio.run(work)}")
        return 0

    return ending(play)


if __name__ == "__main__":
    raise SystemExit(main())
