"""Who may talk to the local endpoint: Host, Origin, CORS, tokens, request sizes and requests at once.

A web page anywhere on the internet can make the user's browser send requests to 127.0.0.1, and by DNS rebinding even read the answers.
So a request is served only if its Host header names this machine, any Origin header is our own page or one that the user has named, and a
body is declared as JSON (which a foreign page cannot send without asking first, and only named origins are answered then). What it does
not protect against: other programs of this machine. On any other interface a token is required.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from edge.serve.errors import RequestProblem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger(__name__)
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_ONLY_ONCE = (
    "host", "origin", "authorization", "x-api-key", "content-length", "content-type", "transfer-encoding", "sec-fetch-site", "x-edge-task",
)  # fmt: skip
_ALLOWED_METHODS = "GET, POST, DELETE"
_PREFLIGHT_VALID_S = 600
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_BODY_METHODS = ("POST", "PUT", "PATCH")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?")
"""A Host header and nothing else: no user, path or anything that two readers could cut differently."""
_UNREAD_BYTES, _UNREAD_S = 16 << 20, 5.0
"""How much of the body of a rejected request is read, and for how long, so that a client that sends all of it first sees why."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """What one client may take: body and header bytes, header lines, seconds until its whole body is here, and requests at once.

    A request counts among the `posts` from when its body is here. Those that steer the agent are counted apart from the others: the
    switch that stops the spending is no less within reach when everybody asks.
    """

    body_bytes: int = 1 << 20
    header_bytes: int = 16 << 10
    header_lines: int = 64
    body_s: float = 30.0
    posts: int = 32


DEFAULT_LIMITS = EndpointLimits()


class Access:
    """ASGI middleware that lets only our own requests through to `app`.

    `open_paths` may be read without the token: liveness, and the page's own files, which hold no data and ask for the token themselves.
    Requests to paths that begin with `steering` steer the agent.
    Pages of `origins` may ask, and may read the response headers `exposed`. Cookies and other credentials of the browser are never asked
    for, since nothing here reads them; a token travels in its header.
    """

    def __init__(
        self,
        app: App,
        *,
        names: Iterable[str] = LOOPBACK_NAMES,
        token: str = "",
        open_paths: Collection[str] = (),
        steering: str = "/api/",
        origins: Iterable[str] = (),
        exposed: Iterable[str] = (),
        limits: EndpointLimits = DEFAULT_LIMITS,
        count: Callable[[str, str, int, float], None] = lambda method, route, status, seconds: None,
    ) -> None:
        """`count` gets every request: its method, its route's template, its status (499: nobody waited) and its seconds."""
        self.app = app
        self._count = count
        self._limits = limits
        self._steering = steering
        self._busy = {True: 0, False: 0}
        """Requests under way: those that steer, and the others."""
        self._names = frozenset(name.lower() for name in names)
        self._token = token
        self._open_paths = frozenset(open_paths)
        self._origins = frozenset(origin.lower() for origin in origins)
        self._exposed = ", ".join((*exposed, "retry-after"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request or answer with an error object."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        time, status = asyncio.get_running_loop().time, 499
        began = time()

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        try:
            await self._serve(scope, receive, counted)
        finally:
            self._count(method, getattr(scope.get("route"), "path", ""), status, time() - began)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        steers = scope["path"].startswith(self._steering)
        headers: Mapping[str, str] = {}
        try:
            headers = self._headers(scope["headers"])
            early = self._checked(scope["method"], scope["path"], headers, steers)
        except RequestProblem as problem:
            early = JSONResponse(problem.body_at(scope["path"]), status_code=problem.status, headers=problem.headers)
        if headers.get("origin", "").lower() in self._origins:
            send = self._with_cors(send, headers["origin"])
        if early is not None:
            if "expect" not in headers:  # such a client waits for the answer before it sends
                await _drain_body(receive)
            await early(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # FastAPI's routes have none. It is answered like GET; the server leaves the body out
            scope["method"] = "GET"
        taken = False

        def take() -> None:
            nonlocal taken
            self._check_room(steers)
            taken, self._busy[steers] = True, self._busy[steers] + 1

        try:
            await self.app(scope, self._limited(receive, take), send)
        except Exception as error:  # it is answered and logged already; the server would log its text, which may hold a prompt
            _LOG.debug("request failed: %s", type(error).__name__)
        finally:
            self._busy[steers] -= taken

    def _headers(self, raw: Sequence[tuple[bytes, bytes]]) -> Mapping[str, str]:
        """The headers by lower-case name. Raises RequestProblem where they are too many, or ambiguous to a proxy in between."""
        limits = self._limits
        if len(raw) > limits.header_lines or sum(len(name) + len(text) for name, text in raw) > limits.header_bytes:
            raise RequestProblem(431, "the request has too many or too long headers", code="headers_too_large")
        headers = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in raw}
        if len(headers) < len(raw):
            names = [name.decode("latin-1").lower() for name, _ in raw]
            if twice := next((name for name in _ONLY_ONCE if names.count(name) > 1), ""):
                raise RequestProblem(400, f"the header {twice} came more than once", code="ambiguous_header")
        if "content-length" in headers and "transfer-encoding" in headers:
            raise RequestProblem(400, "a body has a length or comes in chunks, not both", code="ambiguous_header")
        return headers

    def _checked(self, method: str, path: str, headers: Mapping[str, str], steers: bool) -> Response | None:
        """The answer to a preflight that is welcome; None lets the request through. Raises RequestProblem."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        found = _HOST.fullmatch(host)
        if found is None or (found["v6"] or found["name"]) not in self._names:
            raise RequestProblem(403, "this host name is not served here", code="host_not_allowed")
        if origin is None or origin.lower() not in self._origins:
            _check_own_page(method, path, headers, host)
        elif method == "OPTIONS" and "access-control-request-method" in headers:
            return _preflight(headers)
        if self._token and not (path in self._open_paths and method in ("GET", "HEAD")):
            self._check_token(headers)
        length = headers.get("content-length", "0")
        if length != "0" or "transfer-encoding" in headers:
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise RequestProblem(415, "send the body as application/json", code="unsupported_media_type")
            if not (length.isascii() and length.isdigit() and len(length) < 16 and int(length) <= self._limits.body_bytes):
                raise self._too_large()
        if method in _BODY_METHODS:
            self._check_room(steers)
        return None

    def _check_token(self, headers: Mapping[str, str]) -> None:
        """The token comes as a bearer token, or as Anthropic's clients send a key. Raises RequestProblem."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [token for token in (bearer if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")) if token]
        if not any(hmac.compare_digest(token.encode(), self._token.encode()) for token in given):
            why = "this token is not the one in serve.token_file" if given else "a bearer token is needed"
            raise RequestProblem(401, why, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    def _check_room(self, steers: bool) -> None:
        if self._busy[steers] >= self._limits.posts:
            message = "too many requests at once; try again when one is done"
            raise RequestProblem(429, message, code="too_many_requests", headers={"retry-after": "1"})

    def _too_large(self) -> RequestProblem:
        return RequestProblem(413, f"the request is larger than {self._limits.body_bytes} bytes", code="request_too_large")

    def _limited(self, receive: Receive, take: Callable[[], None]) -> Receive:
        """The same stream of body parts, rejected once it grows past the limit (a body may come without a length) or lasts too long.

        `take` is called when a whole body is here.
        """
        seen, coming = 0, True
        ends = asyncio.get_running_loop().time() + self._limits.body_s

        async def limited() -> MutableMapping[str, Any]:
            nonlocal seen, coming
            try:
                async with asyncio.timeout_at(ends if coming else None):
                    message = await receive()
            except TimeoutError as error:
                raise RequestProblem(408, "the body of the request did not come in time", code="request_timeout") from error
            seen += len(message.get("body", b""))
            came, coming = coming, coming and bool(message.get("more_body"))
            if seen > self._limits.body_bytes:
                await _drain_body(receive)
                raise self._too_large()
            if came and not coming and seen:
                take()
            return message

        return limited

    def _with_cors(self, send: Send, origin: str) -> Send:
        """The answer with what lets a page of this origin, and of no other one, read it and its headers."""
        pairs = {"access-control-allow-origin": origin, "access-control-expose-headers": self._exposed, "vary": "Origin"}
        cors = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in pairs.items()]

        async def opened(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *cors]}
            await send(message)

        return opened


def _check_own_page(method: str, path: str, headers: Mapping[str, str], host: str) -> None:
    """Browsers report where a request comes from; only following a link to the page itself may come from elsewhere."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    followed_link = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
    if (origin is not None and origin.lower() != f"http://{host}") or (site not in ("none", "same-origin") and not followed_link):
        raise RequestProblem(403, "requests from other web pages are not served", code="origin_not_allowed")


def _preflight(headers: Mapping[str, str]) -> Response:
    """The answer to a browser that asks before it sends. Whatever header the page wants to send is welcome."""
    asked = headers.get("access-control-request-headers", "")
    wanted = [name.strip() for name in asked.split(",")]
    allowed = {
        "access-control-allow-methods": _ALLOWED_METHODS,
        "access-control-allow-headers": ", ".join(name for name in wanted if _HEADER_NAME.fullmatch(name)),
        "access-control-max-age": str(_PREFLIGHT_VALID_S),
    }
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=allowed)


async def _drain_body(receive: Receive) -> None:
    """Read what still comes of a body that nobody wants: a connection closed over unread bytes loses the answer with them."""
    left = _UNREAD_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_UNREAD_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return
