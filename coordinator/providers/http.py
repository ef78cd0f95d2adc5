"""One POST to an upstream, and its body as it comes. Knows HTTP, deadlines, sizes, keys and what a failure says about execution; knows
nothing of what is asked or answered.

One total deadline holds over connecting, waiting and trickling keep-alive bytes. A request is sent once: no retry, no redirect, no cookie,
no proxy from the environment. Keys and bodies reach no log and no error message.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp

from coordinator.providers.provider import ProviderError, ProviderRequest
from edge.core.errors import ConfigError

_PERHAPS_EXECUTED_4XX = frozenset({408, 499})
_MOST_ERROR_BYTES = 1 << 16
LONGEST_WAIT_S = 86400.0
_ERROR_BODY_S = 1.0
_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,60}")
_STATUS_HINTS = {
    402: "the provider wants to be paid first",
    404: "check base_url and the model's name",
    429: "the upstream's own rate limit; lower max_concurrency where it lasts",
}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes of a response and seconds of a connection. Idle connections are kept shorter than servers usually keep them, because a request
    on one that is just being closed counts as perhaps executed.
    """

    max_response_bytes: int = 4 << 20
    connect_timeout_s: float = 10.0
    keep_alive_s: float = 2.0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key: the environment variable that holds it, or `file:/PATH`, and the header it goes into, before it `prefix`."""

    env: str
    header: str = "Authorization"
    prefix: str = "Bearer "

    def headers(self, name: str, environ: Mapping[str, str]) -> dict[str, str]:
        """The header. Raises ConfigError when the variable is not set, the file cannot be used, or the key cannot be sent."""
        try:
            key = environ.get(self.env, "").strip()
        except ConfigError as error:
            raise ConfigError(f"upstream {name}: {error}", hint=error.hint) from error
        if not key:
            raise ConfigError(f"upstream {name}: environment variable {self.env} is not set", hint="set it to the API key")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"upstream {name}: the key in {self.env} has characters that cannot be sent")
        return {self.header: f"{self.prefix}{key}"}


ReadError = Callable[[bytes], str]


@dataclass(slots=True)
class _Progress:
    """How far a request has come: its connection stands; its response says 2xx."""

    connected: bool = False
    answers: bool = False


_PROGRESS: ContextVar[_Progress] = ContextVar("progress")


class _Connector(aiohttp.TCPConnector):
    """Notes that the request of this context has its connection; aiohttp's own tracing tells it too, and costs a tenth of a call."""

    async def connect(self, *request: Any, **more: Any) -> Any:
        """A connection, new or out of the pool; not one on which bytes came that nobody had asked for: they would answer this request."""
        connection = await super().connect(*request, **more)
        while connection.protocol is not None and connection.protocol.should_close:
            connection.close()
            connection = await super().connect(*request, **more)
        _PROGRESS.get().connected = True
        return connection


