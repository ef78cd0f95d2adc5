"""The port of metrics and console, for people and scrapers: it answers GET and HEAD alone, and changes nothing.

On loopback it trusts this machine. Everywhere else data is for who shows a token or a client certificate of one of the route's roles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.config import TlsConfig
from coordinator.service.authentication import Authenticator
from coordinator.service.http_listener import HttpListener, facts_of, routed
from coordinator.service.http_server import IDLE_S, Handler, HttpProblem, Reply, Request
from edge.core.errors import CoordinatorError, PermissionDenied, RateLimited, Unauthenticated
from edge.rpc.address import parse_address

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


def side_port(
    listen: str,
    routes: Sequence[Route],
    authenticator: Authenticator,
    tls: TlsConfig | None,
    idle_s: float = IDLE_S,
    setting: str = "metrics_listen",
) -> HttpListener:
    """The listener of these routes, not started; `setting` names where it listens. On loopback it is plain HTTP."""
    is_local = parse_address(listen).is_local

    def checked(route: Route) -> Handler:
        async def reply(request: Request) -> Reply:
            if route.roles is not None and not (is_local and "authorization" not in request.headers):
                identity = authenticator.authenticate(facts_of(request))
                if identity.role not in route.roles:
                    raise PermissionDenied(
                        f"role {identity.role} may not read {route.path}",
                        hint=f"show a token of role {' or '.join(sorted(route.roles))}",
                    )
            return await route.handler(request)

        return reply

    handler = routed({route.path: {"GET": checked(route)} for route in routes})
    return HttpListener(listen, handler, _refusal, None if is_local else tls, setting=setting, idle_s=idle_s)


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON reply that no cache keeps."""
    body = json.dumps(value, ensure_ascii=False).encode()
    return Reply(body, status, headers={"cache-control": "no-store", **(headers or {})})


def _refusal(error: Exception) -> Reply:
    if isinstance(error, HttpProblem):
        return json_reply({"error": error.with_hint}, error.status, error.headers)
    if not isinstance(error, CoordinatorError):
        return json_reply({"error": "internal error; the coordinator's log has the details"}, 500)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 503)
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return json_reply({"error": error.with_hint, "reason": error.reason}, status, headers)
