"""`edge-agent chat`: a conversation in the terminal. Ctrl-C stops an answer, Ctrl-D leaves."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from edge.cli.asking import Answer, Reader, answering, ask_and_show, screen_for_stdout
from edge.cli.saying import print_line, source_line
from edge.core.errors import EdgeError, UsageError
from edge.core.types import Message

if TYPE_CHECKING:
    from edge.cli.settings import Settings

_HELP = "/local Q  ask without the cloud · /cloud Q  ask the cloud · /new  forget the conversation · /quit"
_FORCED = {"/local": "local-only", "/cloud": "cloud-only"}


def chat(settings: Settings) -> int:
    """Talk until Ctrl-D or /quit."""
    asyncio.run(_chat(settings))
    return 0


async def _chat(settings: Settings) -> None:
    async with answering(settings) as reader:
        if sys.stdin.isatty():
            print_line(_HELP)
        history: list[Message] = []
        while (line := await asyncio.to_thread(_next_line)) is not None:
            if line == "/quit":
                return
            if line == "/new":
                history.clear()
            elif line:
                await _turn(reader, history, line, settings.mode)


async def _turn(reader: Reader, history: list[Message], line: str, mode: str | None) -> None:
    word, _, rest = line.partition(" ")
    text = rest.strip() if word in _FORCED else line
    if not text or (line.startswith("/") and word not in _FORCED):
        print_line(_HELP)
        return
    history.append(Message("user", text))
    try:
        answer = await _stoppable(reader, history, _FORCED.get(word, mode))
    except UsageError:
        raise
    except EdgeError as error:
        history.pop()
        print_line(f"error: {error}")
        return
    if answer is None:
        history.pop()
        return
    history.append(Message("assistant", answer.content.strip() or answer.final))
    print_line(source_line(answer.note))


async def _stoppable(reader: Reader, history: list[Message], mode: str | None) -> Answer | None:
    """The answer, or None when Ctrl-C stopped it."""
    import signal

    task = asyncio.ensure_future(ask_and_show(reader, history, mode, screen_for_stdout(full=True)))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
        print_line("\n(stopped)")
        return None
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _next_line() -> str | None:
    """The next line a person typed, None at the end."""
    try:
        return input("\n> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
