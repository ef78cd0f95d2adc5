"""Lines typed by a person in `edge-agent chat`: keys, history and completion."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from edge.cli.chat import COMMANDS
from edge.cli.output import print_line
from edge.core.files import replacing

HISTORY_FILE = "chat-history"
MOST_HISTORY_BYTES = 1 << 20
KEPT_ENTRIES = 1000


async def typed_lines(history: History) -> AsyncIterator[str]:
    """What is sent at a prompt with history, search, completion and questions of several lines, until Ctrl-D. Ctrl-C drops the line."""
    session: PromptSession[str] = PromptSession(
        "\n> ",
        multiline=True,
        prompt_continuation="  ",
        history=history,
        completer=_Commands(),
        complete_style=CompleteStyle.READLINE_LIKE,
        complete_while_typing=False,
        key_bindings=_keys(),
        output=create_output(sys.stdout if sys.stdout.isatty() else sys.stderr),
    )
    while True:
        try:
            line = _encodable(await session.prompt_async(handle_sigint=False)).strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        yield line


def open_history(folder: Path, *, stored: bool) -> History:
    """What was asked in this state folder before, in a file only its owner can read; of this conversation alone where it is not stored."""
    if not stored:
        return InMemoryHistory()
    file = folder / HISTORY_FILE
    try:
        os.close(_opened_privately(file))
        if file.stat().st_size > MOST_HISTORY_BYTES:
            _keep_newest(file)
    except OSError as error:
        print_line(f"what is asked here will not be remembered: {file}: {error.strerror}")
        return InMemoryHistory()
    return _KeptHistory(str(file))


class _KeptHistory(FileHistory):
    """A history that a full disk or odd characters do not end the conversation for."""

    def store_string(self, string: str) -> None:
        try:
            super().store_string(_encodable(string))
        except OSError as error:
            print_line(f"not remembered: {error.strerror}")


def _opened_privately(file: Path) -> int:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _keep_newest(file: Path) -> None:
    newest = list(islice(FileHistory(str(file)).load_history_strings(), KEPT_ENTRIES))
    with replacing(file) as shortened:
        os.close(_opened_privately(shortened))
        shorter = FileHistory(str(shortened))
        for entry in reversed(newest):
            shorter.store_string(entry)


class _Commands(Completer):
    """Completes a slash command at the beginning of a line."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if typed.startswith("/") and not any(map(str.isspace, typed)):
            for name, (follows, about) in COMMANDS.items():
                if name.startswith(typed):
                    yield Completion(name + " " * bool(follows), -len(typed), display_meta=about)


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text.endswith("\\") and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def _encodable(text: str) -> str:
    """The text without halves of characters, which bytes that are no UTF-8 come in as."""
    return text.encode("utf-8", "replace").decode()
