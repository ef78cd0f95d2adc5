"""The coordinator's chat endpoint over the simulated network: its real API without sockets, as one more method of a simulated server.

A reply is its head (status, headers, and the body of one that is not streamed), then the server-sent events of a stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
import msgspec

from coordinator.calls.admission import Turnstile
from coordinator.endpoint import replies
from coordinator.endpoint.api import ChatApi
from coordinator.endpoint.listener import CHAT, KEY_HEADER, TASK_HEADER, USAGE
from coordinator.endpoint.requests import require_user
from coordinator.service.access import DEVICE_ID_KEY
from coordinator.service.authentication import Identity
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError

USER_HEADER = "x-user"


class Head(msgspec.Struct, frozen=True):
    """How a reply begins. `body`: None where it is streamed."""

    status: int
    headers: dict[str, str] = {}
    body: dict[str, Any] | None = None


class ChatHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers chat requests. `tasks_of`: the labels that a device may use."""

    def __init__(self, api: ChatApi, places: Turnstile, clock: Clock, tasks_of: Callable[[str], frozenset[str]]) -> None:
        self._api = api
        self._places = places
        self._clock = clock
        self._tasks_of = tasks_of
        self._methods = {
            CHAT: grpc.unary_stream_rpc_method_handler(self._chat, bytes, bytes),
            USAGE: grpc.unary_unary_rpc_method_handler(self._usage, bytes, bytes),
        }

    def service(self, handler_call_details: Any) -> Any:
        """See grpc.GenericRpcHandler."""
        return self._methods.get(handler_call_details.method)

    async def _chat(self, body: bytes, context: Any) -> AsyncGenerator[bytes, None]:
        begun = False
        try:
            async with aclosing(self._answer(body, dict(context.invocation_metadata()))) as parts:
                async for part in parts:
                    begun = True
                    yield part
        except CoordinatorError as error:
            reply = replies.error_reply(error, self._clock.now())
            if not begun:
                yield replies.encode(Head(reply.status, reply.headers, reply.body))
                return
            yield replies.sse(reply.body)
            yield replies.SSE_DONE
        except Exception as error:
            yield replies.encode(
                Head(500, {"x-should-retry": "false"}, replies.error_body(repr(error), kind="", code="internal"))
            )

    async def _usage(self, _: bytes, context: Any) -> bytes:
        headers = dict(context.invocation_metadata())
        try:
            identity, user = self._caller(headers)
            return replies.encode(Head(200, body=await self._api.usage(identity, headers.get(TASK_HEADER, ""), user)))
        except CoordinatorError as error:
            reply = replies.error_reply(error, self._clock.now())
            return replies.encode(Head(reply.status, reply.headers, reply.body))

    def _caller(self, headers: Mapping[str, str]) -> tuple[Identity, str]:
        device = headers[DEVICE_ID_KEY]
        user = require_user(headers[USER_HEADER], USER_HEADER) if USER_HEADER in headers else ""
        return Identity("client", device, self._tasks_of(device)), user

    async def _answer(self, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        identity, user = self._caller(headers)
        device = identity.device
        asked = self._api.read(body, identity, task=headers.get(TASK_HEADER, ""), key=headers.get(KEY_HEADER, ""), user=user)
        with self._places.passage(device):
            if not asked.stream:
                yield replies.encode(Head(200, body=await self._api.complete(asked, device, user)))
                return
            async with aclosing(self._api.stream(asked, device, user)) as events:
                first = await anext(events)  # what fails before it has its own status
                yield replies.encode(Head(200))
                yield replies.sse(first)
                async for event in events:
                    yield replies.sse(event)
        yield replies.SSE_DONE