class HttpUpstream:
    """A connection pool for one URL. `error_word` finds the short word for a failure in an error body, or ""."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        key: ApiKey | None = None,
        headers: Mapping[str, str] | None = None,
        limits: HttpLimits | None = None,
        environ: Mapping[str, str] | None = None,
        error_word: ReadError | None = None,
    ) -> None:
        self.name = name
        self._url = url
        self._key = key
        self._headers = dict(headers or {})
        self._limits = limits or HttpLimits()
        self._environ = os.environ if environ is None else environ
        self._error_word = error_word
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def start(self) -> None:
        """Open the connection pool. Raises ConfigError when the key's variable is not set. Safe to call twice."""
        if self._session is not None or self._closed:
            return
        self._session = aiohttp.ClientSession(
            headers=self._all_headers(),
            connector=_Connector(limit=0, keepalive_timeout=self._limits.keep_alive_s),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close the connection pool. Safe to call twice."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, body: bytes, asked: ProviderRequest, end: float) -> Reply:
        """Send a request's body once and return its response when it says 2xx, by `end` (loop time). Raises ProviderError."""
        connected = _Progress()
        with _failures_told(connected):
            async with asyncio.timeout_at(end):
                response = await self._send(body, asked, connected)
        return await self._accepted(response, end)

    async def ask(self, body: bytes, asked: ProviderRequest, end: float) -> tuple[Reply, bytes]:
        """The same with the whole body of the response, under one timer; the reply is closed. Raises ProviderError."""
        connected = _Progress()
        with _failures_told(connected):
            async with asyncio.timeout_at(end):
                response = await self._send(body, asked, connected)
                if _is_accepted(response):
                    reply = Reply(response, end, self._limits.max_response_bytes)
                    connected.answers = True
                    try:
                        return reply, await reply.rest()
                    finally:
                        reply.close()
        await self._accepted(response, end)
        raise AssertionError("what was not accepted raises")

    async def _send(self, body: bytes, asked: ProviderRequest, connected: _Progress) -> aiohttp.ClientResponse:
        await self.start()
        if self._session is None:
            raise ProviderError("the provider is closed", kind="closed", executed=False)
        _PROGRESS.set(connected)
        key = header_text(asked.idempotency_key)
        headers = {**dict(asked.trace_headers), "Idempotency-Key": key, "Content-Type": "application/json"}
        return await self._session.post(self._url, data=body, headers=headers, allow_redirects=False)

    async def _accepted(self, response: aiohttp.ClientResponse, end: float) -> Reply:
        if _is_accepted(response):
            return Reply(response, end, self._limits.max_response_bytes)
        word = await self._word_of(response, end)
        response.close()
        raise self._status_error(response, word)

    async def _word_of(self, response: aiohttp.ClientResponse, end: float) -> str:
        """The short word of an error body, "" where there is none in time; what is wrong with it does not matter any more."""
        if self._error_word is None:
            return ""
        try:
            async with asyncio.timeout_at(min(end, asyncio.get_running_loop().time() + _ERROR_BODY_S)):
                return self._error_word(await response.content.read(_MOST_ERROR_BYTES))
        except (TimeoutError, aiohttp.ClientError, OSError):
            return ""

    def _status_error(self, response: aiohttp.ClientResponse, word: str) -> ProviderError:
        """4xx (and a redirect, which is never followed) was not executed; 5xx perhaps."""
        status = response.status
        refused = 300 <= status < 500 and status not in _PERHAPS_EXECUTED_4XX
        hint = _key_hint(self._key) if status in (401, 403) else _STATUS_HINTS.get(status, "")
        if status >= 500:
            hint = "the upstream failed; its own log says why"
        return ProviderError(
            f"the upstream answered with HTTP status {status}{word and f' ({word})'}",
            kind=f"http_{status}",
            executed=False if refused else None,
            retry_after_s=retry_after_s(response.headers),
            hint=hint,
        )

    def _all_headers(self) -> dict[str, str]:
        key = {} if self._key is None else self._key.headers(self.name, self._environ)
        return {"Accept": "application/json, text/event-stream", "User-Agent": "edge-coordinator", **self._headers, **key}


class Reply:
    """A response that said 2xx. Read it whole, or piece by piece; `close` it in any case."""

    def __init__(self, response: aiohttp.ClientResponse, end: float, max_bytes: int) -> None:
        self._response = response
        self._end = end
        self._max_bytes = max_bytes
        self._size = 0

    @property
    def media_type(self) -> str:
        """What the response says that its body is, such as `application/json`; what is no media type at all is not repeated."""
        told = self._response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        return told if _MEDIA_TYPE.fullmatch(told) else "no known media type"

    async def whole(self) -> bytes:
        """The whole body, by its end. Raises ProviderError."""
        with _failures_told(_Progress(connected=True, answers=True)):
            async with asyncio.timeout_at(self._end):
                return await self.rest()

    async def rest(self) -> bytes:
        """The same; how long it may take is the caller's business."""
        body = bytearray()
        while chunk := await self._next():
            body += chunk
        return bytes(body)

    async def piece(self) -> bytes:
        """The next bytes, b"" at the end. Raises ProviderError: in time or not, a body that broke off was perhaps executed."""
        with _failures_told(_Progress(connected=True, answers=True)):
            async with asyncio.timeout_at(self._end):
                return await self._next()

    async def _next(self) -> bytes:
        chunk = await self._response.content.readany()
        self._size += len(chunk)
        if self._size > self._max_bytes:
            message = f"the upstream's answer is larger than {self._max_bytes} bytes"
            raise ProviderError(message, kind="too_large", executed=True)
        return chunk

    async def visible_piece(self) -> bytes:
        """The next bytes from the first that is no blank on, b"" at the end. Raises ProviderError."""
        while chunk := await self.piece():
            if visible := chunk.lstrip():
                return visible
        return b""

    def close(self) -> None:
        """Give the connection back when the body was read to its end, else close it."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


def _key_hint(key: ApiKey | None) -> str:
    """What to look at when an upstream lets nobody in."""
    if key is None:
        return "no API key is sent; set api_key or api_key_env"
    return f"check the API key in {key.env if key.env.startswith('file:') else f'${key.env}'}"


def endpoint_url(base_url: str, path: str, *, allow_plaintext: bool) -> str:
    """`base_url` with `path` at its end. Raises ConfigError for a base URL that is malformed, carries secrets, or is plain http beyond
    loopback.
    """
    try:
        parts = urlsplit(base_url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"base_url is malformed: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("base_url must look like https://HOST/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("base_url must carry no user, password, query or fragment", hint="put the key into api_key_env")
    if parts.scheme == "http" and not allow_plaintext and not _is_loopback(host):
        raise ConfigError(f"base_url sends prompts to {host} unencrypted", hint="use https, or set allow_plaintext: true")
    return _with_path(parts, parts.path.rstrip("/").removesuffix(path) + path)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by Retry-After: a number, or a date counted from the response's own Date; None where there is neither. More than a
    day counts as a day.
    """
    value = headers.get("Retry-After", "").strip()
    try:
        wait_s = _whole_seconds(value) if value.isdecimal() else _seconds_between(headers.get("Date", ""), value)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(wait_s, LONGEST_WAIT_S)


def header_text(text: str) -> str:
    """A header value: printable ASCII without surprises."""
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in text)[:255]


