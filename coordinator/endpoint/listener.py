"""`openai_listen`: the OpenAI-compatible endpoint over HTTP. Who shows a token or certificate of a device or client is that device; on
loopback without one it is the device `local`, or the one in the header `device-id`, as over gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from coordinator.calls.admission import Turnstile
from coordinator.config import ServerConfig
from coordinator.endpoint import replies
from coordinator.endpoint.api import ChatApi
from coordinator.endpoint.requests import Asked, label_of, require_user
from coordinator.service.access import DEVICE_ID_KEY
from coordinator.service.authentication import Authenticator, Identity
from coordinator.service.http_listener import Handler, HttpListener, facts_of, routed
from coordinator.service.metrics import OK, CoordinatorMeters, Refusals
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError, InvalidRequest, PermissionDenied, Unauthenticated
from edge.rpc.errors import row_for

CHAT, MODELS, USAGE = "/v1/chat/completions", "/v1/models", "/v1/usage"
TASK_HEADER, KEY_HEADER = "x-edge-task", "idempotency-key"
ROLES = frozenset({"device", "client"})
_WHO = web.RequestKey("who", str)
HINT = "show a token of role client: edge-coordinator token issue NAME --role client"
_METHODS = {CHAT: "ChatCompletions", MODELS: "ListModels", USAGE: "GetUsage"}
"""What metrics call them, beside the RPCs."""


class ChatEndpoint:
    """The handlers of one listener."""

    def __init__(
        self,
        api: ChatApi,
        authenticator: Authenticator,
        config: ServerConfig,
        places: Turnstile,
        clock: Clock,
        meters: CoordinatorMeters,
        refusals: Refusals,
    ) -> None:
        self._api = api
        self._authenticator = authenticator
        self._config = config
        self._user_headers = {name: grant.user_header for name, grant in config.auth.devices.items() if grant.user_header}
        self._needs_certificate = config.tls is not None and config.tls.require_client_cert
        self._places = places
        self._clock = clock
        self._started = int(clock.now())
        self._meters = meters
        self._refusals = refusals
        for method in _METHODS.values():
            meters.rpc(method)

    def listener(self, listen: str) -> HttpListener:
        """Not started."""
        tls, most = self._config.tls, self._config.service.max_message_bytes
        routes: dict[str, dict[str, Handler]] = {
            CHAT: {"POST": self._chat},
            MODELS: {"GET": self._models},
            USAGE: {"GET": self._usage},
        }
        routes |= {f"{MODELS}/{model['id']}": {"GET": self._models} for model in self._api.models(0)}
        handler = self._measured(routed(routes))
        return HttpListener(listen, handler, self._refusal, tls, setting="openai_listen", max_body_bytes=most)

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.content_type != "application/json":  # what a foreign page can send without asking first
            raise InvalidRequest("the body must be application/json", hint="send the header content-type: application/json")
        identity, user = self._caller(request)
        headers = request.headers
        asked = self._api.read(
            await request.read(), identity, task=headers.get(TASK_HEADER, ""), key=headers.get(KEY_HEADER, ""), user=user
        )
        with self._places.passage(identity.device):
            if not asked.stream:
                return _json(await self._api.complete(asked, identity.device, user))
            async with aclosing(self._api.stream(asked, identity.device, user)) as events:
                return await self._streamed(request, asked, events)

    async def _streamed(
        self, request: web.BaseRequest, asked: Asked, events: AsyncGenerator[dict[str, Any], None]
    ) -> web.StreamResponse:
        first = await anext(events)  # what fails before it has its HTTP status
        reply = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
        await reply.prepare(request)
        await reply.write(replies.sse(first))
        try:
            async for event in events:
                await reply.write(replies.sse(event))
        except CoordinatorError as error:
            self._note(request, error)
            await reply.write(replies.sse(replies.error_reply(error, self._clock.now()).body))
        await reply.write(replies.SSE_DONE)
        await reply.write_eof()
        return reply

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        self._caller(request, named=False)
        models = self._api.models(self._started)
        if request.path == MODELS:
            return _json({"object": "list", "data": models})
        return _json(next(model for model in models if request.path == f"{MODELS}/{model['id']}"))

    async def _usage(self, request: web.BaseRequest) -> web.StreamResponse:
        identity, user = self._caller(request)
        task = request.headers.get(TASK_HEADER) or request.query.get("task", "")
        return _json(await self._api.usage(identity, label_of(task, "") if task else "", user))

    def _caller(self, request: web.BaseRequest, *, named: bool = True) -> tuple[Identity, str]:
        """Who asks, and for which person. Raises CoordinatorError."""
        identity = self._authenticator.authenticate(facts_of(request, request.headers.get(DEVICE_ID_KEY, "")))
        request[_WHO] = identity.device
        if identity.role not in ROLES:
            raise PermissionDenied(f"role {identity.role} may not ask the cloud", hint=HINT)
        if identity.role == "device" and identity.shown == "token" and identity.certificate is None and self._needs_certificate:
            raise Unauthenticated("devices show a certificate here (tls.require_client_cert)", hint=HINT)
        header = self._user_headers.get(identity.device)
        if header is None or not named:
            return identity, ""
        if identity.shown == "local":
            raise PermissionDenied(f"device {identity.device} names people, so it has to show a credential")
        return identity, require_user(request.headers.get(header, ""), header)

    def _measured(self, handler: Handler) -> Handler:
        """Counted and timed as RPCs are."""
        time = asyncio.get_running_loop().time

        async def reply(request: web.BaseRequest) -> web.StreamResponse:
            began, code, reason = time(), *OK
            try:
                return await handler(request)
            except CoordinatorError as error:
                code, reason = self._note(request, error)
                raise
            except asyncio.CancelledError:
                code, reason = "CANCELLED", "CALLER_LEFT"
                raise
            except Exception:
                code, reason = "INTERNAL", "INTERNAL"
                raise
            finally:
                if method := _METHODS.get(request.path):
                    self._meters.rpcs[method, code, reason] += 1
                    self._meters.rpc_seconds[method].observe(time() - began)

        return reply

    def _note(self, request: web.BaseRequest, error: CoordinatorError) -> tuple[str, str]:
        row = row_for(error)
        who = str(request.get(_WHO) or request.remote or "")[:64]
        self._refusals.note(_METHODS.get(request.path, request.path[:64]), who, row.code.name, row.reason, str(error))
        return row.code.name, row.reason

    def _refusal(self, error: Exception) -> web.Response:
        if isinstance(error, CoordinatorError):
            found = replies.error_reply(error, self._clock.now())
            return _json(found.body, found.status, found.headers)
        if isinstance(error, web.HTTPException):
            headers = {"allow": ", ".join(sorted(error.allowed_methods))} if isinstance(error, web.HTTPMethodNotAllowed) else {}
            code = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}.get(error.status, "invalid_request")
            return _json(replies.error_body(error.reason, kind="invalid_request_error", code=code), error.status, headers)
        body = replies.error_body("internal error; the coordinator's log has the details", kind="server_error", code="internal")
        return _json(body, 500, {"x-should-retry": "false"})


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=replies.encode(value),
        status=status,
        content_type="application/json",
        headers={"cache-control": "no-store", **(headers or {})},
    )
