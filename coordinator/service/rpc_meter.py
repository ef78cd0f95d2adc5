"""Times and counts every RPC of a listener. Knows gRPC's handlers and statuses; knows nothing of what an RPC does or who may call it.

The meter stands before the guard, so that what the guard refuses is counted too. How an RPC ended is read from its context.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from coordinator.service.access import identity_of_call
from coordinator.service.handlers import Wrapping
from coordinator.service.measuring import Refusals
from coordinator.service.methods import is_unknown
from coordinator.service.metrics import Meters, RpcMeter
from edge.rpc.errors import DETAILS_KEY

UNMETERED = ("grpc.health.", "grpc.reflection.")
CANCELLED = ("CANCELLED", "CALLER_LEFT")


class RpcCounter(Wrapping):
    """Wraps every handler of a server. `lasting` names the streams whose duration says nothing."""

    def __init__(self, meters: Meters, refusals: Refusals, lasting: frozenset[str]) -> None:
        self._meters = meters
        self._refusals = refusals
        self._lasting = lasting

    def passes(self, method: str, handler: Any) -> bool:
        """Health checks, reflection and what does not exist are not counted."""
        return is_unknown(handler) or method.startswith(UNMETERED, 1)

    def replying(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """One reply."""
        method = method.rpartition("/")[2]
        meter, time = self._meters.rpc(method), asyncio.get_running_loop().time

        async def metered(request: Any, context: Any) -> Any:
            began = time()
            try:
                reply = await inner(request, context)
                meter.answered += 1
            except BaseException:
                self._ended(meter, method, context)
                raise
            finally:
                meter.seconds.observe(time() - began)
            return reply

        return metered

    def streaming(self, inner: Any, method: str, *, reads_stream: bool) -> Any:
        """A stream of replies."""
        method = method.rpartition("/")[2]
        meter, time, lasting = self._meters.rpc(method), asyncio.get_running_loop().time, method in self._lasting

        async def metered(request: Any, context: Any) -> AsyncIterator[Any]:
            began = time()
            try:
                async with aclosing(inner(request, context)) as replies:
                    async for reply in replies:
                        yield reply
                meter.answered += 1
            except BaseException:
                self._ended(meter, method, context)
                raise
            finally:
                if not lasting:
                    meter.seconds.observe(time() - began)

        return metered

    def _ended(self, meter: RpcMeter, method: str, context: Any) -> None:
        """Count an RPC that gave no answer, by what its caller was told; a caller that left was told nothing."""
        code, reason = outcome_of(context)
        meter.refused[code, reason] += 1
        if (code, reason) != CANCELLED:
            self._refusals.note(method, _who(context), code, reason, _message_of(context))


def outcome_of(context: Any) -> tuple[str, str]:
    """Code and reason that the caller of an RPC without a reply was told; CANCELLED where it had left and was told nothing."""
    status = _status_of(context)
    return CANCELLED if status is None else (grpc_code(status.code), _reason_of(status))


def grpc_code(number: int) -> str:
    """The name of a status code."""
    return str(_CODES.get(number, "UNKNOWN"))


_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def _status_of(context: Any) -> status_pb2.Status | None:
    for key, value in context.trailing_metadata() or ():
        if key == DETAILS_KEY:
            return status_pb2.Status.FromString(value)
    return None


def _message_of(context: Any) -> str:
    status = _status_of(context)
    return "" if status is None else str(status.message)


def _reason_of(status: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    return str(info.reason) if any(detail.Unpack(info) for detail in status.details if detail.Is(info.DESCRIPTOR)) else ""


def _who(context: Any) -> str:
    try:
        return identity_of_call().device
    except LookupError:
        return str(context.peer())[:64]
