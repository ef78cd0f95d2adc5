"""Routes for whoever watches the agent: is it alive, is it ready, what has it used. Knows HTTP; knows nothing of how that is found out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge.serve.control import AgentControl

LIVENESS = "/health"
"""What needs no token."""


def health_routes(control: AgentControl) -> list[Route]:
    """Liveness, readiness and usage."""
    health = _Health(control)
    return [
        Route(LIVENESS, health.alive),
        Route("/health/ready", health.ready),
        Route("/v1/usage", health.usage),
    ]


class _Health:
    """The handlers, over one agent."""

    def __init__(self, control: AgentControl) -> None:
        self._control = control

    async def alive(self, request: Request) -> Response:
        """Whether the endpoint answers at all; needs no token and says nothing else."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether questions can be answered, with status 503 where they cannot."""
        told = await self._control.ready()
        return JSONResponse(dict(told), status_code=200 if told["ready"] else 503)

    async def usage(self, request: Request) -> Response:
        """What was used and what is left."""
        return JSONResponse({"object": "edge.usage", **await self._control.usage()})
