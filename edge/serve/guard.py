"""Who may talk to the local endpoint. Knows Host, Origin, tokens and request sizes; knows nothing of chat.

A web page anywhere on the internet can make the user's browser send requests to 127.0.0.1, and by DNS rebinding even read the
answers. So a request is served only if its Host header names this machine's loopback interface, any Origin header is our own
page, and a body says it is JSON (which a foreign page cannot send without asking first, and nobody answers it). What it does not
protect against: other programs of this machine. Behind any other interface a bearer token is required.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse

from edge.serve.failures import RequestProblem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


class Guard:
    """ASGI middleware that lets only our own requests through.

    `open_paths` may be read without the token: the page's own files, which hold no data and ask for the token themselves.
    """

    def __init__(
        self,
        app: App,
        *,
        names: Iterable[str] = LOOPBACK_NAMES,
        token: str = "",
        open_paths: Collection[str] = (),
        max_body_bytes: int = 1 << 20,
        max_posts: int = 32,
    ) -> None:
        self._app = app
        self._posts = 0
        self._max_posts = max_posts
        self._names = frozenset(name.lower() for name in names)
        self._token = token
        self._open_paths = frozenset(open_paths)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request or answer with an error object."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RequestProblem as problem:
            await JSONResponse(problem.body(), status_code=problem.status)(scope, receive, send)
            return
        counted = int(scope["method"] == "POST")
        self._posts += counted
        try:
            await self._app(scope, self._limited(receive), send)
        finally:
            self._posts -= counted

    def _check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        self._check_host(host)
        self._check_origin(headers.get("origin"), host)
        _check_fetch_site(headers, scope["method"], scope["path"])
        _check_media_type(headers, scope["method"])
        self._check_size(headers.get("content-length", "0"))
        if scope["method"] not in ("GET", "HEAD") or scope["path"] not in self._open_paths:
            self._check_token(headers.get("authorization", ""))
        if scope["method"] == "POST" and self._posts >= self._max_posts:
            raise RequestProblem(429, "too many requests at once; try again when one is done", code="too_many_requests")

    def _check_host(self, host: str) -> None:
        if _name_of(f"http://{host}") not in self._names:
            raise RequestProblem(403, "this host name is not served here", code="host_not_allowed")

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            raise RequestProblem(403, "requests from other web pages are not served", code="origin_not_allowed")

    def _check_size(self, length: str) -> None:
        if not length.isdigit() or int(length) > self._max_body_bytes:
            raise RequestProblem(413, f"the request is larger than {self._max_body_bytes} bytes", code="request_too_large")

    def _check_token(self, authorization: str) -> None:
        if self._token and not hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            raise RequestProblem(401, "a bearer token is needed", code="invalid_api_key")

    def _limited(self, receive: Receive) -> Receive:
        """The same stream of body parts, refused once it grows past the limit (a body may come without a length)."""
        seen = 0

        async def limited() -> MutableMapping[str, Any]:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_body_bytes:
                raise RequestProblem(413, f"the request is larger than {self._max_body_bytes} bytes", code="request_too_large")
            return message

        return limited


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _check_fetch_site(headers: dict[str, str], method: str, path: str) -> None:
    """Browsers say where a request comes from; only following a link to the page itself may come from elsewhere."""
    site = headers.get("sec-fetch-site", "none")
    followed_link = method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not followed_link:
        raise RequestProblem(403, "requests from other web pages are not served", code="origin_not_allowed")


def _check_media_type(headers: dict[str, str], method: str) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method in ("POST", "PUT", "PATCH") and media_type != "application/json":
        raise RequestProblem(415, "send the body as application/json", code="unsupported_media_type")
