"""Finding an agent that already runs on a state folder, and talking to it. Knows the endpoint file and our HTTP routes.

`edge-agent run` leaves its address in the state folder, so that `ask`, `chat`, `why`, `budget` and `adapters` use the agent that is there
instead of failing at its lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from edge.core.errors import ContextOverflow, CoordinatorUnavailable, EdgeError, NotFound, UsageError
from edge.core.files import replacing
from edge.serve.failures import CLOUD_OFF
from edge.serve.openai_wire import MODELS
from edge.serve.ports import AnswerNote, Question
from edge.serve.reasoning import ChannelText, Reading
from edge.serve.token import read_token

if TYPE_CHECKING:
    import aiohttp

_FILE = "endpoint.json"
_MODELS = {mode: name for name, mode in MODELS.items()}
_PROBE_S = 2.0
_SAMPLING = ("max_tokens", "temperature", "seed")


@contextmanager
def announced(state: Path, url: str, token_file: str | None = None) -> Iterator[None]:
    """Let other commands find the endpoint, and the token where it asks for one, while the block runs.

    The file is locked meanwhile; the system drops the lock when the process dies, however it dies.
    """
    file = state / _FILE
    path = None if token_file is None else str(Path(token_file).expanduser().absolute())
    with replacing(file) as unannounced:
        unannounced.write_text(json.dumps({"url": url, "token_file": path}), encoding="utf-8")
        held = os.open(unannounced, os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(held)


@asynccontextmanager
async def running_agent(state: Path) -> AsyncIterator[RemoteAgent | None]:
    """The agent that runs on this state folder, or None. A file left by a killed agent is not believed: another one, on another folder,
    may have its port now."""
    url = _announced_url(state)
    if url is None:
        yield None
        return
    import aiohttp

    async with aiohttp.ClientSession(headers=_credentials(state)) as session:
        remote = RemoteAgent(session, url)
        yield remote if await remote.answers_at_all() else None


class RemoteAgent:
    """A running agent behind its HTTP endpoint."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def answers_at_all(self) -> bool:
        """Whether an endpoint of ours is there."""
        import aiohttp

        try:
            async with self._session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(_PROBE_S)) as reply:
                return reply.status == 200 and (await reply.json()).get("status") == "ok"
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError):
            return False

    async def read(self, question: Question) -> Reading:
        """Stream one answer by channel, then its note."""
        import aiohttp

        told = {"task": question.task, "no_cloud": question.no_cloud}
        metadata = {name: text for name, text in told.items() if text}
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

    async def why(self, answer_id: str) -> Mapping[str, Any]:
        """The record of an answer. Raises NotFound."""
        return await self.get(f"/api/why/{quote(answer_id, safe='')}")

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
        """Have the agent keep what a person says of an answer. Raises NotFound."""
        return await self.post("/api/feedback", {"id": answer_id, "verdict": verdict, "correction": correction})

    async def status(self) -> Mapping[str, Any]:
        """What the agent is doing now."""
        return await self.get("/api/status")

    async def budgets(self) -> Mapping[str, Any]:
        """The budgets of all tasks with their dials."""
        return await self.get("/api/budget")

    async def get(self, path: str) -> Mapping[str, Any]:
        """A JSON object from the running agent. Raises EdgeError with the agent's own words."""
        import aiohttp

        try:
            async with self._session.get(self.url + path) as reply:
                await _raise_for(reply)
                value: Mapping[str, Any] = await reply.json()
                return value
        except aiohttp.ClientError as error:
            raise EdgeError(f"the running agent at {self.url} went away ({type(error).__name__})") from error

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have the running agent do something; waits until it is done. Raises EdgeError with the agent's own words."""
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None)
        try:
            async with self._session.post(self.url + path, json=dict(body), timeout=limits) as reply:
                await _raise_for(reply)
                value: Mapping[str, Any] = await reply.json()
                return value
        except aiohttp.ClientError as error:
            raise EdgeError(f"the running agent at {self.url} went away ({type(error).__name__})") from error


def _announced(state: Path, name: str) -> str | None:
    try:
        with (state / _FILE).open(encoding="utf-8") as file:
            told = json.load(file)[name] if _is_held(file.fileno()) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return told if isinstance(told, str) else None


def _is_held(file: int) -> bool:
    """Whether whoever wrote the file still lives."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is locked, or nobody can lock there and no more is known
        return True
    return False


def _announced_url(state: Path) -> str | None:
    url = _announced(state, "url")
    return url if url and url.startswith("http://") else None


def _credentials(state: Path) -> dict[str, str]:
    """The header that shows the agent's token, where it asks for one. Raises ConfigError when the token cannot be read."""
    path = _announced(state, "token_file")
    return {"authorization": f"Bearer {read_token(Path(path))}"} if path else {}


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
    raise _error_of(reply.status, str(error.get("code")), str(error.get("message")))


def _error_of(status: int, code: str, message: str) -> EdgeError:
    if code == "context_length_exceeded":
        return ContextOverflow(message)
    if code == CLOUD_OFF:  # no wrong usage, like CloudOff here
        return EdgeError(message)
    kinds: dict[int, type[EdgeError]] = {400: UsageError, 404: NotFound, 503: CoordinatorUnavailable}
    return kinds.get(status, EdgeError)(message)


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
