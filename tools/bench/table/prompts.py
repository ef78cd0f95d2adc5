"""The prompts of both sides: practice questions, or generated ones of an exact length. Writes a task file for the agent, and the same
prompts as text and ids for peers.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.core.types import TaskItem
    from edge.inference.chat_template import ChatTemplate

_LETTERS = "abcdefghijklmnopqrstuvwxyz     "


def practice_items(source: str, wanted: int) -> list[TaskItem]:
    """The first items of a source's training stream."""
    from edge.tasks.registry import open_source

    return list(islice(open_source(source).train(0), wanted))


def made_up_items(template: ChatTemplate, tokens: int, wanted: int) -> list[TaskItem]:
    """Questions of letters whose prompts have exactly `tokens` ids. Raises ValueError where the vocabulary is not one of bytes."""
    from edge.core.types import AnswerKind, Message, TaskItem

    around = len(template.prompt_ids([Message("user", "")]))
    items = []
    for number in range(wanted):
        draw = Random(number)
        text = "".join(draw.choice(_LETTERS) for _ in range(tokens - around - 1)) + "x"
        if len(template.prompt_ids([Message("user", text)])) != tokens:
            raise ValueError(f"no prompt of exactly {tokens} tokens can be made for this vocabulary")
        items.append(TaskItem(f"made-up-{number}", "bench", "bench", 0, "train", text, "1", AnswerKind.MATH, 4))
    return items


def as_line(item: TaskItem) -> str:
    """An item as a line of a task file."""
    row: dict[str, Any] = {
        "question": item.question,
        "answer": item.answer,
        "task": "bench",
        "kind": item.kind.value,
        "options": list(item.options),
        "level": item.level,
        "max_steps": item.max_steps,
        "split": "train",
        "family": item.family,
        "id": item.id,
    }
    return json.dumps(row, ensure_ascii=False)


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """The job's prompts."""
    from edge.dagrpo.prompts import prompt_messages
    from edge.inference.gguf_model import GgufModel
    from edge.inference.model_tokenizer import gguf_tokenizer

    model = GgufModel(Path(job["model"]))
    tokenizer = gguf_tokenizer(model)
    template, form = tokenizer.template, tokenizer.prompt_form
    items = (
        made_up_items(template, job["prompt_tokens"], job["wanted"])
        if job["source"] is None
        else practice_items(job["source"], job["wanted"])
    )
    prompts = []
    for item in items:
        ids = template.prompt_ids(prompt_messages(item, form))
        prompts.append({"text": "".join(map(model.vocabulary.text_of, ids)), "ids": ids, "answer": item.answer})
    model.close()
    Path(job["items"]).parent.mkdir(parents=True, exist_ok=True)
    Path(job["items"]).write_text("\n".join(map(as_line, items)) + "\n", encoding="utf-8")
    return {"prompts": prompts, "files": [job["items"]]}
