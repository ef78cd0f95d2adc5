"""`edge-agent ask`: one question, one answer on stdout, one line about it on stderr.

The answer comes from the agent that runs on the state folder, or from one started for the command, and is shown as it comes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

from typer import Argument, Option

from edge.cli.budget import known_labels, unknown_task_line
from edge.cli.options import Json, LocalOnly, Task, mode_of, task_label
from edge.cli.output import print_json, print_line, source_line, visible
from edge.cli.remote import RemoteAgent, running_agent
from edge.cli.settings import Settings, starting_lines, takes
from edge.core.environment import why_no_cloud
from edge.core.errors import CloudOff, EdgeError, UsageError
from edge.core.formatting import shown
from edge.core.limits import LARGEST_SEED, MOST_TOKENS
from edge.core.types import Message, Mode
from edge.serve.ports import AnswerNote
from edge.state.answer_record import AnswerRequest

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.inference.channels import ChannelText
    from edge.serve.ports import AgentControl
    from edge.serve.reasoning import Reading

FELL_BACK = 3
"""Exit code of an answer that was made locally though help was asked for, where the caller wants to know."""
MOST_CONTEXT_BYTES = 256 << 10
"""Of all files and what is piped in together; more than any context holds, less than the endpoint takes."""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


@takes("model coordinator state mode never_send")
def command(
    question: Annotated[str | None, Argument(help="The question; `-` or nothing reads stdin.")] = None,
    local_only: LocalOnly = False,
    cloud: Annotated[bool, Option("--cloud", help="Ask the cloud, whatever the model would do.")] = False,
    system: Annotated[str | None, Option("--system", help="System prompt for the one who answers.", metavar="TEXT")] = None,
    files: Annotated[
        list[Path] | None, Option("--file", help="Text that is put before the question. Repeatable.", metavar="FILE")
    ] = None,
    max_tokens: Annotated[
        int | None, Option("--max-tokens", min=1, max=MOST_TOKENS, help="Longest answer of the local model.", metavar="N")
    ] = None,
    temperature: Annotated[float | None, Option("--temperature", min=0.0, max=2.0, help="0 is greedy.", metavar="T")] = None,
    seed: Annotated[
        int | None, Option("--seed", min=0, max=LARGEST_SEED, help="Seed of this answer, above temperature 0.", metavar="N")
    ] = None,
    task: Task = None,
    reasoned: Annotated[
        bool, Option("--reasoned", help="Have the local model reason in numbered steps before it answers.")
    ] = False,
    full: Annotated[bool, Option("--full", help="Show the reasoning too.")] = False,
    fail_on_fallback: Annotated[
        bool, Option("--fail-on-fallback", help="Exit with 3 where help was asked for but not had.")
    ] = False,
    *,
    settings: Settings,
    json: Json = False,
) -> int:
    """Answer one question in the terminal.

    With a question, what is piped in is put before it: `edge-agent ask "What went wrong?" < build.log`.

    Exit codes: 0 answered; 1 not answered, also where --cloud was given and the cloud could or might not answer; 2 wrong usage;
    3 answered locally though help was asked for, with --fail-on-fallback (the answer is printed all the same); 130 Ctrl-C.
    """
    settings = replace(settings, mode=mode_of(settings.mode, local_only=local_only, cloud=cloud))
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    label = task_label(task)
    messages = [Message("system", system)] if system and system.strip() else []
    messages.append(Message("user", "\n\n".join(_parts(question, files or ()))))
    asked = new_question(messages, settings.mode, task=label, reasoned=reasoned, **sampling)

    async def answered() -> Answer:
        async with answering(settings, settings.mode) as reader:
            if label is not None:
                known = known_labels(await reader.control().budget())
                if label not in known:
                    print_line(unknown_task_line(label, known))
            return await ask_and_show(reader, asked, Screen() if json else screen_for_stdout(full=full))

    answer = asyncio.run(answered())
    if json:
        print_json(answer.to_json())
    else:
        print_line(source_line(answer.note))
    if not answer.final:
        return 1
    return FELL_BACK if fail_on_fallback and answer.note.source == "local-fallback" else 0


def _parts(question: str | None, files: Sequence[Path]) -> list[str]:
    """The files, what is piped in, and the question last. Raises UsageError."""
    room = MOST_CONTEXT_BYTES
    parts: list[str] = []
    for file in files:
        try:
            with file.expanduser().open("rb") as opened:
                text = _read(opened, shown(str(file)), room)
        except OSError as error:
            raise UsageError(f"--file {shown(str(file))}: {error.strerror}", hint="give a text file that you may read") from error
        room -= len(text.encode())
        parts.append(f"{file.name}:\n{text}")
    is_piped = question in (None, "-")
    if sys.stdin is None or sys.stdin.isatty():
        if is_piped:
            raise UsageError("no question", hint='write edge-agent ask "What is 17 * 3?" or pipe one in')
        piped = ""
    else:
        piped = _read(sys.stdin.buffer, "stdin", room) if is_piped or _holds_text() else ""
    asked = piped if is_piped else question or ""
    if not asked.strip():
        raise UsageError("the question is empty", hint="give it in quotes, as a file, or through a pipe")
    if piped and not is_piped:
        parts.append(piped)
    return [*parts, asked.strip()]


def _holds_text() -> bool:
    """Whether stdin is a pipe, a file or a socket. Services and schedulers give a device such as /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:  # not backed by a file of the system
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


