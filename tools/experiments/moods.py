"""Sorting texts with a public model: does it learn the mood of short texts in minutes, and does it ask where it is wrong?

`python -m tools.experiments.moods OUT --data ../shared/data --minutes 10` learns texts that people rated with SmolLM2-135M-Instruct by
`edge-agent learn` at a target rate of 30 %; a server that is always right stands in for the cloud LLM. It then sorts 1,000 other texts with
the bare model and with what was learned. `--by fine-tuning` fine-tunes the same adapter on the same texts for as long instead. Further
arguments go to `learn`.

Right in the end at 30 %: the cloud is right wherever it is asked; asked are the 30 % of texts with the largest log-odds of asking
(`decision`), with the least certain answer (`certainty`), or any (`random`).

The model is taken as `edge-agent models pull smollm2` leaves it (Q8_0), else as an installed package has it (Q4_1).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edge.cli.exits import ending
from edge.core.columns import Columns
from edge.core.types import AdapterRef, TaskItem
from edge.core.worker import EngineWorker
from edge.evaluation.judging import RolloutSettings
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.catalogue import find_model
from edge.tasks.jsonl import read_file
from edge.verifiers.choice_answer import ChoiceAnswer
from tools.bench.mock_cloud import HttpServer, MockCloud
from tools.experiments.cold_start import fine_tuned
from tools.experiments.questions import ASK, mood_of
from tools.places import put_json

MODEL, RATE = "smollm2", 0.3
_LEARNED, _TESTED = 4000, 1000
_SETTINGS = RolloutSettings("moods", 0, 1, 0.0, 24, "full", "full", 1, guided=True, certainty=1.0)


@dataclass(frozen=True, slots=True)
class Sorted:
    """A text that was sorted without asking."""

    right: bool
    log_odds: float
    """Of asking, by the model alone (nats)."""
    doubt: float
    """How unsure the answer is (nats)."""


def write_texts(data: Path, out: Path) -> None:
    """The texts to learn from and those to test with, as tables."""
    with (data / "mood" / "texts.csv").open(encoding="utf-8") as file:
        rows = [(row["text"], float(row["rating"])) for row in csv.DictReader(file)]
    random.Random(5).shuffle(rows)
    moods = [(text, mood_of(rating)) for text, rating in rows]
    parts = {"learned.csv": moods[:_LEARNED], "tested.csv": moods[_LEARNED : _LEARNED + _TESTED]}
    for name, part in parts.items():
        with (out / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "mood"), *part])


def items_of(path: Path) -> list[TaskItem]:
    """A table's texts as they are learned and asked."""
    return list(read_file(path, Columns("text", "mood", ASK.ask)).items)


async def sort_texts(items: Sequence[TaskItem], adapter: Path | None, threads: int) -> list[Sorted]:
    """What the model makes of each text at temperature 0."""
    worker, verifier = EngineWorker(), ChoiceAnswer()
    backend = LlamaCppBackend(find_model(MODEL), worker, n_threads=threads, n_ctx=768, max_rows=16)

    async def one(item: TaskItem) -> Sorted:
        group = await backend.sample_group(_SETTINGS.messages(item), _SETTINGS.sampling(item, suppress_help=True), [0])
        (response,) = group.responses
        doubt = response.doubt or 0.0
        return Sorted(verifier.is_correct(item, response.text), (response.help_log_odds or 0.0) - doubt, doubt)

    try:
        if adapter is not None:
            await backend.swap_adapter(AdapterRef(1, str(adapter)))
        return await asyncio.gather(*map(one, items))
    finally:
        await backend.aclose()
        worker.close()


def summary(found: Sequence[Sorted], weight: float) -> dict[str, float]:
    """Shares: right alone, and right in the end at RATE by each order; and the AUC of certainty and of the decision."""
    asked = round(RATE * len(found))

    def in_the_end(scores: Sequence[float]) -> float:
        ranked = sorted(zip(scores, found, strict=True), key=lambda pair: -pair[0])
        return (asked + sum(one.right for _, one in ranked[asked:])) / len(found)

    def auc(scores: Sequence[float]) -> float:
        wrong = [score for score, one in zip(scores, found, strict=True) if not one.right]
        right = sorted(score for score, one in zip(scores, found, strict=True) if one.right)
        below = sum(sum(score > other for other in right) + 0.5 * sum(score == other for other in right) for score in wrong)
        return below / max(1, len(wrong) * len(right))

    alone = sum(one.right for one in found) / len(found)
    decision, certainty = [one.log_odds + weight * one.doubt for one in found], [one.doubt for one in found]
    return {
        "alone": alone,
        "decision": in_the_end(decision),
        "certainty": in_the_end(certainty),
        "random": asked / len(found) + (1.0 - asked / len(found)) * alone,
        "auc decision": auc(decision),
        "auc certainty": auc(certainty),
    }


async def learned(out: Path, minutes: float, further: Sequence[str]) -> Path:
    """Learn by this project's command until the time is over; the adapter's folder."""
    answers = {item.question: item.answer for item in items_of(out / "learned.csv")}
    port = await (server := HttpServer(MockCloud(0.0, answers).handle)).listen()
    cloud = {"upstream": "openai_compatible", "base_url": f"http://127.0.0.1:{port}/v1", "model": "right", "price_in_uusd_per_mtok": 1,
             "price_out_uusd_per_mtok": 1}  # fmt: skip
    sets = [f"--set=coordinator.embedded.{key}={value}" for key, value in cloud.items()]
    texts = ["--question", "text", "--answer", "mood", "--ask", ASK.ask]
    command = [
        sys.executable,
        "-m",
        "edge.cli",
        "learn",
        str(out / "learned.csv"),
        *texts,
        "--model",
        MODEL,
        "--out",
        str(out / "run"),
    ]
    process = await asyncio.create_subprocess_exec(*command, "--steps", "10000", "--target-rate", str(RATE), *sets, *further)
    try:
        await asyncio.wait_for(process.wait(), 60.0 * minutes)
    except TimeoutError:
        process.terminate()  # a background job ignores Ctrl-C
        await process.wait()
    finally:
        server.close()
    return out / "run" / "adapter"


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn, sort, and print what was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--by", choices=("edge-agent", "fine-tuning"), default="edge-agent")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-3, help="Learning rate of fine-tuning.")
    parser.add_argument("--weight", type=float, default=16.0, help="model.certainty in the decision.")
    parser.add_argument("--texts", type=int, default=_TESTED)
    chosen, further = parser.parse_known_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    write_texts(chosen.data, chosen.out)
    tested = items_of(chosen.out / "tested.csv")[: chosen.texts]
    bare = chosen.out / "bare.json"
    if not bare.exists():
        put_json([asdict(one) for one in asyncio.run(sort_texts(tested, None, chosen.threads))], bare)
    if chosen.by == "edge-agent":
        adapter = asyncio.run(learned(chosen.out, chosen.minutes, further))
    else:
        texts = itertools.cycle(items_of(chosen.out / "learned.csv"))
        work = fine_tuned(MODEL, texts, chosen.minutes, chosen.threads, chosen.rate, chosen.out / "fine-tuned")
        adapter = asyncio.run(work)
    found = asyncio.run(sort_texts(tested, adapter, chosen.threads))
    put_json([asdict(one) for one in found], chosen.out / f"{chosen.by}.json")
    rows = {"bare": [Sorted(**one) for one in json.loads(bare.read_text(encoding="utf-8"))], chosen.by: found}
    for name, own in rows.items():
        print(f"{name:<12} " + "  ".join(f"{key} {100 * value:.1f}" for key, value in summary(own, chosen.weight).items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(ending(main))
