"""One POST to an upstream, and its body as it comes: deadlines, sizes, keys, and whether a failed request was executed.

One total deadline holds over connecting, waiting and trickling keep-alive bytes. What was perhaps executed is never sent again: no retry,
no redirect, no cookie, no proxy from the environment. Only a request that was refused for a field that it can do without is sent once more
without it, within the same deadline. Keys and bodies reach no log and no error message.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from coordinator.config_secrets import read_secret
from coordinator.providers.http1 import BadResponse, Connection, Pool, TooLarge, request_head
from coordinator.providers.provider import ProviderError, ProviderRequest
from coordinator.providers.reported import ReportedError, TakenFields, refusal_in
from edge.core.errors import ConfigError
from edge.rpc.address import is_loopback

_PERHAPS_EXECUTED_4XX = frozenset({408, 499})
_REFUSES_FIELDS = frozenset({400, 422})
LONGEST_WAIT_S = 86400.0
_ERROR_BODY_S = 1.0
_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,60}")
_STATUS_HINTS = {
    400: "check the model's name",
    402: "the provider wants to be paid first",
    404: "check base_url and the model's name",
    429: "the upstream's own rate limit; lower max_concurrency where it lasts",
}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes of a response and seconds of a connection."""

    max_response_bytes: int = 4 << 20
    connect_timeout_s: float = 10.0
    keep_alive_s: float = 2.0
    """Shorter than servers usually keep idle connections, because a request on one that is just being closed counts as perhaps
    executed."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key."""

    name: str
    """Its `UpstreamConfig.key_name`."""
    header: str = "Authorization"
    """The header it goes into."""
    prefix: str = "Bearer "
    """What comes before it there."""

    def headers(self, upstream: str, environ: Mapping[str, str]) -> dict[str, str]:
        """The header. Raises ConfigError when the variable is not set, the file cannot be used, or the key cannot be sent."""
        try:
            return {self.header: f"{self.prefix}{read_secret(self.name, environ)}"}
        except ConfigError as error:
            raise ConfigError(f"upstream {upstream}: {error}", hint=error.hint) from error