# -- who answers ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """Whoever answers: `read` streams one answer by channel, then its note; `control` gives what reads and changes its state.

    Both may raise EdgeError.
    """

    read: Callable[[AnswerRequest], Reading]
    control: Callable[[], AgentControl]


@asynccontextmanager
async def answering(settings: Settings, mode: str | None = None) -> AsyncIterator[Reader]:
    """The agent that runs on the state folder, or one started here for the time of the block, all of whose questions have this mode."""
    async with running_agent(settings.state_folder()) as remote:
        if remote is not None:
            yield _bounded(remote, settings)
            return
    from edge.app.agents import build_agent
    from edge.console import ProblemLines

    resolved = settings.resolve()
    for line in starting_lines(resolved, learns=False):
        print_line(line)
    if sys.stderr.isatty():
        print_line(f"starting: loading {Path(resolved.config.model.path).name}")
    only_cloud = (mode or resolved.config.mode) == "cloud-only"  # an answer that only the cloud may give fails with that reason
    async with build_agent(resolved.config, ProblemLines(sys.stderr, offline=not only_cloud)) as agent:
        yield own_reader(agent)


_HONOURED = ("mode", "state_folder", "chat.history", "privacy.never_send")
"""Settings of a caller that a running agent honours; others only a new one could."""


def _bounded(remote: RemoteAgent, settings: Settings) -> Reader:
    """A running agent under the mode that this caller has set anywhere, never asking the cloud where the caller may not, or with what
    breaks a rule of --never-send. Its `read` raises CloudOff when the cloud is demanded all the same."""
    own_mode, forbidden = settings.mode, None
    if not settings.is_plain:
        resolved = settings.resolve()
        options = {origin for key, origin in resolved.origins.items() if origin.startswith("--") and key not in _HONOURED}
        if options:
            hint = f"leave out {' and '.join(sorted(options))}"
            raise UsageError(f"an agent is running at {remote.url} with its own settings", hint=hint)
        own_mode = resolved.config.mode if "mode" in resolved.origins else None
        if settings.never_send:
            from edge.privacy.rules import NeverSend

            forbidden = NeverSend(settings.never_send)
    off = why_no_cloud(own_mode)

    async def read(question: AnswerRequest) -> Reading:
        mode, no_cloud = question.mode or cast("Mode | None", own_mode), off
        if forbidden is not None and forbidden.broken([message.content for message in question.messages]):
            no_cloud = no_cloud or "--never-send forbids it"
        if no_cloud:
            if mode == "cloud-only":
                raise CloudOff(no_cloud)
            mode = "local-only"
        async with aclosing(remote.read(replace(question, mode=mode, no_cloud=no_cloud))) as events:
            async for event in events:
                yield event

    return Reader(read, remote.control)


def own_reader(agent: Agent) -> Reader:
    """An agent of this process."""
    from edge.serve.reasoning import read_answer
    from edge.serve.running_agent import AgentAnswers, RunningAgent

    answers, control = AgentAnswers(agent), RunningAgent(agent)
    return Reader(lambda question: read_answer(answers.answer(question)), lambda: control)


def new_question(messages: Sequence[Message], mode: str | None, **more: Any) -> AnswerRequest:
    """A question under an id of its own. `more`: task, temperature, max_tokens, seed, reasoned; None or absent is the agent's choice."""
    return AnswerRequest(id=secrets.token_hex(8), messages=tuple(messages), mode=cast("Mode | None", mode), **more)


