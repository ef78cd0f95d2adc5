"""The card of a model that somebody else made: what it can by itself on public and on practice questions, and whether it knows when it is
wrong. `python -m tools.experiments card --data FOLDER`.

Each held-out question is answered once at T = 0 and eight times at T = 1, in the form of its kind and without asking. Records lie in
`--out`, a line a question, and the same command goes on where it was cut.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.app.judging import build_verifier
from edge.app.settings import model_file
from edge.config.schema import AgentConfig
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.forms import PlainForm
from edge.core.rng import derive_seed, stream
from edge.core.types import FORCED, AdapterRef, LocalResponse, TaskItem
from edge.core.worker import EngineWorker
from edge.dagrpo.format import is_well_formed
from edge.dagrpo.metrics import wilson_interval
from edge.dagrpo.ranking import area_under_curve
from edge.evaluation.judging import RolloutSettings, judge
from edge.inference.llamacpp import LlamaCppBackend
from edge.tasks.practice import FAMILIES
from edge.verifiers.verifier import Verifier
from tools.experiments.questions import QUESTIONS, open_questions
from tools.experiments.tables import TextTable, percent
from tools.places import check_folder, put, put_json

CARD = Path(__file__).parent / "card.json"
"""Figures that `report` shows."""
_SAMPLES, _SEED, _N_CTX, _ROWS, _MAX_TOKENS = 8, 1, 1024, 16, 320
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Held-out questions of a source: those of some `levels`, or of all (())."""

    source: str
    levels: tuple[int, ...] = ()


SETS: Mapping[str, QuestionSet] = {
    "moods-posts": QuestionSet(f"{QUESTIONS}/moods-posts.jsonl"),
    "moods-press": QuestionSet(f"{QUESTIONS}/moods-press.jsonl"),
    "mmlu-stem": QuestionSet("mmlu:{data}/mmlu_stem"),
    "gsm8k, two lines": QuestionSet("gsm8k:{data}/gsm8k", (1, 2)),
    "gsm8k": QuestionSet("gsm8k:{data}/gsm8k"),
    "humaneval": QuestionSet("humaneval:{data}/humaneval"),
    **{f"practice {family}": QuestionSet(f"practice:{family}") for family in FAMILIES},
}


@dataclass(frozen=True, slots=True)
class CardRecord:
    """A question: whether the answer at T = 0 is right and well formed, how many of the samples are right, the help log-odds and the
    uncertainty of the former (nats), its sampled tokens, and the seconds of all nine."""

    id: str
    form: str
    right: bool
    well_formed: bool
    sampled_right: int
    help_log_odds: float | None
    uncertainty: float
    tokens: int
    seconds: float


def uncertainty(response: LocalResponse) -> float:
    """Doubt in a plain answer, else the mean of -log p (nats) of the tokens about which the form left a choice."""
    if response.doubt is not None:
        return response.doubt
    places = [0] * len(response.token_ids) if response.allowed is None else response.allowed.places
    chosen = [-logprob for logprob, place in zip(response.logprobs, places, strict=True) if place != FORCED]
    return sum(chosen) / max(1, len(chosen))


async def measure(path: Path, adapter: Path | None, items: Sequence[TaskItem], threads: int, file: Path) -> None:
    """Append a record of each question to the file."""
    verifier, worker, clock = build_verifier(AgentConfig()), EngineWorker(), SystemClock()
    backend = LlamaCppBackend(path, worker, n_threads=threads, n_ctx=_N_CTX, max_rows=_ROWS)
    greedy, sampled = (_settings(temperature) for temperature in (0.0, 1.0))

    async def one(item: TaskItem) -> CardRecord:
        began, seeds = clock.monotonic(), [derive_seed(_SEED, item.id, number) for number in range(_SAMPLES)]
        first = await backend.sample_group(greedy.messages(item), greedy.sampling(item, suppress_help=True), seeds[:1])
        others = await backend.sample_group(sampled.messages(item), sampled.sampling(item, suppress_help=True), seeds)
        (answer,) = first.responses
        return CardRecord(
            item.id,
            "plain" if isinstance(greedy.form_of(item), PlainForm) else "reasoned",
            await _right(verifier, item, answer),
            is_well_formed(answer, item.max_steps),
            sum([await _right(verifier, item, response) for response in others.responses]),
            answer.help_log_odds if answer.doubt is None else (answer.help_log_odds or 0.0) - answer.doubt,
            uncertainty(answer),
            len(answer.token_ids),
            round(clock.monotonic() - began, 2),
        )

    try:
        if adapter is not None:
            await backend.swap_adapter(AdapterRef(1, str(adapter)))
        for start in range(0, len(items), _AT_ONCE):
            found = await asyncio.gather(*map(one, items[start : start + _AT_ONCE]))
            with file.open("a", encoding="utf-8") as stream_out:
                stream_out.writelines(f"{json.dumps(asdict(record))}\n" for record in found)
            print(f"{file.stem}: {start + len(found)} of {len(items)}", flush=True)
    finally:
        await backend.aclose()
        worker.close()


