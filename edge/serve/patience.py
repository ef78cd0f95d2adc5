"""How long a connection may keep the server waiting. Knows uvicorn's protocol over h11; knows nothing of requests' meaning.

A client that sends its request byte by byte, or does not read its answer, is cut off, so that it holds neither a place nor the gate that
learning waits at.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 45.0
"""For a request to be here with its body; longer than the body's own limit, which answers with an error."""
READ_S = 60.0
"""For a client to take some of what waits for it."""


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with an end to waiting."""

    request_s = REQUEST_S
    read_s = READ_S
    _arriving: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection is there; its first request is to come."""
        super().connection_made(transport)
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

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read on."""
        self._client_reads()
        super().resume_writing()

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
