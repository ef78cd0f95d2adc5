"""An HTTP/1.1 listener: its address, TLS, routes by path, and who a request is from.

Without TLS it listens on loopback alone, and a request is served when its Host names loopback, so that no foreign page reaches it by DNS
rebinding; what that does not protect against: other programs of this machine. Requests that a browser reports as another page's are
refused. A connection on which nothing runs and nothing was answered for `idle_s` is closed, so that half requests do not use up the
process's descriptors; a body has as long to arrive.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from coordinator.config import TlsConfig
from coordinator.service.authentication import CallFacts
from coordinator.service.tls import side_address
from edge.core.errors import ConfigError, CoordinatorError, InvalidRequest, PermissionDenied
from edge.rpc.address import Address

log = logging.getLogger(__name__)
_OF_AIOHTTP = logging.getLogger(f"{__name__}.aiohttp")
_OF_AIOHTTP.setLevel(logging.CRITICAL + 1)
"""Silent: what aiohttp writes of malformed requests anybody could fill the log with, and what fails here is logged here."""
IDLE_S = 30.0
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
SAFE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "server": "edge-coordinator"}
_CLOSE = {"connection": "close"}
"""What is left of a body is not read."""
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpProblem(InvalidRequest):
    """A request that is refused for its HTTP; `status` and `headers` of the reply."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = dict(headers or {})


class HttpListener:
    """One address. `handler` answers every request that may be served, `refuse` tells of an error; `setting` names where it listens."""

    def __init__(
        self,
        listen: str,
        handler: Handler,
        refuse: Callable[[Exception], web.Response],
        tls: TlsConfig | None,
        *,
        setting: str,
        max_body_bytes: int = 1024,
        idle_s: float = IDLE_S,
    ) -> None:
        self.address = side_address(listen, encrypted=tls is not None)
        self._handler = handler
        self._refuse = refuse
        self._tls = tls
        self._setting = setting
        self._max_body_bytes = max_body_bytes
        self._idle_s = idle_s
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._busy: set[object] = set()
        self._quiet: set[object] = set()

    async def start(self) -> str:
        """Listen; returns the URL with the port that was really taken. Raises ConfigError."""
        # What a caller that goes away asked for is cancelled, as gRPC does it.
        self._server = web.Server(
            self._serve,  # type: ignore[arg-type]
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            logger=_OF_AIOHTTP,
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=1.0)
        await self._runner.setup()
        context = _tls_context(self._tls) if self._tls is not None else None
        try:
            await web.TCPSite(self._runner, self.address.host, self.address.port, ssl_context=context).start()
        except OSError as error:
            await self.aclose()
            reason = str(error.strerror).rpartition(": ")[2]  # asyncio repeats the address in front of it
            message = f"{self._setting}: cannot listen on {self.address}: {reason}"
            raise ConfigError(message, hint="choose another port, or stop what uses it") from error
        self._sweeper = asyncio.create_task(self._close_idle(), name="http-sweeper")
        port = self._runner.addresses[0][1]
        return f"{'https' if self._tls else 'http'}://{Address(host=self.address.host, port=port)}"

    async def aclose(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = self._server = None

    async def _close_idle(self) -> None:
        """Close the connections that were there at the last look already, and on which nothing ran since."""
        while self._server is not None:
            connections = [each for each in self._server.connections if each not in self._busy]
            for idle in [each for each in connections if each in self._quiet]:
                idle.force_close()
            self._quiet = set(connections)
            await asyncio.sleep(self._idle_s)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: Any,
        writer: Any,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._max_body_bytes)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self._busy.add(connection)
        try:
            if self._tls is None and self.address.is_local and _name_of(request.host) not in LOOPBACK_NAMES:
                raise PermissionDenied("this host name is not served here", hint="ask for localhost")
            _check_fetch_site(request)
            reply = await self._handler(request)
        except CoordinatorError as error:
            reply = self._refuse(error)
        except Exception as error:  # the boundary: the log gets what happened, the reader that something did
            log.error("%s %s failed", request.method, request.path, exc_info=error)
            reply = self._refuse(error)
        finally:
            self._busy.discard(connection)
            self._quiet.discard(connection)
        if not reply.prepared:
            reply.headers.update(SAFE_HEADERS)
        return reply


