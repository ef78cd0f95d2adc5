"""Asking a question and showing its answer as it comes, by the agent that runs on the state folder or by one started for the command."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from edge.cli.output import print_line, visible
from edge.cli.remote import running_agent
from edge.cli.starting import starting_lines
from edge.core.errors import CloudOff, EdgeError, UsageError
from edge.core.types import Message
from edge.privacy.rules import NeverSend
from edge.serve.ports import AnswerNote, Mode
from edge.serve.reasoning import ChannelText, Reading, read_answer
from edge.state.answer_record import AnswerRequest

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.cli.remote import RemoteAgent
    from edge.cli.settings import Settings
    from edge.config.loader import Resolved
    from edge.config.schema import AgentConfig
    from edge.serve.ports import AgentControl

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Reader:
    """Whoever answers: `read` streams one answer by channel, then its note; `control` looks and steers. Both may raise EdgeError."""

    read: Callable[[AnswerRequest], Reading]
    control: AgentControl


@dataclass(slots=True)
class Answer:
    """A finished answer by channel."""

    reasoning: str = ""
    content: str = ""
    note: AnswerNote = field(default_factory=lambda: AnswerNote(id="", source=""))

    @property
    def final(self) -> str:
        """The answer alone."""
        return self.note.final or self.content.strip() or self.reasoning.strip()

    def to_json(self) -> dict[str, Any]:
        """The answer, its channels, and what is known of it."""
        about = {name: value for name, value in self.note.to_json().items() if name != "final"}
        return {"answer": self.final, "content": self.content, "reasoning": self.reasoning, **about}


@asynccontextmanager
async def answering(settings: Settings, mode: str | None = None) -> AsyncIterator[Reader]:
    """The agent that runs on the state folder, or one started here for the time of the block, all of whose questions have this mode."""
    from edge.app import state_folder

    resolved = settings.resolve()
    async with running_agent(state_folder(resolved.config)) as remote:
        if remote is not None:
            _refuse_unmet(resolved, remote.url)
            yield _bounded(remote, resolved, NeverSend(settings.never_send or ()))
            return
    for line in starting_lines(resolved, learns=False):
        print_line(line)
    async with _started_agent(resolved.config, mode or resolved.config.mode) as agent:
        yield own_reader(agent)


def _bounded(remote: RemoteAgent, resolved: Resolved[AgentConfig], never_send: NeverSend) -> Reader:
    """A running agent under the mode that this caller has set anywhere, never asking the cloud where the caller may not, or with what
    breaks a rule of `never_send`. Its `read` raises CloudOff when the cloud is demanded all the same."""
    from edge.app import switched_off

    own_mode: Mode | None = resolved.config.mode if "mode" in resolved.origins else None
    off = switched_off(resolved.config)

    async def read(question: AnswerRequest) -> Reading:
        mode, no_cloud = question.mode or own_mode, off
        if never_send.broken([message.content for message in question.messages]):
            no_cloud = no_cloud or "--never-send forbids it"
        if no_cloud:
            if mode == "cloud-only":
                raise CloudOff(no_cloud)
            mode = "local-only"
        async with aclosing(remote.read(replace(question, mode=mode, no_cloud=no_cloud))) as events:
            async for event in events:
                yield event

    return Reader(read, remote)


def _refuse_unmet(resolved: Resolved[AgentConfig], url: str) -> None:
    """Raise UsageError for options that only a new agent could honour."""
    honoured = ("mode", "state_folder", "chat.history", "privacy.never_send")
    unmet = sorted({origin for key, origin in resolved.origins.items() if origin.startswith("--") and key not in honoured})
    if unmet:
        raise UsageError(f"an agent is running at {url} with its own settings", hint=f"leave out {' and '.join(unmet)}")


@asynccontextmanager
async def _started_agent(config: AgentConfig, mode: str) -> AsyncIterator[Agent]:
    from edge.app import build_agent
    from edge.console import ProblemLines

    if sys.stderr.isatty():
        print_line("starting: loading the model")
    problems = ProblemLines(
        sys.stderr, offline=mode != "cloud-only"
    )  # an answer that only the cloud may give fails with that reason
    async with build_agent(config, problems) as agent:
        yield agent


def own_reader(agent: Agent) -> Reader:
    """An agent of this process."""
    from edge.serve.running_agent import AgentAnswers, RunningAgent

    answers = AgentAnswers(agent)
    return Reader(lambda question: read_answer(answers.answer(question)), RunningAgent(agent))


def new_question(messages: Sequence[Message], mode: str | None, **more: Any) -> AnswerRequest:
    """A question under an id of its own. `more`: task, temperature, max_tokens, seed; None or absent is the agent's own choice."""
    return AnswerRequest(id=secrets.token_hex(8), messages=tuple(messages), mode=cast("Mode | None", mode), **more)


async def ask_and_show(reader: Reader, question: AnswerRequest, screen: Screen) -> Answer:
    """Ask, and show the answer on the screen as it comes. Raises EdgeError."""
    try:
        return await _shown(reader, question, screen)
    except BaseException:
        screen.cut()
        raise


async def _shown(reader: Reader, question: AnswerRequest, screen: Screen) -> Answer:
    answer = Answer()
    async with aclosing(reader.read(question)) as events:
        async for event in events:
            if isinstance(event, AnswerNote):
                answer.note = event
            else:
                _append(answer, event)
                screen.show(event)
    if not answer.note.id:
        raise EdgeError("the answer was cut off")
    screen.finish(answer)
    return answer


def _append(answer: Answer, event: ChannelText) -> None:
    if event.channel == "reasoning":
        answer.reasoning += event.text
    else:
        answer.content += event.text


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
        """Print it."""
        if self._full and answer.reasoning.strip():
            print(answer.reasoning.strip())
        print(answer.final, flush=True)


class Terminal(Screen):
    """For a person: everything as it comes, the reasoning dim. A boxed answer is shown at the end, without its box."""

    def __init__(self) -> None:
        self._content = ""
        self._shown = 0
        self._dim = False
        self._began = False

    def show(self, event: ChannelText) -> None:
        """Paint the piece."""
        if event.channel == "reasoning":
            self._paint(event.text, dim=True)
            return
        self._content += event.text
        if not _may_be_boxed(self._content):
            self._paint(self._content[self._shown :], dim=False)
            self._shown = len(self._content)

    def finish(self, answer: Answer) -> None:
        """Paint what was held back."""
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


def screen_for_stdout(*, full: bool = False, nothing: bool = False) -> Screen:
    """The screen that fits where stdout goes."""
    if nothing:
        return Screen()
    return Terminal() if sys.stdout.isatty() else Pipe(full=full)


def _may_be_boxed(content: str) -> bool:
    return content.startswith("\\boxed{") or "\\boxed{".startswith(content)
