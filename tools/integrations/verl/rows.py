"""One task item as a row of verl's data, and back. Knows verl's columns; knows nothing of files.

verl reads `prompt` (messages), `data_source`, `reward_model` and `extra_info`; the item itself travels as JSON in `extra_info.item`, so
that the reward workers judge by the same item that the project's own loop would. `extra_info.index` is the row's number in its file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edge.core.errors import TaskFileError
from edge.core.types import TaskItem
from edge.dagrpo.prompts import prompt_messages

_HINT = "make the data with python -m tools.integrations.verl.prepare"


def as_row(item: TaskItem, index: int, prompt_form: str = "full") -> dict[str, Any]:
    """A row for verl. `prompt_form` as in edge.dagrpo.prompts: "full" for any instruct model, "compact" for the bundled ones."""
    return {
        "data_source": item.family,
        "prompt": [{"role": message.role, "content": message.content} for message in prompt_messages(item, prompt_form)],
        "ability": item.task,
        "reward_model": {"style": "rule", "ground_truth": item.answer},
        "extra_info": {"index": index, "split": item.split, "item": json.dumps(asdict(item), ensure_ascii=False)},
    }


def item_of(extra_info: object) -> TaskItem:
    """The item of a row's `extra_info`. Raises TaskFileError for a row that was not made by `as_row`."""
    text = extra_info.get("item") if isinstance(extra_info, Mapping) else None
    if not isinstance(text, str):
        raise TaskFileError("a row of the data has no extra_info.item", hint=_HINT)
    try:
        return TaskItem.from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TaskFileError(f"extra_info.item of a row cannot be read ({error})", hint=_HINT) from error