def routed(routes: Mapping[str, Mapping[str, Handler]]) -> Handler:
    """A handler of several, by path and method; who may GET may HEAD, a path that ends with / stands for all below it.

    Raises HttpProblem.
    """

    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        methods = routes.get(request.path) or routes.get(f"{request.path.rpartition('/')[0]}/")
        if methods is None:
            raise HttpProblem(404, f"nothing is served at {request.path[:100]}")
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allowed = ", ".join(sorted([*methods, *(["HEAD"] if "GET" in methods else [])]))
            raise HttpProblem(405, f"{request.path} takes {allowed}", headers={"allow": allowed})
        return await handler(request)

    return reply


async def body_of(request: web.BaseRequest) -> bytes:
    """The whole body. Raises HttpProblem."""
    if request.headers.get("expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    try:
        async with asyncio.timeout(IDLE_S):
            return await request.read()
    except TimeoutError:
        raise HttpProblem(408, f"the body did not arrive within {IDLE_S:g} s", headers=_CLOSE) from None
    except web.HTTPRequestEntityTooLarge as error:
        most = f"{request._client_max_size:,} bytes"  # as `_request` has set it
        raise HttpProblem(413, f"the body is larger than {most}", hint="send less of the conversation", headers=_CLOSE) from error
    except web.RequestPayloadError as error:
        raise HttpProblem(400, "the body cannot be read", headers=_CLOSE) from error


def facts_of(request: web.BaseRequest, claimed_device: str = "") -> CallFacts:
    """The same facts that gRPC's transport knows."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    shown = transport.get_extra_info("ssl_object") if transport is not None else None
    der = shown.getpeercert(True) if shown is not None else None
    return CallFacts(
        peer=_peer(peer),
        encrypted=shown is not None,
        certificate_pem=ssl.DER_cert_to_PEM_cert(der).encode() if der else None,
        authorization=request.headers.get("authorization", ""),
        claimed_device=claimed_device,
    )


def _peer(peer: tuple[Any, ...] | None) -> str:
    if not peer:
        return "unknown"
    host, port = peer[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _name_of(host: str) -> str | None:
    try:
        return urlsplit(f"http://{host}").hostname
    except ValueError:
        return None


def _check_fetch_site(request: web.BaseRequest) -> None:
    """Browsers report where a request comes from; only following a link to the page itself may come from elsewhere."""
    site = request.headers.get("sec-fetch-site", "none")
    followed_link = request.path == "/" and request.headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not followed_link:
        raise PermissionDenied("requests from other web pages are not served")


def _tls_context(tls: TlsConfig) -> ssl.SSLContext:
    """The listeners' certificate, read again when it changes. Client certificates are looked at when shown; tokens do as well."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    files = [Path(tls.cert).expanduser(), Path(tls.key).expanduser()]
    seen: list[Any] = []

    def refresh(*_: Any) -> None:
        try:
            stamp = [(each.st_ino, each.st_mtime_ns) for each in (path.stat() for path in files)]
            if stamp != seen:
                context.load_cert_chain(str(files[0]), str(files[1]))
                seen[:] = stamp
        except OSError as error:  # ssl.SSLError among them
            log.error("the HTTP listener's certificate was not changed: %s", error)

    refresh()
    if not seen:
        raise ConfigError(f"cannot use {tls.cert} with {tls.key}", hint="see `edge-coordinator pki --help`")
    context.sni_callback = refresh
    if tls.client_ca:
        context.load_verify_locations(Path(tls.client_ca).expanduser())
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
