"""`openai_listen`: the OpenAI-compatible endpoint over HTTP. Who shows a token or certificate of a device or client is that device; on
loopback without one it is the device `local`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

from coordinator.calls.admission import Turnstile
from coordinator.config import ServerConfig
from coordinator.endpoint import replies
from coordinator.endpoint.api import ChatApi
from coordinator.endpoint.requests import BadParameter, label_of, require_user, unnamed
from coordinator.service.authentication import Authenticator, Identity
from coordinator.service.http_listener import HttpListener, facts_of, routed
from coordinator.service.http_server import Handler, Reply, Request
from coordinator.service.instruments import CANCELLED, MeasuredRpcs
from coordinator.service.metrics import OK
from coordinator.service.tracing import end_served
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError, InvalidRequest, PermissionDenied, Unauthenticated
from edge.rpc.errors import row_for

log = logging.getLogger(__name__)
CHAT, MODELS, USAGE = "/v1/chat/completions", "/v1/models", "/v1/usage"
TASK_HEADER, KEY_HEADER, REQUEST_ID = "x-edge-task", "idempotency-key", "x-request-id"
ROLES = frozenset({"device", "client"})
HINT = "send an API key as the bearer token: edge-coordinator token issue NAME --role client makes one"
_METHODS = {CHAT: "ChatCompletions", MODELS: "ListModels", USAGE: "GetUsage"}
"""What metrics call them, as they call RPCs by their methods."""
LEFT = 499
"""The status, in traces alone, of a request whose caller left."""


class ChatEndpoint:
    """The handlers of one listener."""

    def __init__(
        self,
        api: ChatApi,
        authenticator: Authenticator,
        config: ServerConfig,
        places: Turnstile,
        clock: Clock,
        measured: MeasuredRpcs,
    ) -> None:
        self._api = api
        self._authenticator = authenticator
        self._config = config
        self._user_headers = config.auth.user_headers
        self._needs_certificate = config.tls is not None and config.tls.require_client_cert
        self._places = places
        self._clock = clock
        self._started = int(clock.now())
        self._meters = measured.meters
        self._refusals = measured.refusals
        self._tracing = measured.tracing
        for method in _METHODS.values():
            self._meters.rpc(method)

    def listener(self, listen: str) -> HttpListener:
        """Not started."""
        tls, most = self._config.tls, self._config.service.max_message_bytes
        routes: dict[str, dict[str, Handler]] = {
            CHAT: {"POST": self._chat},
            MODELS: {"GET": self._models},
            f"{MODELS}/": {"GET": self._models},
            USAGE: {"GET": self._usage},
        }
        handler = self._measured(routed(routes))
        return HttpListener(listen, handler, self._refusal, tls, setting="openai_listen", most_body_bytes=most)

    async def _chat(self, request: Request) -> Reply:
        if request.media_type != "application/json":  # what a foreign page can send without asking first
            raise InvalidRequest("the body must be application/json", hint="send the header content-type: application/json")
        identity, user = self._caller(request)
        if user is None:
            raise unnamed(self._user_headers[identity.device])
        task, key = _only(request, TASK_HEADER), _only(request, KEY_HEADER)
        async with AsyncExitStack() as held:
            held.enter_context(self._places.passage(identity.device))
            asked = self._api.read(await request.body(), identity, task=task, key=key, user=user)
            about = {"cache-control": "no-store", REQUEST_ID: asked.call.call_key}
            if not asked.stream:
                return Reply(replies.encode(await self._api.complete(asked, identity.device, user)), headers=about)
            events = await held.enter_async_context(aclosing(self._api.stream(asked, identity.device, user)))
            first = await anext(events)  # what fails before it has its HTTP status
            stream = self._lines_of(request, first, events)
            return Reply(media_type="text/event-stream", headers=about, stream=stream, held=held.pop_all())

    async def _lines_of(
        self, request: Request, first: dict[str, Any], events: AsyncGenerator[dict[str, Any], None]
    ) -> AsyncGenerator[bytes, None]:
        yield replies.sse(first)
        try:
            async for event in events:
                yield replies.sse(event)
        except CoordinatorError as error:
            self._note(request, error)
            yield replies.sse(replies.error_reply(error, self._clock.now()).body)
        except Exception as error:  # the status is sent: the stream has to say it
            log.error("a stream failed", exc_info=error)
            yield replies.sse(replies.INTERNAL)
        yield replies.SSE_DONE

    async def _models(self, request: Request) -> Reply:
        self._caller(request)
        models = self._api.models(self._started)
        if request.path == MODELS:
            return _json({"object": "list", "data": models})
        return _json(self._api.model(request.path.removeprefix(f"{MODELS}/"), self._started))

    async def _usage(self, request: Request) -> Reply:
        identity, user = self._caller(request)
        task = _only(request, TASK_HEADER) or request.query.get("task", [""])[0]
        return _json(await self._api.usage(identity, label_of(task, "") if task else "", user or ""))

    def _caller(self, request: Request) -> tuple[Identity, str | None]:
        """Who asks, and for which person: "" for nobody in particular, None where one has to be named and is not.

        Raises CoordinatorError.
        """
        _only(request, "authorization")
        try:
            identity = self._authenticator.authenticate(facts_of(request))
        except Unauthenticated as error:  # its hint is for devices
            raise Unauthenticated(str(error), hint=HINT, metadata=error.metadata) from error
        request.who = identity.device
        if identity.role not in ROLES:
            raise PermissionDenied(f"role {identity.role} may not ask the cloud", hint=HINT)
        if identity.role == "device" and identity.shown == "token" and identity.certificate is None and self._needs_certificate:
            raise Unauthenticated("devices show a certificate here (tls.require_client_cert)", hint=HINT)
        header = self._user_headers.get(identity.device)
        if header is None:
            return identity, ""
        if identity.shown == "local":
            raise PermissionDenied(f"device {identity.device} names people, so it has to show a credential", hint=HINT)
        user = _only(request, header)
        return identity, require_user(user, header) if user else None

    def _measured(self, handler: Handler) -> Handler:
        """Counted, timed and traced as RPCs are; a stream is timed until it begins, and its span ends with it."""
        time, tracing = asyncio.get_running_loop().time, self._tracing

        async def reply(request: Request) -> Reply:
            began = time()
            span = None if tracing is None else tracing.begin_http(request.method, _route(request.path), request.headers)
            (code, reason), answer = CANCELLED, Reply(status=LEFT)
            try:
                answer = await handler(request)
                code, reason = OK
            except CoordinatorError as error:
                code, reason = self._note(request, error)
                answer = self._refusal(error)
            except Exception as error:
                code, reason, answer = "INTERNAL", "INTERNAL", self._refusal(error)
                raise  # for the listener's log
            finally:
                if method := _METHODS.get(request.path):
                    self._meters.rpcs[method, code, reason] += 1
                    self._meters.rpc_seconds[method].observe(time() - began)
                if span is not None:
                    end = partial(end_served, span, ("http.response.status_code", answer.status), reason)
                    end() if answer.stream is None else answer.held.callback(end)
            return answer

        return reply

    def _note(self, request: Request, error: CoordinatorError) -> tuple[str, str]:
        row = row_for(error)
        who = request.who or "unknown"
        self._refusals.note(_METHODS.get(request.path, request.path[:64]), who, row.code.name, row.reason, str(error))
        return row.code.name, row.reason

    def _refusal(self, error: Exception) -> Reply:
        if isinstance(error, CoordinatorError):
            found = replies.error_reply(error, self._clock.now())
            return _json(found.body, found.status, found.headers)
        return _json(replies.INTERNAL, 500, {"x-should-retry": "false"})


def _route(path: str) -> str:
    """The path without what callers put into it."""
    return path if path in _METHODS else f"{MODELS}/" if path.startswith(f"{MODELS}/") else "unknown"


def _only(request: Request, header: str) -> str:
    """The header's value, "" without one. Raises BadParameter for several: another program may read another one of them."""
    values = request.headers.get(header.lower(), [])
    if len(values) > 1:
        raise BadParameter(header, "is there more than once")
    return values[0] if values else ""


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(replies.encode(value), status, headers={"cache-control": "no-store", **(headers or {})})
