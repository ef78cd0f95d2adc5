"""The agent of a state folder: one that runs, found by the address it leaves there (endpoint.json) and spoken to over HTTP, or else the
folder itself."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edge.core.errors import ContextOverflow, CoordinatorUnavailable, EdgeError, NotFound, TooFewAnswers, UsageError
from edge.core.files import replacing
from edge.inference.channels import ChannelText
from edge.serve.errors import CLOUD_OFF
from edge.serve.ports import INSTANCE, MODELS, AnswerNote
from edge.serve.reasoning import Reading
from edge.serve.token_file import read_token
from edge.state.answer_record import AnswerRequest

if TYPE_CHECKING:
    import aiohttp

    from edge.config.schema import AgentConfig
    from edge.serve.ports import AgentControl

Result = TypeVar("Result")
_FILE = "endpoint.json"
_MODELS = {mode: name for name, mode in MODELS.items()}
_PROBE_S = 10.0
_SAMPLING = ("max_tokens", "temperature", "seed")


@contextmanager
def announced(state: Path, url: str, token_file: str | None = None) -> Iterator[None]:
    """Let other commands find the endpoint, and the token where it asks for one, while the block runs.

    The file is locked meanwhile; the system drops the lock when the process dies, however it dies.
    """
    file = state / _FILE
    path = None if token_file is None else str(Path(token_file).expanduser().absolute())
    written = {"url": url, "token_file": path, "pid": os.getpid(), "instance": INSTANCE}
    with replacing(file) as unannounced:
        unannounced.write_text(json.dumps(written), encoding="utf-8")
        held = os.open(unannounced, os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(held)


@asynccontextmanager
async def agent_control(config: AgentConfig) -> AsyncIterator[AgentControl]:
    """The agent that runs on the configured state folder; where none can be spoken to, the folder itself."""
    from edge.app.settings import state_folder

    async with running_agent(state_folder(config)) as remote:
        if remote is None:
            from edge.cli.folder_agent import FolderAgent

            yield FolderAgent(config)
        else:
            yield remote.control()


def ask_agent(config: AgentConfig, work: Callable[[AgentControl], Coroutine[Any, Any, Result]]) -> Result:
    """The result of `work` with that agent, for a command that asks for one thing."""

    async def ask() -> Result:
        async with agent_control(config) as agent:
            return await work(agent)

    return asyncio.run(ask())


@asynccontextmanager
async def running_agent(state: Path) -> AsyncIterator[RemoteAgent | None]:
    """The agent that runs on this state folder, or None. A file left by a killed agent is not believed, nor is an agent that did not write
    the file: another one, on another folder, may have the port now, or have it here while the file's agent has it in a container."""
    found = announcement(state)
    if found is None:
        yield None
        return
    import aiohttp

    token_file = found.get("token_file")
    headers = {"authorization": f"Bearer {read_token(Path(token_file))}"} if isinstance(token_file, str) else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        remote = RemoteAgent(session, found["url"], pid=found.get("pid"))
        yield remote if await remote.is_ours(str(found.get("instance"))) else None


def announcement(state: Path) -> dict[str, Any] | None:
    """url, token_file and pid of the endpoint file; None where there is none, or whoever wrote it is dead."""
    try:
        with (state / _FILE).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None  # nobody holds it any more
            except OSError:  # it is locked, or nobody can lock there and no more is known
                found = json.load(file)
        return found if isinstance(found, dict) and str(found.get("url")).startswith("http://") else None
    except (OSError, ValueError):
        return None


class RemoteAgent:
    """A running agent, by its HTTP endpoint. Every method may raise EdgeError with the agent's own words."""

    def __init__(self, session: aiohttp.ClientSession, url: str, pid: int | None = None) -> None:
        self._session = session
        self.url = url
        self.pid = pid

    async def is_ours(self, instance: str) -> bool:
        """Whether the endpoint of this process answers there."""
        import aiohttp

        try:
            async with self._session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(_PROBE_S)) as reply:
                health = await reply.json()
                return reply.status == 200 and health.get("status") == "ok" and health.get("instance") == instance
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError):
            return False

    async def read(self, question: AnswerRequest) -> Reading:
        """Stream one answer by channel, then its note."""
        import aiohttp

        given = {"task": question.task, "no_cloud": question.no_cloud}
        metadata = {name: text for name, text in given.items() if text}
        body = {
            "model": _MODELS[question.mode],
            "messages": [{"role": message.role, "content": message.content} for message in question.messages],
            "stream": True,
            **({} if not metadata else {"metadata": metadata}),
            **{name: value for name in _SAMPLING if (value := getattr(question, name)) is not None},
        }
        limits = aiohttp.ClientTimeout(total=None)
        try:
            async with self._session.post(f"{self.url}/v1/chat/completions", json=body, timeout=limits) as reply:
                await _raise_for(reply)
                async for line in reply.content:
                    for event in _events_of(line):
                        yield event
        except aiohttp.ClientError as error:
            raise EdgeError(f"the running agent at {self.url} went away ({type(error).__name__})") from error

    def control(self) -> AgentControl:
        """The same agent, to be read and controlled."""
        from edge.cli.remote_control import RemoteControl  # loads pydantic, which a question does without

        return RemoteControl(self)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Read what is at a path; with a body have something done, and wait until it is."""
        import aiohttp

        doing: dict[str, Any] = {} if body is None else {"json": dict(body), "timeout": aiohttp.ClientTimeout(total=None)}
        try:
            async with self._session.request("GET" if body is None else "POST", self.url + path, **doing) as reply:
                await _raise_for(reply)
                return await reply.json()
        except aiohttp.ClientError as error:
            raise EdgeError(f"the running agent at {self.url} went away ({type(error).__name__})") from error


async def _raise_for(reply: aiohttp.ClientResponse) -> None:
    if reply.status < 400:
        return
    if reply.status == 401:
        raise EdgeError(
            "the running agent does not take the token that is in its token file now",
            hint="start it again, so that it reads this one",
        )
    try:
        error = (await reply.json())["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": f"HTTP {reply.status}"}
    message, code = str(error.get("message")), str(error.get("code"))
    by_code: dict[str, type[EdgeError]] = {"context_length_exceeded": ContextOverflow, "too_few_answers": TooFewAnswers}
    by_code[CLOUD_OFF] = EdgeError  # no wrong usage, like CloudOff here
    by_status: dict[int, type[EdgeError]] = {400: UsageError, 404: NotFound, 503: CoordinatorUnavailable}
    raise (by_code.get(code) or by_status.get(reply.status, EdgeError))(message)


def _events_of(line: bytes) -> Iterator[ChannelText | AnswerNote]:
    """Text and note of one line of the event stream. Raises EdgeError for an error that came in the stream."""
    if not line.startswith(b"data: {"):
        return
    value = json.loads(line.removeprefix(b"data: "))
    if "error" in value:
        raise EdgeError(str(value["error"].get("message")))
    for choice in value.get("choices", ()):
        for field, channel in (("reasoning_content", "reasoning"), ("content", "content")):
            if choice["delta"].get(field):
                yield ChannelText(channel, choice["delta"][field])
    if "edge" in value:
        known = {field.name for field in fields(AnswerNote)}
        yield AnswerNote(**{name: item for name, item in value["edge"].items() if name in known})