# -- the answer as it comes ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """A finished answer by channel."""

    reasoning: str = ""
    content: str = ""
    note: AnswerNote = field(default_factory=lambda: AnswerNote(id="", source=""))

    @property
    def final(self) -> str:
        """The answer alone, "" where the model gave none, as the note's reason then states."""
        return self.note.final or self.content.strip()

    def to_json(self) -> dict[str, Any]:
        """The answer, its channels, and what is known of it."""
        about = {name: value for name, value in self.note.to_json().items() if name != "final"}
        return {"answer": self.final, "content": self.content, "reasoning": self.reasoning, **about}


async def ask_and_show(reader: Reader, question: AnswerRequest, screen: Screen) -> Answer:
    """Ask, and show the answer on the screen as it comes. Raises EdgeError."""
    answer = Answer()
    try:
        async with aclosing(reader.read(question)) as events:
            async for event in events:
                if isinstance(event, AnswerNote):
                    answer.note = event
                    continue
                if event.channel == "reasoning":
                    answer.reasoning += event.text
                else:
                    answer.content += event.text
                screen.show(event)
        if not answer.note.id:
            raise EdgeError("the answer was cut off")
        screen.finish(answer)
    except BaseException:
        screen.cut()
        raise
    return answer


class Screen:
    """Where an answer is shown; this one shows nothing."""

    def show(self, event: ChannelText) -> None:
        """A piece has come."""

    def finish(self, answer: Answer) -> None:
        """The answer is complete."""

    def cut(self) -> None:
        """No more comes; what was shown stays."""


class Pipe(Screen):
    """For other programs: the answer alone, at the end, after the reasoning if that is wanted."""

    def __init__(self, *, full: bool) -> None:
        self._full = full

    def finish(self, answer: Answer) -> None:
        if self._full and answer.reasoning.strip():
            print(answer.reasoning.strip())
        if answer.final:
            print(answer.final, flush=True)


class Terminal(Screen):
    """For a person: everything as it comes, the reasoning dim. A boxed answer is shown at the end, without its box."""

    def __init__(self) -> None:
        self._content = ""
        self._shown = 0
        self._dim = False
        self._began = False

    def show(self, event: ChannelText) -> None:
        if event.channel == "reasoning":
            self._paint(event.text, dim=True)
            return
        self._content += event.text
        may_be_boxed = self._content.startswith("\\boxed{") or "\\boxed{".startswith(self._content)
        if not may_be_boxed:
            self._paint(self._content[self._shown :], dim=False)
            self._shown = len(self._content)

    def finish(self, answer: Answer) -> None:
        self._paint("" if self._shown else answer.final, dim=False)
        print(flush=True)

    def cut(self) -> None:
        """Show what was held back, and leave the terminal as it was found."""
        self._paint(self._content[self._shown :], dim=False)
        if self._began:
            print(flush=True)

    def _paint(self, text: str, *, dim: bool) -> None:
        if dim != self._dim:
            self._dim = dim
            gap = "\n" if self._began and not dim else ""
            sys.stdout.write(_DIM if dim else _PLAIN + gap)
        self._began = self._began or bool(text)
        sys.stdout.write(visible(text))
        sys.stdout.flush()


def screen_for_stdout(*, full: bool = False) -> Screen:
    """The screen that fits where stdout goes."""
    return Terminal() if sys.stdout.isatty() else Pipe(full=full)
