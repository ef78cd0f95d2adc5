"""Any server that speaks OpenAI's chat completions (OpenAI, DeepSeek, vLLM, llama.cpp server, LiteLLM). Knows HTTP, server-sent events
and what a failure says about execution; knows nothing of budgets.

One total deadline holds over connecting, waiting, trickling keep-alive bytes and one extra attempt, which is made only after a request that
was definitely not executed. No provider SDK: their hidden retries bill twice. Keys and bodies reach no log and no error message.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
import msgspec

from coordinator.providers.openai_wire import Answer, SseLines, WireError, decode_answer, request_body, result_of, usage_of
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.core.errors import ConfigError

NOT_EXECUTED_KINDS_WORTH_A_SECOND_TRY = frozenset({"refused", "connect_timeout", "http_425", "http_429"})
_PERHAPS_EXECUTED_4XX = frozenset({408, 499})
_TOKENS_OF_A_TURN = 16
_TOKENS_OF_A_TEMPLATE = 256


@dataclass(frozen=True, slots=True)
class OpenAIEndpoint:
    """Where and how to ask. `base_url` ends before `/chat/completions` (as `https://api.openai.com/v1`).

    `api_key_env` names the environment variable with the key. `tokens_field` is how the server calls the output limit (`max_tokens`;
    newer OpenAI models want `max_completion_tokens`). Plain http is for loopback unless `allow_plaintext`. Idle connections are kept
    shorter than servers usually keep them, because a request on one that is just being closed counts as perhaps executed.
    """

    base_url: str
    api_key_env: str | None = None
    tokens_field: str = "max_tokens"
    allow_plaintext: bool = False
    max_response_bytes: int = 4 << 20
    connect_timeout_s: float = 10.0
    keep_alive_s: float = 2.0
    max_retry_wait_s: float = 5.0


class OpenAICompatibleProvider:
    """CloudProvider over HTTP. Raises ConfigError at once for a base URL that cannot be used."""

    def __init__(
        self, endpoint: OpenAIEndpoint, *, name: str = "openai_compatible", environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._url = chat_completions_url(endpoint)
        self._environ = os.environ if environ is None else environ
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def start(self) -> None:
        """Open the connection pool. Raises ConfigError when the key's variable is not set. Safe to call twice."""
        if self._session is not None or self._closed:
            return
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_mark_connected)
        trace.on_connection_reuseconn.append(_mark_connected)
        self._session = aiohttp.ClientSession(
            headers=self._headers(),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._endpoint.keep_alive_s),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._endpoint.connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
            trust_env=False,
        )

    def input_token_bound(self, request: ProviderRequest) -> int:
        """No tokenizer makes more tokens than bytes; templates add some to each turn."""
        texts = (turn.content.encode("utf-8", "replace") for turn in request.messages)
        return sum(len(text) + _TOKENS_OF_A_TURN for text in texts) + _TOKENS_OF_A_TEMPLATE

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once. Raises ProviderError."""
        end = asyncio.get_running_loop().time() + request.deadline_s
        response = await self._open(request, end, streamed=False)
        try:
            body = bytearray()
            while chunk := await self._read(response, end):
                body += chunk
                self._check_size(len(body))
        finally:
            response.close() if not response.content.at_eof() else response.release()
        return _finished(_decoded(body))

    async def stream(self, request: ProviderRequest) -> AsyncIterator[ProviderDelta]:
        """Complete once, piece by piece. Raises ProviderError."""
        end = asyncio.get_running_loop().time() + request.deadline_s
        response = await self._open(request, end, streamed=True)
        lines, answer = SseLines(), Answer()
        try:
            while not lines.done and (chunk := await self._read(response, end)):
                self._check_size(lines.size + len(chunk))
                for data in lines.feed(chunk):
                    if text := answer.add(_decoded(data)):
                        yield ProviderDelta(text)
        except WireError as error:
            raise _garbage(str(error), answer) from error
        finally:
            response.close()
        yield ProviderDelta("", _finished(answer))

    async def aclose(self) -> None:
        """Close the connection pool. Safe to call twice."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _open(self, request: ProviderRequest, end: float, *, streamed: bool) -> aiohttp.ClientResponse:
        """Send the request and return the response once it says 2xx; a second time only if the first was certainly not executed."""
        await self.start()
        try:
            return await self._send(request, end, streamed)
        except ProviderError as error:
            pause_s = self._pause_before_second_try(error, end)
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)
        return await self._send(request, end, streamed)

    def _pause_before_second_try(self, error: ProviderError, end: float) -> float | None:
        if error.executed is not False or error.kind not in NOT_EXECUTED_KINDS_WORTH_A_SECOND_TRY:
            return None
        pause_s = 0.2 if error.retry_after_s is None else error.retry_after_s
        left_s = end - asyncio.get_running_loop().time()
        return pause_s if pause_s <= self._endpoint.max_retry_wait_s and 2.0 * pause_s < left_s else None

    async def _send(self, request: ProviderRequest, end: float, streamed: bool) -> aiohttp.ClientResponse:
        if self._session is None:
            raise ProviderError("the provider is closed", kind="closed", executed=False)
        progress = SimpleNamespace(connected=False)
        body = request_body(request, self._endpoint.tokens_field, streamed=streamed)
        headers = {"Idempotency-Key": _header_text(request.idempotency_key), "Content-Type": "application/json"}
        try:
            async with asyncio.timeout_at(end):
                response = await self._session.post(
                    self._url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=progress
                )
        except TimeoutError as error:
            kind = "deadline" if progress.connected else "connect_timeout"
            raise ProviderError("the upstream did not answer in time", kind=kind, executed=_perhaps(progress)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _connection_error(error, progress) from error
        if 200 <= response.status < 300:
            return response
        response.close()
        raise self._status_error(response)

    async def _read(self, response: aiohttp.ClientResponse, end: float) -> bytes:
        """The next bytes of a body, b"" at its end. A body that breaks off was perhaps, an accepted one that is cut certainly, executed."""
        try:
            async with asyncio.timeout_at(end):
                return await response.content.readany()
        except TimeoutError as error:
            raise ProviderError("the upstream did not finish in time", kind="deadline", executed=None) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderError("the upstream broke off its answer", kind="cut", executed=None) from error

    def _check_size(self, size: int) -> None:
        if size > self._endpoint.max_response_bytes:
            message = f"the upstream's answer is larger than {self._endpoint.max_response_bytes} bytes"
            raise ProviderError(message, kind="too_large", executed=True)

    def _status_error(self, response: aiohttp.ClientResponse) -> ProviderError:
        """4xx (and a redirect, which is never followed) was not executed; 5xx perhaps."""
        status = response.status
        refused = 300 <= status < 500 and status not in _PERHAPS_EXECUTED_4XX
        hint = f"check the key in ${self._endpoint.api_key_env}" if status in (401, 403) and self._endpoint.api_key_env else ""
        return ProviderError(
            f"the upstream answered with HTTP status {status}",
            kind=f"http_{status}",
            executed=False if refused else None,
            retry_after_s=retry_after_s(response.headers),
            hint=hint,
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream", "User-Agent": "edge-coordinator"}
        variable = self._endpoint.api_key_env
        if not variable:
            return headers
        key = self._environ.get(variable, "").strip()
        if not key:
            raise ConfigError(f"upstream {self.name}: environment variable {variable} is not set", hint="set it to the API key")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"upstream {self.name}: the key in {variable} has characters that cannot be sent")
        return {**headers, "Authorization": f"Bearer {key}"}


def chat_completions_url(endpoint: OpenAIEndpoint) -> str:
    """The URL to post to. Raises ConfigError for a base URL that is malformed, carries secrets, or is plain http beyond loopback."""
    try:
        parts = urlsplit(endpoint.base_url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"base_url is malformed: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("base_url must look like https://HOST/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("base_url must carry no user, password, query or fragment", hint="put the key into api_key_env")
    if parts.scheme == "http" and not endpoint.allow_plaintext and not _is_loopback(host):
        raise ConfigError(f"base_url sends prompts to {host} unencrypted", hint="use https, or allow plaintext explicitly")
    return _with_path(parts, parts.path.rstrip("/").removesuffix("/chat/completions") + "/chat/completions")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by Retry-After: a number, or a date counted from the response's own Date; None where there is neither."""
    value = headers.get("Retry-After", "").strip()
    try:
        return float(int(value)) if value.isdigit() else _seconds_between(headers.get("Date", ""), value)
    except (ValueError, TypeError, OverflowError):
        return None


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


def _header_text(text: str) -> str:
    """A header value: printable ASCII without surprises."""
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in text)[:255]


async def _mark_connected(_session: Any, context: SimpleNamespace, _params: Any) -> None:
    """From here on the upstream may have seen the request."""
    context.trace_request_ctx.connected = True


def _perhaps(progress: SimpleNamespace) -> bool | None:
    return None if progress.connected else False


def _connection_error(error: Exception, progress: SimpleNamespace) -> ProviderError:
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


def _decoded(data: bytes | bytearray) -> Answer:
    try:
        return decode_answer(data)
    except (WireError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProviderError("the upstream's answer is not what it should be", kind="garbage", executed=True) from error


def _finished(answer: Answer) -> ProviderResult:
    try:
        return result_of(answer)
    except WireError as error:
        raise _garbage(str(error), answer) from error


def _garbage(message: str, answer: Answer) -> ProviderError:
    return ProviderError(message, kind="garbage", executed=True, usage=usage_of(answer))
