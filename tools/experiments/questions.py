"""Public questions as task files, and a scripted cloud LLM that answers them: `python -m tools.experiments questions --data FOLDER`.

The mood of short texts as people rated it, in two groups of sources that read differently: `moods-posts.jsonl` (tweets and product
reviews) and `moods-press.jsonl` (film reviews and newspaper). `cloud.jsonl` is a cassette with an answer to each: the reference answer,
or for a share of the questions another option, so that the cloud LLM is right in exactly the stated share of each group.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.config.schema import CoordinatorConfig
from edge.core.errors import TaskFileError, UsageError
from edge.core.rng import stream
from edge.core.types import TaskItem, TokenUsage
from edge.dagrpo.prompts import TextQuestion
from edge.evaluation.judging import CLOUD_TEMPERATURE, cloud_messages
from edge.rpc.cassette import RecordedAnswer, answer_digest, cassette_line
from edge.tasks.jsonl import read_file
from edge.tasks.registry import open_source
from edge.tasks.source import TaskSource
from tools.places import put

QUESTIONS = Path("runs") / "questions"
"""Where specifications look for them, from the root of the repository."""
CLOUD = QUESTIONS / "cloud.jsonl"
CLOUD_MODEL = "reference"
"""Name of the scripted cloud LLM."""
MOODS = ("negative", "neutral", "positive")
ASK = TextQuestion("Is the mood of this text positive, negative or neutral?", MOODS)
_CLEAR = 0.8
"""A rating from which a text is positive, or below whose negative it is negative."""
_HELD_OUT, _FROM_EACH_SOURCE = 1000, 3000
_CHARACTERS_OF_A_TOKEN = 4
"""About, in English; the tokens that are charged are counted so."""


@dataclass(frozen=True, slots=True)
class MoodGroup:
    """Texts that are learned together. `cloud_accuracy`: the share that the cloud LLM answers rightly, after the paper's DeepSeek-R1 on
    MATH and TACO (Table 1)."""

    name: str
    sources: tuple[str, ...]
    cloud_accuracy: float

    @property
    def file(self) -> str:
        """The name of its task file."""
        return f"moods-{self.name}.jsonl"


GROUPS = (MoodGroup("posts", ("tweet", "product review"), 0.984), MoodGroup("press", ("film review", "newspaper"), 0.963))


def mood_of(rating: float) -> str:
    """The option for the mean rating of a text, from -4 to 4."""
    return "positive" if rating >= _CLEAR else "negative" if rating <= -_CLEAR else "neutral"


def open_questions(source: str) -> TaskSource:
    """A task source; where it is one of these files and not there, the error says how to write it. Raises UsageError, TaskFileError."""
    try:
        return open_source(source)
    except TaskFileError as error:
        if not source.startswith(f"{QUESTIONS}/"):
            raise
        raise TaskFileError(str(error), hint="python -m tools.experiments questions --data FOLDER writes it") from error


def write_questions(data: Path, folder: Path) -> list[Path]:
    """Write the task files and the cassette; their paths. Raises UsageError where the texts are not in `data`."""
    texts = data / "mood" / "texts.csv"
    if not texts.is_file():
        raise UsageError(f"{texts}: no such file", hint="give the folder with mood/texts.csv (columns id, source, rating, text)")
    with texts.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    written, answers = [], list[str]()
    for group in GROUPS:
        path = folder / group.file
        put("".join(f"{json.dumps(record)}\n" for record in _records(group, rows)), path)
        answers += _cloud_answers(group, read_file(path).items)
        written.append(path)
    put("".join(answers), folder / CLOUD.name)
    return [*written, folder / CLOUD.name]


def _records(group: MoodGroup, rows: Sequence[dict[str, str]]) -> list[dict[str, object]]:
    """As many texts of each source of the group, mixed, each text once; the first ones are held out."""
    by_source: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        by_source[row["source"]].setdefault(ASK.about(row["text"]), row)
    picked = []
    for source in group.sources:
        found = sorted(by_source[source].items())
        picked += stream(0, group.name, source).sample(found, min(len(found), _FROM_EACH_SOURCE))
    stream(0, group.name).shuffle(picked)
    every = {"label": f"moods-{group.name}", "kind": "choice", "options": list(MOODS), "form": "plain"}
    return [
        {
            "id": row["id"],
            "question": question,
            "answer": mood_of(float(row["rating"])),
            "family": row["source"],
            "split": "test" if place < _HELD_OUT else "train",
            **every,
        }
        for place, (question, row) in enumerate(picked)
    ]


def _cloud_answers(group: MoodGroup, items: Sequence[TaskItem]) -> list[str]:
    """The cassette's line for each question; of the held-out and of the other ones the stated share is right."""
    lines = []
    coordinator = CoordinatorConfig()
    for split in ("test", "train"):
        own = [item for item in items if item.split == split]
        wrong = {item.id for item in stream(0, group.name, split).sample(own, round((1.0 - group.cloud_accuracy) * len(own)))}
        for item in own:
            right = item.options.index(item.answer)
            option = item.options[(right + 1) % len(item.options) if item.id in wrong else right]
            messages, text = cloud_messages(item, "full"), f"The answer is \\boxed{{{option}}}."
            digest = answer_digest(messages, CLOUD_MODEL, coordinator.max_output_tokens, CLOUD_TEMPERATURE)
            usage = TokenUsage(sum(_tokens(one.content) for one in messages), _tokens(text))
            answer = RecordedAnswer(
                text, usage, model=CLOUD_MODEL, max_output_tokens=coordinator.max_output_tokens, prompt_form="full"
            )
            lines.append(cassette_line(digest, answer))
    return lines


def _tokens(text: str) -> int:
    return max(1, round(len(text) / _CHARACTERS_OF_A_TOKEN))
