"""An HTTP listener: its address, TLS, routes by path, and who a request is from.

Without TLS it listens on loopback alone, and a request is served when its Host names loopback, so that no foreign page reaches it by DNS
rebinding; what that does not protect against: other programs of this machine. Requests that a browser reports as another page's are
refused.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.config import TlsConfig
from coordinator.service.authentication import CallFacts
from coordinator.service.http_server import IDLE_S, Handler, HttpProblem, HttpServer, Reply, Request
from coordinator.service.tls import side_address
from edge.core.errors import ConfigError, CoordinatorError, PermissionDenied
from edge.rpc.address import Address

log = logging.getLogger(__name__)
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class HttpListener:
    """One address. `handler` answers every request that may be served, `refuse` tells of an error; `setting` names where it listens."""

    def __init__(
        self,
        listen: str,
        handler: Handler,
        refuse: Callable[[Exception], Reply],
        tls: TlsConfig | None,
        *,
        setting: str,
        most_body_bytes: int = 1024,
        idle_s: float | None = None,
    ) -> None:
        self._address = side_address(listen, encrypted=tls is not None)
        self._handler = handler
        self._refuse = refuse
        self._tls = tls
        self._setting = setting
        self._server = HttpServer(
            self._answer, refuse, most_body_bytes=most_body_bytes, idle_s=IDLE_S if idle_s is None else idle_s
        )

    async def start(self) -> str:
        """Listen; returns the URL with the port that was really taken. Raises ConfigError."""
        context = _tls_context(self._tls) if self._tls is not None else None
        try:
            port = await self._server.start(self._address.host, self._address.port, context)
        except OSError as error:
            reason = str(error.strerror).rpartition(": ")[2]  # asyncio repeats the address in front of it
            message = f"{self._setting}: cannot listen on {self._address}: {reason}"
            raise ConfigError(message, hint="choose another port, or stop what uses it") from error
        return f"{'https' if self._tls else 'http'}://{Address(host=self._address.host, port=port)}"

    async def aclose(self) -> None:
        """Stop listening. Safe to call twice."""
        await self._server.aclose()

    async def _answer(self, request: Request) -> Reply:
        try:
            if self._tls is None and self._address.is_local and _name_of(request.header("host")) not in LOOPBACK_NAMES:
                raise PermissionDenied("this host name is not served here", hint="ask for localhost")
            _check_fetch_site(request)
            return await self._handler(request)
        except CoordinatorError as error:
            return self._refuse(error)
        except Exception as error:  # the boundary: the log gets what happened, the reader that something did
            log.error("%s %s failed", request.method, request.path, exc_info=error)
            return self._refuse(error)


def routed(routes: Mapping[str, Mapping[str, Handler]]) -> Handler:
    """A handler of several, by path and method; who may GET may HEAD, a path that ends with / stands for all below it.

    Raises HttpProblem.
    """

    async def reply(request: Request) -> Reply:
        methods = routes.get(request.path) or routes.get(f"{request.path.rpartition('/')[0]}/")
        if methods is None:
            raise HttpProblem(404, f"nothing is served at {request.path[:100]}")
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allowed = ", ".join(sorted([*methods, *(["HEAD"] if "GET" in methods else [])]))
            raise HttpProblem(405, f"{request.path} takes {allowed}", headers={"allow": allowed})
        return await handler(request)

    return reply


def facts_of(request: Request) -> CallFacts:
    """The same facts that gRPC's transport knows."""
    peer, shown = (request.transport.get_extra_info(name) for name in ("peername", "ssl_object"))
    der = shown.getpeercert(True) if shown is not None else None
    return CallFacts(
        peer=_peer(peer),
        encrypted=shown is not None,
        certificate_pem=ssl.DER_cert_to_PEM_cert(der).encode() if der else None,
        authorization=request.header("authorization"),
    )


def _peer(peer: tuple[Any, ...] | None) -> str:
    if not peer:
        return "unknown"
    host, port = peer[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


@lru_cache(maxsize=64)
def _name_of(host: str) -> str | None:
    try:
        return urlsplit(f"http://{host}").hostname
    except ValueError:
        return None


def _check_fetch_site(request: Request) -> None:
    """Browsers report where a request comes from; only following a link to the page itself may come from elsewhere."""
    site = request.header("sec-fetch-site") or "none"
    followed_link = request.path == "/" and request.header("sec-fetch-mode") == "navigate"
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
