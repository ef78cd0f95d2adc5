"""`edge-agent ask`: one question, one answer on stdout, one line about it on stderr."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from edge.cli.budget import unknown_task_line
from edge.cli.options import Config, Coordinator, Json, LocalOnly, Mode, Model, NeverSend, Sets, State, Task, mode_of, task_label
from edge.cli.output import print_json, print_line, source_line
from edge.cli.settings import Settings
from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.core.limits import LARGEST_SEED, MOST_TOKENS
from edge.core.types import Message

if TYPE_CHECKING:
    from edge.cli.asking import Answer, Screen
    from edge.state.answer_record import AnswerRequest


def command(
    question: Annotated[str | None, typer.Argument(help="The question; `-` or nothing reads stdin.")] = None,
    local_only: LocalOnly = False,
    cloud: Annotated[bool, typer.Option("--cloud", help="Ask the cloud, whatever the model would do.")] = False,
    system: Annotated[
        str | None, typer.Option("--system", help="What the answerer is told before the question.", metavar="TEXT")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", help="Text that is put before the question. Repeatable.", metavar="FILE")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, max=MOST_TOKENS, help="Longest answer of the local model.", metavar="N"),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.", metavar="T")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of this answer, above temperature 0.", metavar="N")
    ] = None,
    task: Task = None,
    full: Annotated[bool, typer.Option("--full", help="Show the reasoning too.")] = False,
    fail_on_fallback: Annotated[
        bool, typer.Option("--fail-on-fallback", help="Exit with 3 where help was asked for but not had.")
    ] = False,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Answer one question in the terminal.

    With a question, what is piped in is put before it: `edge-agent ask "What went wrong?" < build.log`.

    Exit codes: 0 answered; 1 not answered, also where --cloud was given and the cloud could or might not answer; 2 wrong usage;
    3 answered locally though help was asked for, with --fail-on-fallback (the answer is printed all the same); 130 Ctrl-C.
    """
    settings = Settings(
        config, sets, model, coordinator, state, mode_of(mode, local_only=local_only, cloud=cloud), never_send=never_send
    )
    options = AskOptions(
        system,
        tuple(files or ()),
        max_tokens,
        temperature,
        seed,
        full=full,
        json=json,
        fail_on_fallback=fail_on_fallback,
        task=task_label(task),
    )
    return ask(settings, question, options)


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
    from edge.cli.asking import screen_for_stdout

    asked = _question(settings.mode, question, options)
    answer = asyncio.run(_ask(settings, asked, screen_for_stdout(full=options.full, nothing=options.json)))
    if options.json:
        print_json(answer.to_json())
    else:
        print_line(source_line(answer.note))
    return FELL_BACK if options.fail_on_fallback and answer.note.source == "local-fallback" else 0


async def _ask(settings: Settings, question: AnswerRequest, screen: Screen) -> Answer:
    from edge.cli.asking import answering, ask_and_show

    async with answering(settings, question.mode) as reader:
        if question.task is not None and question.task not in (
            known := [budget["task"] for budget in (await reader.control.budget())["tasks"]]
        ):
            print_line(unknown_task_line(question.task, known))
        return await ask_and_show(reader, question, screen)


def _question(mode: str | None, question: str | None, options: AskOptions) -> AnswerRequest:
    from edge.cli.asking import new_question

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
        raise UsageError("the question is empty", hint="give it in quotes, as a file, or through a pipe")
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
