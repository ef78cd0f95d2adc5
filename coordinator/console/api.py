"""The console: its page, and the JSON that it shows. It only reads.

Everything listed comes from the functions that answer the AdminService, so that the page and the commands cannot disagree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from coordinator.console.curves import Curves
from coordinator.service.admin_api import AdminApi
from coordinator.service.admin_text import as_json
from coordinator.service.authentication import Identity
from coordinator.service.http_server import Handler, Reply, Request
from coordinator.service.metrics import BudgetGauge, Refusals
from coordinator.service.sideport import Route, json_reply
from edge.core.clock import Clock
from edge.rpc.v1 import admin_pb2

ROWS = 200
READER = Identity("console", "console")
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


@dataclass(frozen=True, slots=True)
class WebConsole:
    """What the page shows."""

    api: AdminApi
    budgets: Callable[[Sequence[tuple[str, str]]], Awaitable[Sequence[BudgetGauge]]]
    """Those of the present windows that these (device, task) pairs are held to."""
    curves: Curves
    refusals: Refusals
    clock: Clock
    version: str

    async def now(self) -> dict[str, Any]:
        """Devices, tasks, budgets, upstreams and refusals as they are."""
        devices = await self.api.list_devices(admin_pb2.ListDevicesRequest(page_size=ROWS), READER)
        tasks = await self.api.list_tasks(admin_pb2.ListTasksRequest(page_size=ROWS), READER)
        limits = await self.api.list_budgets(admin_pb2.ListBudgetsRequest(page_size=1), READER)
        budgets = await self.budgets([(row.device, row.task) for row in tasks.tasks])
        upstreams = await self.api.list_upstreams(admin_pb2.ListUpstreamsRequest(), READER)
        return {
            "now_ms": round(1000 * self.clock.now()),
            "version": self.version,
            "draining": upstreams.draining,
            "in_flight": upstreams.in_flight,
            "openai_url": upstreams.openai_url,
            "devices": list(map(as_json, devices.devices)),
            "more_devices": bool(devices.next_page_token),
            "tasks": list(map(as_json, tasks.tasks)),
            "scopes": list(map(as_json, limits.scopes)),
            "budgets": [asdict(row) for row in budgets],
            "upstreams": list(map(as_json, upstreams.upstreams)),
            "refusals": [asdict(row) for row in self.refusals.latest()],
        }

    async def history(self) -> dict[str, Any]:
        """The curves; `complete` is False while the journal is still being read."""
        complete = await self.curves.catch_up()
        return {"complete": complete, "tasks": self.curves.tasks(), "spend": self.curves.spend()}


def console_routes(console: WebConsole) -> list[Route]:
    """The page itself is open; its data is for roles console and admin."""

    async def now(request: Request) -> Reply:
        return json_reply(await console.now())

    async def history(request: Request) -> Reply:
        return json_reply(await console.history())

    page = [Route(path, _file(*file), None) for path, file in _PAGE.items()]
    return [*page, Route("/api/state", now, ROLES), Route("/api/curves", history, ROLES)]


def _file(name: str, media_type: str) -> Handler:
    async def reply(request: Request) -> Reply:
        text = (files("coordinator.console") / "page" / name).read_text(encoding="utf-8")
        return Reply(text.encode(), media_type=f"{media_type}; charset=utf-8", headers=_HEADERS)

    return reply