def _settings(temperature: float) -> RolloutSettings:
    return RolloutSettings("card", _SEED, _SAMPLES, temperature, _MAX_TOKENS, "full", "full", 1, guided=True, certainty=1.0)


async def _right(verifier: Verifier, item: TaskItem, response: LocalResponse) -> bool:
    return is_well_formed(response, item.max_steps) and await judge(verifier, item, response.text)


def questions_of(name: str, data: Path, count: int) -> list[TaskItem]:
    """A fixed draw of a set's held-out questions; a larger one begins with the smaller."""
    chosen = SETS[name]
    source = open_questions(chosen.source.format(data=data))
    drawn = source.test(count if source.name.startswith("practice:") else sys.maxsize)
    items = [item for item in drawn if not chosen.levels or item.level in chosen.levels]
    return stream(_SEED, name).sample(items, len(items))[:count]


def records_in(folder: Path) -> dict[str, list[CardRecord]]:
    """What is there of each set."""
    found = {}
    for name in SETS:
        file = _file(folder, name)
        if file.is_file():
            found[name] = [CardRecord(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return found


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl"


def figures_of(records: Sequence[CardRecord]) -> dict[str, Any]:
    """The figures of a set."""
    right, count = sum(record.right for record in records), len(records)

    def auc(scores: Sequence[float | None]) -> float | None:
        known = [(score, record.right) for score, record in zip(scores, records, strict=True) if score is not None]
        return area_under_curve([score for score, ok in known if not ok], [score for score, ok in known if ok])

    return {
        "questions": count,
        "form": records[0].form,
        "well_formed": sum(record.well_formed for record in records) / count,
        "right": right / count,
        "interval": wilson_interval(right, count),
        "pass_at_8": sum(record.sampled_right > 0 for record in records) / count,
        "sampled": sum(record.sampled_right for record in records) / (_SAMPLES * count),
        "auc_help": auc([record.help_log_odds for record in records]),
        "auc_uncertainty": auc([record.uncertainty for record in records]),
        "tokens": sum(record.tokens for record in records) / count,
    }


def card_table(card: Mapping[str, Any]) -> TextTable:
    """A row for each set."""
    rows = []
    for name, one in card["sets"].items():
        low, high = one["interval"]
        orders = ("-" if one[key] is None else f"{one[key]:.2f}" for key in ("auc_help", "auc_uncertainty"))
        shares = (percent(one[key]) for key in ("well_formed", "sampled", "pass_at_8"))
        formed, sampled, best = shares
        alone = f"{percent(one['right'])} ({percent(low, 0)} to {percent(high, 0)})"
        rows.append((name, one["form"], str(one["questions"]), formed, alone, sampled, best, *orders, f"{one['tokens']:.0f}"))
    header = (
        "questions", "form", "number", "well formed, %", "right at T = 0, %", "right at T = 1, %", "pass@8, %", "AUC of help log-odds",
        "AUC of uncertainty", "tokens",
    )  # fmt: skip
    note = (
        "Without asking. In brackets: 95 % interval. Pass@8: at least one of eight samples at T = 1 is right. AUC: the chance that a wrong "
        "answer scores higher than a right one, 0.5 is chance; uncertainty is the doubt in a plain answer, else the mean -log p of what "
        "was written."
    )
    return TextTable(f"Card of {card['model']}", header, tuple(rows), (note,))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"which questions, of {', '.join(SETS)} (none: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--adapter", type=Path, help="folder of a LoRA adapter")
    parser.add_argument("--items", type=int, default=50, help="questions of each set")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs") / "card", help="folder of the records and of card.json")


def play(arguments: argparse.Namespace) -> int:
    """Answer what is not answered yet, and print the card."""
    if unknown := sorted(set(arguments.sets) - set(SETS)):
        raise UsageError(f"no set {unknown[0]!r}", hint=f"there is: {', '.join(SETS)}")
    check_folder(arguments.out, "--out")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path, done = model_file(arguments.model), records_in(arguments.out)
    for name in arguments.sets or SETS:
        known = {record.id for record in done.get(name, [])}
        items = [item for item in questions_of(name, arguments.data, arguments.items) if item.id not in known]
        if items:
            asyncio.run(measure(path, arguments.adapter, items, arguments.threads, _file(arguments.out, name)))
    sets = {name: figures_of(records) for name, records in records_in(arguments.out).items()}
    card = {"format": 1, "model": arguments.model, "sets": sets}
    put_json(card, arguments.out / "card.json")
    put(card_table(card).to_markdown() + "\n", arguments.out / "card.md")
    print(card_table(card).to_markdown())
    return 0
