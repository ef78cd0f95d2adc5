"""How chat templates have a model write calls of tools: one table of the families' formats.

A new family whose calls are JSON objects with a name and arguments is a row here. Which row a template has is found by rendering calls with
it (`edge/inference/chat_template.py`); the grammar of calls is made from the row (`edge/serve/answer_forms.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's. A turn of calls is `mark`, `opening`, the calls with `between` between them, and `closing`."""

    name: str
    mark: str
    """Written before the calls without asking the model; control tokens of the model in it are such."""
    begins: tuple[str, ...]
    """Each of these in what the model writes freely means that calls begin, and is no part of the text."""
    opening: str = ""
    arguments: str = "arguments"
    """What the object of a call names its arguments."""
    between: str = ""
    """ "" where a turn has one call only."""
    closing: str = ""
    whole_turn: bool = False
    """Calls are all of a turn, so that `begins` further on in a text is text."""

    @property
    def text_mark(self) -> str:
        """The mark where it is text that a grammar can hold; "" where it may be a control token."""
        return "" if self.whole_turn else self.mark

    def head(self, name: str) -> str:
        """A call up to its arguments; a brace follows them."""
        return f'{{"name": {json.dumps(name)}, "{self.arguments}": '

    def written(self, calls: Sequence[tuple[str, str]]) -> re.Pattern[str]:
        """What finds calls, each a name and JSON arguments, in a rendered turn; some templates add the id of a call to it. White space
        between calls may be any."""
        items = [rf'{re.escape(self.head(name) + arguments)}(, "id": "[^"]*")?\}}' for name, arguments in calls]
        mark = rf"{re.escape(self.mark.strip())}\s*" if self.mark else ""
        space = r"\s*"
        between = space.join(["", *map(re.escape, self.between.split()), ""])
        return re.compile(f"{mark}{re.escape(self.opening)}{between.join(items)}{re.escape(self.closing)}")

    def read(self, text: str) -> list[tuple[str, str]] | None:
        """The calls in what follows the mark, name and JSON arguments of each; None where it is anything else."""
        if not text.startswith(self.opening):
            return None
        decoder, rest, calls = json.JSONDecoder(), text.removeprefix(self.opening), list[tuple[str, str]]()
        while True:
            try:
                call, end = decoder.raw_decode(rest)
                calls.append((call["name"], json.dumps(call[self.arguments], ensure_ascii=False)))
            except (ValueError, KeyError, TypeError):
                return None
            rest = rest[end:]
            if rest == self.closing:
                return calls
            if not self.between or not rest.startswith(self.between):
                return None
            rest = rest.removeprefix(self.between)


HERMES = CallFormat(
    "hermes",
    mark="<tool_call>\n",
    begins=("<tool_call>",),
    between="\n</tool_call>\n<tool_call>\n",
    closing="\n</tool_call>",
)
CALL_FORMATS = (
    HERMES,
    CallFormat(
        "mistral",
        mark="[TOOL_CALLS] ",
        begins=("[TOOL_CALLS]", '[{"name":'),
        opening="[",
        between=", ",
        closing="]",
        whole_turn=True,
    ),
    CallFormat("llama", mark="", begins=("<|python_tag|>", '{"name":'), arguments="parameters", between="; ", whole_turn=True),
)
"""Hermes: Qwen, Hermes. Llama: 3.x."""