@dataclass(slots=True, eq=False, repr=False)
class HttpUpstream:
    """A connection pool for one URL."""

    name: str
    url: str
    key: ApiKey | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    limits: HttpLimits = field(default_factory=HttpLimits)
    environ: Mapping[str, str] | None = None
    replaceable: Mapping[str, str] = field(default_factory=dict)
    """The fields that a request can do without, see TakenFields."""
    _head: bytes = b""
    _pool: Pool | None = None
    _closed: bool = False
    _taken: TakenFields = field(init=False)

    def __post_init__(self) -> None:
        self._taken = TakenFields(self.name, self.replaceable)

    async def start(self) -> None:
        """Open the connection pool. Raises ConfigError when the key's variable is not set. Safe to call twice."""
        if self._pool is None and not self._closed:
            self._head = request_head(self.url, self._all_headers())
            self._pool = Pool(self.url, self.limits.connect_timeout_s, self.limits.keep_alive_s)

    async def aclose(self) -> None:
        """Close the connection pool. Safe to call twice."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    async def post(self, body: Mapping[str, Any], asked: ProviderRequest) -> HttpReply:
        """Send a request's body, without what its model does not take, and return its response if its status is 2xx. Its deadline holds for
        the whole response; raises ProviderError."""
        await self.start()
        pool = self._pool
        if pool is None:
            raise ProviderError("the provider is closed", kind="closed", executed=False)
        end, refused = pool.now() + asked.deadline_s, set[str]()
        while True:
            fitted = self._taken.fitted(body)
            connection = await self._answered(pool, fitted, asked, end, len(refused))
            if 200 <= connection.status < 300:
                return HttpReply(pool, connection)
            try:
                error = await self._error_of(connection)
            finally:
                pool.give_back(connection)
            name = error.not_taken(fitted, asked) if connection.status in _REFUSES_FIELDS else ""
            refused.add(name)
            if not self._taken.replace(asked.model, name, refused):
                raise self._status_error(connection, error.words(asked))

    async def _answered(self, pool: Pool, body: Mapping[str, Any], asked: ProviderRequest, end: float, number: int) -> Connection:
        """The connection with the head of the response to a request. Each body of one call has a key of its own, as another request has."""
        try:
            connection = await pool.take(end)
        except (OSError, UnicodeError) as error:
            raise _connection_error(error) from error
        try:
            connection.send(self._request(msgspec.json.encode(body), asked, number), end, self.limits.max_response_bytes)
            try:
                await connection.head()
            except _FAILURES as error:
                raise _failure(error, "answer", "the upstream closed the connection without an answer") from error
        except BaseException:
            pool.give_back(connection)
            raise
        return connection

    def _request(self, body: bytes, asked: ProviderRequest, number: int) -> bytes:
        trace = "".join(f"{name}: {_printable(value)}\r\n" for name, value in asked.trace_headers)
        key = _printable(asked.idempotency_key)[:250] + (f"|{number}" if number else "")
        own = f"{trace}Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        return self._head + own.encode("ascii") + body

    async def _error_of(self, connection: Connection) -> ReportedError:
        """What an error body reports, as far as it comes in time; what is wrong with it does not matter any more."""
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                return refusal_in(await connection.rest())
        except (TimeoutError, BadResponse, TooLarge):
            return ReportedError()

    def _status_error(self, response: Connection, words: str) -> ProviderError:
        """4xx (and a redirect, which is never followed) was not executed; 5xx perhaps."""
        status = response.status
        refused = 300 <= status < 500 and status not in _PERHAPS_EXECUTED_4XX
        hint = _key_hint(self.key) if status in (401, 403) else _STATUS_HINTS.get(status, "")
        if status >= 500:
            hint = "the upstream failed; its own log says why"
        elif status < 400:
            hint = "redirects are not followed; write the address it answers at into base_url"
        return ProviderError(
            f"the upstream answered with HTTP status {status}{words and f' ({words})'}",
            kind=f"http_{status}",
            executed=False if refused else None,
            retry_after_s=retry_after_s(response.headers),
            words=words,
            hint=hint,
        )

    def _all_headers(self) -> dict[str, str]:
        key = {} if self.key is None else self.key.headers(self.name, os.environ if self.environ is None else self.environ)
        own = {"User-Agent": "edge-coordinator", "Accept": "application/json, text/event-stream", "Accept-Encoding": "identity"}
        return {**own, "Content-Type": "application/json", **self.headers, **key}


class HttpReply:
    """A response that said 2xx. Read it whole, or piece by piece; `close` it in any case."""

    def __init__(self, pool: Pool, connection: Connection) -> None:
        self._pool = pool
        self._connection = connection
        self._headers = connection.headers

    @property
    def media_type(self) -> str:
        """The media type that the response names, such as `application/json`; what is no media type at all is not repeated."""
        found = self._headers.get("Content-Type", "").partition(";")[0].strip().lower()
        return found if _MEDIA_TYPE.fullmatch(found) else "no known media type"

    async def whole(self) -> bytes:
        """The rest of the body, by its end. Raises ProviderError."""
        return await self._read(self._connection.rest)

    async def piece(self) -> bytes:
        """The next bytes, b"" at the end. Raises ProviderError: in time or not, a body that broke off was perhaps executed."""
        return await self._read(self._connection.read)

    async def _read(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        try:
            return await read()
        except _FAILURES as error:
            raise _failure(error, "finish", "the upstream broke off its answer") from error

    async def visible_piece(self) -> bytes:
        """The next bytes from the first that is no blank on, b"" at the end. Raises ProviderError."""
        while chunk := await self.piece():
            if visible := chunk.lstrip():
                return visible
        return b""

    def close(self) -> None:
        """Give the connection back when the body was read to its end, else close it."""
        self._pool.give_back(self._connection)


class SseLines:
    """Splits an event stream into the data of its events; `done` after `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data lines that this chunk completes; comments and other fields are skipped."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field != b"data" or self.done:
                continue
            if value.strip() == b"[DONE]":
                self.done = True
            else:
                yield value.strip()


def _key_hint(key: ApiKey | None) -> str:
    """What to look at when an upstream lets nobody in."""
    if key is None:
        return "no API key is sent; set api_key or api_key_env"
    return f"check the API key in {key.name if key.name.startswith('file:') else f'${key.name}'}"


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
    if parts.scheme == "http" and not allow_plaintext and not (is_loopback(host) or host.endswith(".localhost")):
        raise ConfigError(f"base_url sends prompts to {host} unencrypted", hint="use https, or set allow_plaintext: true")
    return parts._replace(path=parts.path.rstrip("/").removesuffix(path) + path).geturl()


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by Retry-After: a number, or a date counted from the response's own Date; None where there is neither. More than a
    day counts as a day.
    """
    value = headers.get("Retry-After", "").strip()
    try:
        if value.isdecimal():
            return min(float(value[:10]), LONGEST_WAIT_S)
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("Date", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, wait.total_seconds()), LONGEST_WAIT_S)


def _printable(text: str) -> str:
    """A header value: printable ASCII without surprises."""
    return text if text.isascii() and text.isprintable() else "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


_FAILURES = (TimeoutError, BadResponse, TooLarge)


def _failure(error: Exception, verb: str, broken: str) -> ProviderError:
    """What went wrong with a request that was sent: perhaps executed, and certainly where its answer is too large."""
    match error:
        case TimeoutError():
            return ProviderError(f"the upstream did not {verb} in time", kind="deadline", executed=None)
        case TooLarge():
            return ProviderError(f"the upstream's answer is larger than {error} bytes", kind="too_large", executed=True)
        case _:
            return ProviderError(broken, kind="disconnected" if verb == "answer" else "cut", executed=None)


def _connection_error(error: Exception) -> ProviderError:
    """A connection that never stood was certainly not used."""
    match error:
        case TimeoutError():
            return ProviderError("the upstream did not answer in time", kind="connect_timeout", executed=False)
        case socket.gaierror() | UnicodeError():
            return ProviderError("the upstream's name cannot be resolved", kind="dns", executed=False)
        case ssl.SSLError():
            return ProviderError("no secure connection to the upstream can be made", kind="tls", executed=False)
        case _:
            return ProviderError("the upstream cannot be reached", kind="refused", executed=False)
