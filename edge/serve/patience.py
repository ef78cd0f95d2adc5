"""How long a connection may keep the server waiting. Knows uvicorn's protocol over h11; knows nothing of requests' meaning.

A client that sends its request byte by byte, or does not read its answer, is cut off, so that it holds neither a place nor the gate that
learning waits at. When all places are taken, the connection whose request has been awaited longest makes room for the next one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge.serve.failures import error_body

REQUEST_S = 45.0
"""For a request to be here with its body; longer than the body's own limit, which answers with an error."""
READ_S = 60.0
"""For a client to take some of what waits for it."""
MOST_CONNECTIONS = 256
_CLOSE = {"connection": "close"}
_NO_ROOM = JSONResponse(
    error_body("too many connections with work to do; try again", kind="server_error", code="too_many_connections"),
    status_code=503,
    headers={**_CLOSE, "retry-after": "1"},
)
_NOT_HTTP = JSONResponse(
    error_body("this is no valid HTTP request", kind="invalid_request_error", code="invalid_http"),
    status_code=400,
    headers=_CLOSE,
)


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with an end to waiting."""

    request_s = REQUEST_S
    read_s = READ_S
    most_connections = MOST_CONNECTIONS
    _arriving: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection is there; its first request is to come."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._make_room()
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        else:
            self._request_is_here()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._request_is_here()
        self._client_reads()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Say that this is no HTTP, in the form of every other error; where an answer is on its way already, hang up."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=_NOT_HTTP.status_code, headers=_NOT_HTTP.raw_headers),
                h11.Data(data=bytes(_NOT_HTTP.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def waits_since(self) -> float | None:
        """The event loop's time when it began to wait for a request, None while one is worked on or it is being closed."""
        if self.transport.is_closing():
            return None
        if self._arriving is not None:
            return self._arriving.when() - self.request_s
        idle = self.timeout_keep_alive_task
        return None if idle is None else idle.when() - self.timeout_keep_alive

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read on."""
        self._client_reads()
        super().resume_writing()

    def _make_room(self) -> None:
        waiting = {other: other.waits_since for other in self.connections if isinstance(other, PatientProtocol)}
        since = {other: time for other, time in waiting.items() if time is not None}
        if since:
            min(since, key=since.__getitem__).transport.abort()
        else:
            self.app = _NO_ROOM

    def _await_request(self) -> None:
        self._arriving = self._arriving or self.loop.call_later(self.request_s, self.transport.abort)

    def _request_is_here(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _client_reads(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
