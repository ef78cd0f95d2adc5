"""`edge-agent chat`: a conversation in the terminal, or line by line from a pipe. Knows where its lines come from and where answers go."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.cli.asking import answering
from edge.cli.conversation import Conversation, JsonVoice, SpokenVoice
from edge.cli.exits import INTERRUPTED
from edge.cli.interrupts import Interrupts
from edge.cli.lines import Lines, PipedLines
from edge.cli.output import print_line

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig

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
