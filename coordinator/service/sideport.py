"""A port for people and scrapers, in addition to the gRPC listeners.

On loopback it speaks plain HTTP and trusts this machine: a request is served when its Host names loopback, so that no foreign page
reaches it by DNS rebinding. What that does not protect against: other programs of this machine. Everywhere else it speaks TLS only, and
data is for who shows a token or a client certificate of one of the route's roles. It answers GET and HEAD alone, and changes nothing.
A connection on which nothing was answered for IDLE_S is closed, so that half requests do not use up the process's descriptors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from coordinator.config import TlsConfig
from coordinator.service.authentication import Authenticator, CallFacts
from coordinator.service.tls import side_address
from edge.core.errors import ConfigError, CoordinatorError, PermissionDenied, RateLimited, Unauthenticated
from edge.rpc.address import Address

log = logging.getLogger(__name__)
IDLE_S = 30.0
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SAFE = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "server": "edge-coordinator"}
_STATUSES: tuple[tuple[type[CoordinatorError], int], ...] = (
    (Unauthenticated, 401),
    (PermissionDenied, 403),
    (RateLimited, 429),
)


@dataclass(frozen=True, slots=True)
class Route:
    """One address."""

    path: str
    handler: Handler
    roles: frozenset[str] | None
    """Who may read it where the port is not loopback; None: everybody."""


class SidePort:
    """One HTTP listener with its routes; `setting` names where it listens."""

    def __init__(
        self,
        listen: str,
        routes: Sequence[Route],
        authenticator: Authenticator,
        tls: TlsConfig | None,
        idle_s: float = IDLE_S,
        setting: str = "metrics_listen",
    ) -> None:
        self._setting = setting
        self._idle_s = idle_s
        self._quiet: set[object] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._address = side_address(listen, encrypted=tls is not None)
        self._routes = tuple(routes)
        self._authenticator = authenticator
        self._tls = None if self._address.is_local else tls
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen; returns the URL with the port that was really taken. Raises ConfigError."""
        app = web.Application(client_max_size=1024)
        for route in self._routes:
            app.router.add_get(route.path, self._checked(route))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        context = _tls_context(self._tls) if self._tls is not None else None
        try:
            await web.TCPSite(self._runner, self._address.host, self._address.port, ssl_context=context).start()
        except OSError as error:
            await self.aclose()
            reason = str(error.strerror).rpartition(": ")[2]  # asyncio repeats the address in front of it
            message = f"{self._setting}: cannot listen on {self._address}: {reason}"
            raise ConfigError(message, hint="choose another port, or stop what uses it") from error
        self._sweeper = asyncio.create_task(self._close_idle(), name="side-port-sweeper")
        port = self._runner.addresses[0][1]
        return f"{'https' if self._tls else 'http'}://{Address(host=self._address.host, port=port)}"

    async def aclose(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _close_idle(self) -> None:
        """Close the connections that were there at the last look already and had no answer since."""
        while self._runner is not None and self._runner.server is not None:
            connections = self._runner.server.connections
            for idle in [each for each in connections if each in self._quiet]:
                idle.force_close()
            self._quiet = set(connections)
            await asyncio.sleep(self._idle_s)

    def _checked(self, route: Route) -> Handler:
        async def reply(request: web.Request) -> web.StreamResponse:
            self._quiet.discard(request.protocol)
            try:
                self._check(route, request)
                answer = await route.handler(request)
            except CoordinatorError as error:
                answer = _refusal(error)
            except Exception as error:  # the boundary: the log gets what happened, the reader that something did
                log.error("%s failed", route.path, exc_info=error)
                answer = json_reply({"error": "internal error; the coordinator's log has the details"}, 500)
            answer.headers.update(_SAFE)
            return answer

        return reply

    def _check(self, route: Route, request: web.Request) -> None:
        if self._address.is_local and _name_of(request.host) not in LOOPBACK_NAMES:
            raise PermissionDenied("this host name is not served here", hint="ask for localhost")
        _check_fetch_site(request)
        if route.roles is None or (self._address.is_local and "authorization" not in request.headers):
            return
        identity = self._authenticator.authenticate(_facts(request))
        if identity.role not in route.roles:
            raise PermissionDenied(
                f"role {identity.role} may not read {route.path}", hint=f"show a token of role {' or '.join(sorted(route.roles))}"
            )


def json_reply(value: Any, status: int = 200) -> web.Response:
    """A JSON response that no cache keeps."""
    body = json.dumps(value, ensure_ascii=False).encode()
    return web.Response(body=body, status=status, content_type="application/json", headers={"cache-control": "no-store"})


def _refusal(error: CoordinatorError) -> web.Response:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 503)
    reply = json_reply({"error": error.with_hint, "reason": error.reason}, status)
    if status == 401:
        reply.headers["www-authenticate"] = "Bearer"
    return reply


def _facts(request: web.Request) -> CallFacts:
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


def _check_fetch_site(request: web.Request) -> None:
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
            log.error("the side port's certificate was not changed: %s", error)

    refresh()
    if not seen:
        raise ConfigError(f"cannot use {tls.cert} with {tls.key}", hint="see `edge-coordinator pki --help`")
    context.sni_callback = refresh
    if tls.client_ca:
        context.load_verify_locations(Path(tls.client_ca).expanduser())
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
