"""The agent of a state folder: one that runs, found by the address it leaves there (endpoint.json) and spoken to over HTTP, or else the
folder itself."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import fields
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from edge.core.errors import ContextOverflow, CoordinatorUnavailable, EdgeError, NotFound, TooFewAnswers, UsageError
from edge.core.files import replacing
from edge.serve.errors import CLOUD_OFF
from edge.serve.ports import INSTANCE, MODELS, AnswerNote
from edge.serve.token_file import read_token

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig
    from edge.inference.channels import ChannelText
    from edge.serve.ports import AgentControl
    from edge.serve.reasoning import Reading
    from edge.state.answer_record import AnswerRequest

Result = TypeVar("Result")
_FILE = "endpoint.json"
_MODELS = {mode: name for name, mode in MODELS.items()}
_PROBE_S, _READ_S = 10.0, 300.0
_PIECE_BYTES = 1 << 16
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
    token_file = found.get("token_file")
    token = read_token(Path(token_file)) if isinstance(token_file, str) else ""
    remote = RemoteAgent(found["url"], token, pid=found.get("pid"), token_file=str(token_file) if token else "")
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

    def __init__(self, url: str, token: str = "", pid: int | None = None, token_file: str = "") -> None:
        self.url = url
        self.pid = pid
        self.token, self.token_file = token, token_file
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def is_ours(self, instance: str) -> bool:
        """Whether the endpoint of this process answers there."""
        try:
            async with self._reply("/health", limit_s=_PROBE_S) as reply:
                health = json.loads(await asyncio.to_thread(reply.read))
                return reply.status == 200 and health.get("status") == "ok" and health.get("instance") == instance
        except (EdgeError, HTTPException, ValueError, AttributeError):
            return False

    async def read(self, question: AnswerRequest) -> Reading:
        """Stream one answer by channel, then its note."""
        given = {"task": question.task, "no_cloud": question.no_cloud, "form": "reasoned" if question.reasoned else ""}
        metadata = {name: text for name, text in given.items() if text}
        body = {
            "model": _MODELS[question.mode],
            "messages": [{"role": message.role, "content": message.content} for message in question.messages],
            "stream": True,
            **({} if not metadata else {"metadata": metadata}),
            **{name: value for name in _SAMPLING if (value := getattr(question, name)) is not None},
        }
        async with self._reply("/v1/chat/completions", body) as reply:
            await _raise_for(reply)
            rest = b""
            while piece := await asyncio.to_thread(reply.read1, _PIECE_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                for event in (event for line in lines for event in _events_of(line)):
                    yield event

    def control(self) -> AgentControl:
        """The same agent, to be read and controlled."""
        from edge.cli.remote_control import RemoteControl  # loads pydantic, which a question does without

        return RemoteControl(self)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Read what is at a path; with a body have something done, and wait until it is."""
        async with self._reply(path, body, limit_s=_READ_S if body is None else None) as reply:
            await _raise_for(reply)
            return json.loads(await asyncio.to_thread(reply.read))

    @asynccontextmanager
    async def _reply(
        self, path: str, body: Mapping[str, Any] | None = None, limit_s: float | None = None
    ) -> AsyncIterator[HTTPResponse]:
        """The reply to one request, over a connection of its own, whose blocking reads are for a thread: the standard library's client is
        loaded in a fraction of the time that others take. Whoever leaves the block ends a read under way."""
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=limit_s)
        sockets: list[socket.socket] = []

        def send() -> HTTPResponse:
            connection.connect()
            sockets.append(connection.sock)
            data = None if body is None else json.dumps(body).encode()
            connection.request(
                "GET" if data is None else "POST", path, data, {**self._headers, "content-type": "application/json"}
            )
            return connection.getresponse()

        try:
            yield await asyncio.to_thread(send)
        except (OSError, HTTPException) as error:
            raise EdgeError(f"the running agent at {self.url} went away ({type(error).__name__})") from error
        finally:
            for connected in sockets:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
            connection.close()


async def _raise_for(reply: HTTPResponse) -> None:
    if reply.status < 400:
        return
    if reply.status == 401:
        raise EdgeError(
            "the running agent does not take the token that is in its token file now",
            hint="start it again, so that it reads this one",
        )
    try:
        error = json.loads(await asyncio.to_thread(reply.read))["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": f"HTTP {reply.status}"}
    message, code = str(error.get("message")), str(error.get("code"))
    by_code: dict[str, type[EdgeError]] = {"context_length_exceeded": ContextOverflow, "too_few_answers": TooFewAnswers}
    by_code[CLOUD_OFF] = EdgeError  # no wrong usage, like CloudOff here
    by_status: dict[int, type[EdgeError]] = {400: UsageError, 404: NotFound, 503: CoordinatorUnavailable}
    raise (by_code.get(code) or by_status.get(reply.status, EdgeError))(message)


def _events_of(line: bytes) -> Iterator[ChannelText | AnswerNote]:
    """Text and note of one line of the event stream. Raises EdgeError for an error that came in the stream."""
    from edge.inference.channels import ChannelText

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
