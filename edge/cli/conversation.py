"""A conversation, line by line: questions with what was said before, and commands about the answers.

What failed or was stopped is not part of the conversation.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar

from edge.cli.asking import Answer, Reader, Screen, ask_and_show, new_question, screen_for_stdout
from edge.cli.budget import chat_budget_lines
from edge.cli.options import id_of
from edge.cli.output import one_line, print_json_line, print_line, source_line, why_lines
from edge.core.errors import EdgeError, NotFound, UsageError
from edge.core.types import Message

RETRY_TEMPERATURE = 0.7
"""Greedy decoding would give a question that is asked once more the same answer."""
_FORCED = {"/local": "local-only", "/cloud": "cloud-only"}
_VERDICTS = {"/good": "good", "/bad": "bad"}


class Voice(Protocol):
    """How a conversation's results are told."""

    def screen(self) -> Screen:
        """Where an answer is shown as it comes."""
        ...

    def answered(self, answer: Answer) -> None:
        """An answer is complete."""
        ...

    def told(self, command: str, value: Any) -> None:
        """What a command has found."""
        ...

    def failed(self, error: EdgeError) -> None:
        """A line came to nothing."""
        ...

    def stopped(self) -> None:
        """Ctrl-C stopped an answer."""
        ...


class Conversation:
    """What was said so far, and the last answer."""

    def __init__(
        self, reader: Reader, mode: str | None, voice: Voice, interrupts: Interrupts, *, lenient: bool, task: str | None = None
    ) -> None:
        """`lenient`: wrong usage is told and does not end the conversation. `task`: whose budget and dial apply (None: the agent's own)."""
        self._reader = reader
        self._mode = mode
        self._voice = voice
        self._interrupts = interrupts
        self._lenient = lenient
        self._task = task
        self._said: list[Message] = []
        self._asked: tuple[str, str | None] | None = None
        self._answered = ""
        self._retries = 0

    async def take(self, line: str) -> bool:
        """Do what a line says; False when it says to leave. Raises UsageError where the conversation is not lenient."""
        try:
            said = understood(line)
            if said.command == "/quit":
                return False
            await self._do(said)
        except Stopped:
            self._voice.stopped()
        except EdgeError as error:
            if isinstance(error, UsageError) and not self._lenient:
                raise
            self._voice.failed(error)
        return True

    async def _do(self, said: Said) -> None:
        match said.command:
            case "" | "/local" | "/cloud":
                await self._ask(said.rest or "", _FORCED.get(said.command, self._mode))
            case "/retry":
                await self._retry()
            case "/new":
                self._forget()
            case "/help":
                self._voice.told("/help", help_lines())
            case "/budget":
                self._voice.told("/budget", await self._interrupts.stoppable(self._budget()))
            case "/why":
                self._voice.told("/why", await self._interrupts.stoppable(self._reader.control.why(self._id(said.rest))))
            case command:
                await self._judge(_VERDICTS[command], said.rest)

    async def _budget(self) -> Mapping[str, Any]:
        """What may still be spent (None: the coordinator cannot be asked), and this conversation's dial (None: nothing is known of it)."""
        status, budgets = await self._reader.control.status(), await self._reader.control.budget()
        task = self._task or budgets["serving_task"]
        dial = next((known["dial"] for known in budgets["tasks"] if known["task"] == task), None)
        return {"budget": status.get("budget"), "dial": dial, "switched_off": budgets["switched_off"]}

    async def _ask(self, text: str, mode: str | None, **sampling: Any) -> None:
        if not sampling:
            self._asked, self._answered, self._retries = (text, mode), "", 0
        question = new_question([*self._said, Message("user", text)], mode, task=self._task, **sampling)
        answer = await self._interrupts.stoppable(ask_and_show(self._reader, question, self._voice.screen()))
        self._said += [Message("user", text), Message("assistant", answer.content.strip() or answer.final)]
        self._answered = answer.note.id
        self._voice.answered(answer)

    async def _retry(self) -> None:
        """Ask again in place of the last answer, which stays until another one has come."""
        if self._asked is None:
            raise UsageError("nothing was asked yet")
        if not self._answered:
            await self._ask(*self._asked)
            return
        before = list(self._said)
        del self._said[-2:]
        self._retries += 1
        try:
            await self._ask(*self._asked, temperature=RETRY_TEMPERATURE, seed=self._retries)
        except BaseException:
            self._said = before
            raise

    def _forget(self) -> None:
        self._said.clear()
        self._asked, self._answered = None, ""

    async def _judge(self, verdict: str, rest: str) -> None:
        """Feedback on the last answer, or on the one that the first word names."""
        judged, correction = self._answered, rest
        first, _, others = rest.partition(" ")
        if first and (verdict == "good" or not self._answered or await self._is_answer(first)):
            judged, correction = first, others.strip()
        kept = self._reader.control.feedback(self._id(judged), verdict, correction or None)
        self._voice.told("/" + verdict, await self._interrupts.stoppable(kept))

    async def _is_answer(self, word: str) -> bool:
        """Whether a word is the id of an answer, not the first one of a correction."""
        if not _may_be_id(word):
            return False
        try:
            await self._interrupts.stoppable(self._reader.control.why(word.removeprefix("chatcmpl-")))
        except NotFound:
            return False
        return True

    def _id(self, given: str) -> str:
        if not (given or self._answered):
            raise UsageError("there is no answer yet", hint="give the id that stands beside an answer")
        return id_of(given or self._answered)


