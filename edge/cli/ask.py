"""`edge-agent ask`: one question, one answer on stdout, one line about it on stderr. Knows pipes, files and exit codes."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from edge.cli.asking import Answer, Screen, answering, ask_and_show, new_question, screen_for_stdout
from edge.cli.budget import unknown_task_line
from edge.cli.saying import print_json, print_line, source_line
from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.core.types import Message
from edge.serve.ports import Question

if TYPE_CHECKING:
    from edge.cli.settings import Settings

FELL_BACK = 3
"""Exit code of an answer that was made locally though help was asked for, where the caller wants to know."""
MOST_CONTEXT_BYTES = 256 << 10
"""Of all files and what is piped in together; more than any context holds, less than the endpoint takes."""


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How to ask and how to tell. None: the agent's own choice."""

    system: str | None = None
    files: Sequence[Path] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    full: bool = False
    json: bool = False
    fail_on_fallback: bool = False
    task: str | None = None


def ask(settings: Settings, question: str | None, options: AskOptions) -> int:
    """Answer `question` about the files and what stdin holds, or the question that stdin holds. Raises UsageError."""
    asked = _question(settings.mode, question, options)
    answer = asyncio.run(_ask(settings, asked, screen_for_stdout(full=options.full, nothing=options.json)))
    if options.json:
        print_json(answer.to_json())
    else:
        print_line(source_line(answer.note))
    return FELL_BACK if options.fail_on_fallback and answer.note.source == "local-fallback" else 0


async def _ask(settings: Settings, question: Question, screen: Screen) -> Answer:
    async with answering(settings) as reader:
        if question.task is not None and question.task not in (
            known := [budget["task"] for budget in (await reader.budgets())["tasks"]]
        ):
            print_line(unknown_task_line(question.task, known))
        return await ask_and_show(reader, question, screen)


def _question(mode: str | None, question: str | None, options: AskOptions) -> Question:
    system = [Message("system", options.system)] if options.system and options.system.strip() else []
    text = "\n\n".join(_parts(question, options.files))
    return new_question(
        [*system, Message("user", text)],
        mode,
        task=options.task,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
    )


def _parts(question: str | None, files: Sequence[Path]) -> list[str]:
    """The files, what is piped in, and the question last. Raises UsageError."""
    room = MOST_CONTEXT_BYTES
    parts: list[str] = []
    for file in files:
        text = _text_of(file, room)
        room -= len(text.encode())
        parts.append(f"{file.name}:\n{text}")
    piped = _piped(room, wanted=question in (None, "-"))
    asked = piped if question in (None, "-") else question or ""
    if not asked.strip():
        raise UsageError("the question is empty")
    if asked is not piped and piped:
        parts.append(piped)
    return [*parts, asked.strip()]


def _text_of(file: Path, room: int) -> str:
    try:
        with file.expanduser().open("rb") as opened:
            return _read(opened, shown(str(file)), room)
    except OSError as error:
        raise UsageError(f"--file {shown(str(file))}: {error.strerror}", hint="give a text file that you may read") from error


def _piped(room: int, *, wanted: bool) -> str:
    """What stdin holds: always where it is the question, else only where something is really piped in."""
    if sys.stdin is None or sys.stdin.isatty():
        if wanted:
            raise UsageError("no question", hint='write edge-agent ask "What is 17 * 3?" or pipe one in')
        return ""
    return _read(sys.stdin.buffer, "stdin", room) if wanted or _holds_text() else ""


def _holds_text() -> bool:
    """Whether stdin is a pipe, a file or a socket. Services and schedulers give a device such as /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:  # no file of the system behind it
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read(opened: BinaryIO, name: str, room: int) -> str:
    content = opened.read(room + 1)
    if len(content) > room:
        raise UsageError(f"{name}: files and stdin together may hold {MOST_CONTEXT_BYTES >> 10} KiB", hint="give a part of it")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name}: is not UTF-8 text (byte {error.start})", hint="give text; binary files cannot be read"
        ) from error
    if "\0" in text:
        raise UsageError(f"{name}: is a binary file", hint="give text; binary files cannot be read")
    return text.strip()
