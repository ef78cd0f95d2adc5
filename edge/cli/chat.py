"""`edge-agent chat`: a conversation in the terminal, or line by line from a pipe: questions with what came before, and commands about
the answers. What failed or was stopped is not part of the conversation."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Annotated, Any, TypeVar

from typer import Option

from edge.cli.ask import Reader, Screen, answering, ask_and_show, new_question, screen_for_stdout
from edge.cli.budget import chat_budget_lines
from edge.cli.options import LocalOnly, Task, id_of, mode_of, task_label
from edge.cli.output import noted_line, one_line, print_json, print_line, source_line, why_lines
from edge.cli.settings import Settings, takes
from edge.core.errors import EdgeError, NotFound, UsageError
from edge.core.interrupts import INTERRUPTED
from edge.core.types import Message

Result = TypeVar("Result")
RETRY_TEMPERATURE = 0.7
"""Greedy decoding would give a question that is asked once more the same answer."""
_GREETING = "/help shows commands and keys · Ctrl-C stops an answer · Ctrl-D leaves"


@takes("model coordinator state mode never_send")
def command(
    local_only: LocalOnly = False,
    no_history: Annotated[
        bool, Option("--no-history", help="Do not remember what is asked (always: chat.history: false).")
    ] = False,
    task: Task = None,
    *,
    settings: Settings,
    json: Annotated[bool, Option("--json", help="One JSON object a line on stdout for each line of stdin.")] = False,
) -> int:
    """Talk with the agent; Ctrl-C stops an answer, Ctrl-D leaves, /help shows the commands."""
    settings = replace(settings, mode=mode_of(settings.mode, local_only=local_only, cloud=False))
    try:
        asyncio.run(_chat(settings, task_label(task), history=not no_history, as_json=json))
    except asyncio.CancelledError:  # Ctrl-C ended the reading of a pipe
        return INTERRUPTED
    return 0


async def _chat(settings: Settings, task: str | None, *, history: bool, as_json: bool) -> None:
    async with answering(settings) as reader:
        typed = sys.stdin.isatty()
        if typed:
            from edge.app.settings import state_folder
            from edge.cli.prompt import open_history, typed_lines

            config = settings.config()
            lines = typed_lines(open_history(state_folder(config), stored=history and config.chat.history))
            print_line(_GREETING)
        else:
            lines = piped_lines()
        own = asyncio.current_task()
        # while no answer is made, a SIGINT does nothing at a prompt, where Ctrl-C is a key; else it ends the reading
        with Interrupts(idle=lambda: typed or own is None or own.cancel()) as interrupts:
            lenient = typed or as_json
            conversation = Conversation(reader, settings.mode, interrupts, as_json=as_json, lenient=lenient, task=task)
            async for line in lines:
                if line and not await conversation.take(line):
                    return


async def piped_lines(descriptor: int = 0) -> AsyncIterator[str]:
    """Lines of stdin as they come, whoever writes them, without white space around them.

    The thread may wait for ever in a read that nothing can interrupt, so it is a daemon and reads without the interpreter's own buffer,
    whose lock it would hold when the program ends.
    """
    lines: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
    loop = asyncio.get_running_loop()

    def hand_over(line: str | None) -> None:
        offered = lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(offered, loop).result()
        finally:
            offered.close()

    def read() -> None:
        with suppress(RuntimeError, CancelledError):  # the conversation is over: its loop is closed, or closing
            try:
                with io.FileIO(descriptor, closefd=False) as file:
                    for line in file:
                        hand_over(line.decode("utf-8", "replace").strip())
            except OSError as error:
                print(f"stdin cannot be read: {error.strerror}", file=sys.stderr)
            hand_over(None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


class Conversation:
    """The questions and answers so far, and the last answer. Results go to stdout, what is about them to stderr, or all of it as one JSON
    object a line to stdout."""

    def __init__(
        self, reader: Reader, mode: str | None, interrupts: Interrupts, *, as_json: bool, lenient: bool, task: str | None = None
    ) -> None:
        """`lenient`: wrong usage is reported and does not end the conversation. `task`: whose budget and dial apply (None: the agent's)."""
        self._reader = reader
        self._mode = mode
        self._interrupts = interrupts
        self._as_json = as_json
        self._lenient = lenient
        self._task = task
        self._messages: list[Message] = []
        self._asked: tuple[str, str | None] | None = None
        self._answered = ""
        self._retries = 0

    async def take(self, line: str) -> bool:
        """Do what a line asks for; False when it asks to leave. Raises UsageError where the conversation is not lenient."""
        try:
            name, rest = understood(line)
            if name == "/quit":
                return False
            await self._do(name, rest)
        except Stopped:
            self._report({"error": "stopped", "hint": ""}, ["(stopped)"])
        except EdgeError as error:
            if isinstance(error, UsageError) and not self._lenient:
                raise
            text = f"error: {one_line(error.with_hint)}"
            self._report({"error": str(error), "hint": error.hint}, [text])
        return True

    def _report(self, value: Any, lines: Sequence[str]) -> None:
        if self._as_json:
            print_json(value, one_line=True)
        else:
            print_line("\n".join(lines))

    async def _do(self, name: str, rest: str) -> None:
        stoppable = self._interrupts.stoppable
        match name:
            case "":
                await self._ask(rest, self._mode)
            case "/local":
                await self._ask(rest, "local-only")
            case "/cloud":
                await self._ask(rest, "cloud-only")
            case "/retry":
                await self._retry()
            case "/new":
                self._messages.clear()
                self._asked, self._answered = None, ""
            case "/help":
                self._report({"help": help_lines()}, help_lines())
            case "/budget":
                await stoppable(self._budget())
            case "/why":
                record = await stoppable(self._reader.control().why(self._id(rest)))
                self._report(record, why_lines(record))
            case _:
                judged, correction = await self._judged(name, rest)
                noted = await stoppable(self._reader.control().feedback(judged, name.removeprefix("/"), correction or None))
                self._report(noted, [noted_line(noted)])

    async def _budget(self) -> None:
        """Report what may still be spent (None: the coordinator cannot be asked), and this conversation's dial (None: it has none)."""
        status, budgets = await self._reader.control().status(), await self._reader.control().budget()
        task = self._task or budgets.serving_task
        dial = next((known.dial for known in budgets.tasks if known.task == task), None)
        about = {"switched_off": budgets.switched_off, "target": budgets.target, "cloud_name": budgets.cloud_name}
        self._report({"budget": status.budget, "dial": dial, **about}, chat_budget_lines(budgets, status.budget, dial))

    async def _ask(self, text: str, mode: str | None, **sampling: Any) -> None:
        if not sampling:
            self._asked, self._answered, self._retries = (text, mode), "", 0
        question = new_question([*self._messages, Message("user", text)], mode, task=self._task, **sampling)
        screen = Screen() if self._as_json else screen_for_stdout(full=True)
        answer = await self._interrupts.stoppable(ask_and_show(self._reader, question, screen))
        self._messages += [
            Message("user", text),
            Message("assistant", answer.content.strip() or answer.final or answer.reasoning.strip()),
        ]
        self._answered = answer.note.id
        self._report(answer.to_json(), [source_line(answer.note)])

    async def _retry(self) -> None:
        """Ask again in place of the last answer, which stays until another one has come."""
        if self._asked is None:
            raise UsageError("nothing was asked yet")
        if not self._answered:
            await self._ask(*self._asked)
            return
        before = list(self._messages)
        del self._messages[-2:]
        self._retries += 1
        try:
            await self._ask(*self._asked, temperature=RETRY_TEMPERATURE, seed=self._retries)
        except BaseException:
            self._messages = before
            raise

    async def _judged(self, name: str, rest: str) -> tuple[str, str]:
        """Which answer a rating is about, and the correction: the last answer, or the one that the first word names."""
        first, _, others = rest.partition(" ")
        if first and (name == "/good" or not self._answered or await self._is_answer(first)):
            return self._id(first), others.strip()
        return self._id(self._answered), rest

    async def _is_answer(self, word: str) -> bool:
        """Whether a word is the id of an answer, not the first one of a correction."""
        bare = word.removeprefix("chatcmpl-").removeprefix("resp_")
        if len(bare) < 8 or not (bare.isascii() and bare.isalnum()):
            return False
        try:
            await self._interrupts.stoppable(self._reader.control().why(bare))
        except NotFound:
            return False
        return True

    def _id(self, given: str) -> str:
        if not (given or self._answered):
            raise UsageError("there is no answer yet", hint="give the id shown with an answer")
        return id_of(given or self._answered)


COMMANDS = {
    "/local": ("QUESTION", "ask without the cloud"),
    "/cloud": ("QUESTION", "ask the cloud"),
    "/why": ("[ID]", "where the last answer, or another one, came from"),
    "/good": ("[ID]", "the last answer, or another one, was right"),
    "/bad": ("[ID] [TEXT]", "it was wrong; TEXT is what would have been right"),
    "/budget": ("", "what may still be spent"),
    "/retry": ("", "the last question once more; sampled again where it was answered"),
    "/new": ("", "forget the conversation"),
    "/help": ("", "these commands and keys"),
    "/quit": ("", "leave"),
}
"""What may follow a command, and what it does."""
_KEYS = (
    "Enter sends; Alt-Enter, or \\ at the end of a line, begins a new line; pasted line ends stay",
    "Up, Down and Ctrl-R find what was asked before; Tab completes commands",
    "Ctrl-C stops an answer, or drops the line; Ctrl-D leaves",
    "a question that begins with / is written with two: //etc/hosts is a file",
)


def understood(line: str) -> tuple[str, str]:
    """The command of a line ("" for a question) and what follows it. Raises UsageError for a command there is not, or one without the
    question it needs."""
    if not line.startswith("/") or line.startswith("//"):
        return "", line[1:] if line.startswith("//") else line
    name, _, rest = line.partition("\n" if "\n" in line.split(" ", 1)[0] else " ")
    if name not in COMMANDS:
        raise UsageError(f"unknown command {name}", hint="/help lists them; to ask a question that begins with /, write //")
    if name in ("/local", "/cloud") and not rest.strip():
        raise UsageError(f"{name} needs a question", hint=f"write {name} What is 17 * 3?")
    return name, rest.strip()


def help_lines() -> list[str]:
    """Commands and keys, for a person."""
    shown = {f"{name} {follows}".rstrip(): about for name, (follows, about) in COMMANDS.items()}
    width = max(map(len, shown))
    return [*(f"{name:<{width}}  {about}" for name, about in shown.items()), *_KEYS]


class Stopped(Exception):
    """Ctrl-C stopped the work."""


class Interrupts:
    """Within its block a SIGINT stops the work in progress, once; where there is none it is handed to `idle`."""

    def __init__(self, idle: Callable[[], object]) -> None:
        self._idle = idle
        self._work: asyncio.Task[Any] | None = None
        self._stopping = False

    def __enter__(self) -> Interrupts:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def stoppable(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of the work. Raises Stopped where Ctrl-C came first; its clean-up has run by then."""
        task: asyncio.Task[Result] = asyncio.ensure_future(work)
        self._work = task
        self._stopping = False
        try:
            return await task
        except asyncio.CancelledError:
            if not (self._stopping and task.cancelled()):
                raise
            raise Stopped from None
        finally:
            self._work = None

    def _on_signal(self) -> None:
        if self._work is None:
            self._idle()
        elif not self._stopping:  # a second one must not cut the clean-up short
            self._stopping = True
            self._work.cancel()