def _whole_seconds(digits: str) -> float:
    return float(digits) if len(digits) < 10 else LONGEST_WAIT_S


def _seconds_between(start: str, end: str) -> float:
    return max(0.0, (parsedate_to_datetime(end) - parsedate_to_datetime(start)).total_seconds())


def _with_path(parts: SplitResult, path: str) -> str:
    return parts._replace(path=path).geturl()


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_accepted(response: aiohttp.ClientResponse) -> bool:
    return 200 <= response.status < 300


@contextmanager
def _failures_told(progress: _Progress) -> Iterator[None]:
    """What goes wrong with a request, as the error that says whether it was executed."""
    try:
        yield
    except TimeoutError as error:
        what = "finish" if progress.answers else "answer"
        kind = "deadline" if progress.connected else "connect_timeout"
        executed = None if progress.connected else False
        raise ProviderError(f"the upstream did not {what} in time", kind=kind, executed=executed) from error
    except (aiohttp.ClientError, OSError) as error:
        if progress.answers:
            raise ProviderError("the upstream broke off its answer", kind="cut", executed=None) from error
        raise _connection_error(error, progress) from error


def _connection_error(error: Exception, progress: _Progress) -> ProviderError:
    """A connection that never stood was certainly not used; one that broke perhaps."""
    if progress.connected:
        return ProviderError("the upstream closed the connection without an answer", kind="disconnected", executed=None)
    match error:
        case aiohttp.ClientConnectorDNSError():
            return ProviderError("the upstream's name cannot be resolved", kind="dns", executed=False)
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            return ProviderError("no secure connection to the upstream can be made", kind="tls", executed=False)
        case _:
            return ProviderError("the upstream cannot be reached", kind="refused", executed=False)