def _may_be_id(word: str) -> bool:
    bare = word.removeprefix("chatcmpl-")
    return len(bare) >= 8 and bare.isascii() and bare.isalnum()


class SpokenVoice:
    """For a person, or a pipe that takes the answers alone: answers on stdout, what is about them on stderr."""

    def screen(self) -> Screen:
        """The screen that fits where stdout goes."""
        return screen_for_stdout(full=True)

    def answered(self, answer: Answer) -> None:
        """Where the answer came from."""
        print_line(source_line(answer.note))

    def told(self, command: str, value: Any) -> None:
        """In words."""
        print_line("\n".join(_words(command, value)))

    def failed(self, error: EdgeError) -> None:
        """What went wrong and what to do next."""
        print_line(f"error: {one_line(f'{error}; {error.hint}' if error.hint else error)}")

    def stopped(self) -> None:
        """That it was stopped."""
        print_line("(stopped)")


class JsonVoice:
    """For programs: one JSON object a line on stdout, for every line that was understood or not."""

    def screen(self) -> Screen:
        """None: the answer comes whole."""
        return Screen()

    def answered(self, answer: Answer) -> None:
        """The answer with all that is known of it."""
        print_json_line(answer.to_json())

    def told(self, command: str, value: Any) -> None:
        """As it was found."""
        print_json_line({command.removeprefix("/"): value} if command == "/help" else value)

    def failed(self, error: EdgeError) -> None:
        """The error and what to do next."""
        print_json_line({"error": str(error), "hint": error.hint})

    def stopped(self) -> None:
        """That it was stopped."""
        print_json_line({"error": "stopped", "hint": ""})


def _words(command: str, value: Any) -> list[str]:
    if command == "/why":
        return why_lines(value)
    if command == "/budget":
        return chat_budget_lines(value)
    if command == "/help":
        return list(value)
    return [f"noted: {value.get('verdict')} · id {value.get('id')}"]


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command: its name with the slash, what may follow it, and what it does."""

    name: str
    takes: str
    about: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a line means: a command and what follows it; `command` is "" for a question."""

    command: str
    rest: str


COMMANDS = (
    SlashCommand("/local", "QUESTION", "ask without the cloud"),
    SlashCommand("/cloud", "QUESTION", "ask the cloud"),
    SlashCommand("/why", "[ID]", "where the last answer, or another one, came from"),
    SlashCommand("/good", "[ID]", "the last answer, or another one, was right"),
    SlashCommand("/bad", "[ID] [TEXT]", "it was wrong; TEXT is what would have been right"),
    SlashCommand("/budget", "", "what may still be spent"),
    SlashCommand("/retry", "", "the last question once more; sampled anew where it was answered"),
    SlashCommand("/new", "", "forget the conversation"),
    SlashCommand("/help", "", "these commands and keys"),
    SlashCommand("/quit", "", "leave"),
)
_NAMES = frozenset(command.name for command in COMMANDS)
_KEYS = (
    "Enter sends; Alt-Enter, or \\ at the end of a line, begins a new line; pasted line ends stay",
    "Up, Down and Ctrl-R find what was asked before; Tab completes commands",
    "Ctrl-C stops an answer, or drops the line; Ctrl-D leaves",
    "a question that begins with / is written with two: //etc/hosts is a file",
)


def understood(line: str) -> Said:
    """What the line means. Raises UsageError for a command there is not, or one without the question it needs."""
    if not line.startswith("/") or line.startswith("//"):
        return Said("", line[1:] if line.startswith("//") else line)
    word, _, rest = line.partition("\n" if "\n" in line.split(" ", 1)[0] else " ")
    if word not in _NAMES:
        raise UsageError(f"unknown command {word}", hint="/help lists them; to ask a question that begins with /, write //")
    if word in ("/local", "/cloud") and not rest.strip():
        raise UsageError(f"{word} needs a question", hint=f"write {word} What is 17 * 3?")
    return Said(word, rest.strip())


def help_lines() -> list[str]:
    """Commands and keys, for a person."""
    shown = [(f"{command.name} {command.takes}".rstrip(), command.about) for command in COMMANDS]
    width = max(len(name) for name, _ in shown)
    return [*(f"{name:<{width}}  {about}" for name, about in shown), *_KEYS]


T = TypeVar("T")


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

    async def stoppable(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Raises Stopped where Ctrl-C came first; its clean-up has run by then."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
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
