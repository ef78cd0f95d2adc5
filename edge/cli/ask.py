"""`edge-agent ask`: one question, one answer on stdout, one line about it on stderr."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from edge.cli.asking import Answer, Screen, answering, ask_and_show, screen_for_stdout
from edge.cli.saying import print_json, print_line, source_line
from edge.core.errors import UsageError
from edge.core.types import Message

if TYPE_CHECKING:
    from edge.cli.settings import Settings


def ask(settings: Settings, question: str | None, *, full: bool, as_json: bool) -> int:
    """Answer `question`, or what stdin holds."""
    text = _text_of(question)
    answer = asyncio.run(_ask(settings, text, screen_for_stdout(full=full, nothing=as_json)))
    if as_json:
        print_json(_as_json(answer))
    else:
        print_line(source_line(answer.note))
    return 0


async def _ask(settings: Settings, text: str, screen: Screen) -> Answer:
    async with answering(settings) as reader:
        return await ask_and_show(reader, [Message("user", text)], settings.mode, screen)


def _text_of(question: str | None) -> str:
    if question in (None, "-"):
        if sys.stdin.isatty():
            raise UsageError("no question", hint='write edge-agent ask "What is 17 * 3?" or pipe one in')
        question = sys.stdin.read()
    text = (question or "").strip()
    if not text:
        raise UsageError("the question is empty")
    return text


def _as_json(answer: Answer) -> dict[str, Any]:
    about = {name: value for name, value in answer.note.to_json().items() if name != "final"}
    return {"answer": answer.final, "content": answer.content, "reasoning": answer.reasoning, **about}
