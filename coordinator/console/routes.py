"""The console's addresses: its page, and the JSON behind it. Knows paths and headers; knows nothing of what the JSON says."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

from coordinator.console.state import ConsoleState
from coordinator.service.sideport import Handler, Route, json_reply

_PAGE = {
    "/": ("index.html", "text/html"),
    "/page/app.js": ("app.js", "text/javascript"),
    "/page/style.css": ("style.css", "text/css"),
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}
ROLES = frozenset({"console", "admin"})


def console_routes(state: ConsoleState) -> list[Route]:
    """The page is open, for it says nothing; what it asks for is told to consoles and administrators."""

    async def now(request: web.Request) -> web.Response:
        return json_reply(await state.now())

    async def history(request: web.Request) -> web.Response:
        return json_reply(await state.history())

    page = [Route(path, _file(*file), None) for path, file in _PAGE.items()]
    return [*page, Route("/api/state", now, ROLES), Route("/api/curves", history, ROLES)]


def _file(name: str, media_type: str) -> Handler:
    async def reply(request: web.Request) -> web.Response:
        text = (files("coordinator.console") / "page" / name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=media_type, headers=_HEADERS)

    return reply
