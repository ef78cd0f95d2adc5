"""`edge-agent chat`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from edge.cli.exits import INTERRUPTED
from edge.cli.options import Config, Coordinator, LocalOnly, Mode, Model, NeverSend, Sets, State, Task, mode_of, task_label
from edge.cli.output import print_line
from edge.cli.settings import Settings

if TYPE_CHECKING:
    from edge.cli.conversation import Conversation
    from edge.config.schema import AgentConfig


def command(
    local_only: LocalOnly = False,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not remember what is asked (always: chat.history: false).")
    ] = False,
    task: Task = None,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout for each line of stdin.")] = False,
) -> int:
    """Talk with the agent; Ctrl-C stops an answer, Ctrl-D leaves, /help shows the commands."""
    settings = Settings(
        config, sets, model, coordinator, state, mode_of(mode, local_only=local_only, cloud=False), never_send=never_send
    )
    return chat(settings, ChatOptions(history=not no_history, json=json, task=task_label(task)))


_GREETING = "/help shows commands and keys · Ctrl-C stops an answer · Ctrl-D leaves"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Whether what is asked is remembered, whether answers come as JSON, and the task's label (None: the agent's own)."""

    history: bool = True
    json: bool = False
    task: str | None = None


def chat(settings: Settings, options: ChatOptions) -> int:
    """Talk until Ctrl-D or /quit; 130 when Ctrl-C ended the reading of a pipe."""
    try:
        asyncio.run(_chat(settings, options))
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0


async def _chat(settings: Settings, options: ChatOptions) -> None:
    from edge.cli.asking import answering
    from edge.cli.conversation import Conversation, Interrupts, JsonVoice, SpokenVoice

    async with answering(settings) as reader:
        typed = sys.stdin.isatty()
        lines = _typed_lines(settings.config(), options) if typed else PipedLines()
        voice = JsonVoice() if options.json else SpokenVoice()
        if typed:
            print_line(_GREETING)
        with Interrupts(idle=_at_rest(typed)) as interrupts:
            conversation = Conversation(
                reader, settings.mode, voice, interrupts, lenient=typed or options.json, task=options.task
            )
            await _talk(lines, conversation)


async def _talk(lines: Lines, conversation: Conversation) -> None:
    while (line := await lines.next_line()) is not None:
        if line and not await conversation.take(line):
            return


def _at_rest(typed: bool) -> Callable[[], object]:
    """What a SIGINT does while no answer is made: at a prompt nothing, since there Ctrl-C is a key; else it ends the reading."""
    task = asyncio.current_task()
    return lambda: typed or task is None or task.cancel()


def _typed_lines(config: AgentConfig, options: ChatOptions) -> Lines:
    from edge.app import state_folder
    from edge.cli.prompt import TypedLines, open_history

    return TypedLines(open_history(state_folder(config), kept=options.history and config.chat.history))


class Lines(Protocol):
    """Where a conversation's lines come from."""

    async def next_line(self) -> str | None:
        """The next line without white space around it; None at the end."""
        ...


class PipedLines:
    """Lines of stdin as they come, whoever writes them.

    The thread may wait for ever in a read that nothing can interrupt, so it is a daemon and reads without the interpreter's own buffer,
    whose lock it would hold when the program ends.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None

    async def next_line(self) -> str | None:
        """The next line, None at the end and ever after."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="stdin", daemon=True)
            self._thread.start()
        elif not self._thread.is_alive() and self._lines.empty():
            return None
        return await self._lines.get()

    def _read(self) -> None:
        with suppress(RuntimeError, CancelledError):  # the conversation is over: its loop is closed, or closing
            try:
                with io.FileIO(self._descriptor, closefd=False) as file:
                    for line in file:
                        self._hand_over(line.decode("utf-8", "replace").strip())
            except OSError as error:
                print(f"stdin cannot be read: {error.strerror}", file=sys.stderr)
            self._hand_over(None)

    def _hand_over(self, line: str | None) -> None:
        offered = self._lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(offered, self._loop).result()
        finally:
            offered.close()
