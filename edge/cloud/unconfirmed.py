"""Cloud calls whose outcome this device does not know yet, and finding it out."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from edge.cloud.client import LOST_REASONS
from edge.core.clock import Clock
from edge.core.errors import CallInProgress, CoordinatorError, CoordinatorUnavailable, NotFound, Withheld
from edge.core.events import EventSink
from edge.core.formatting import dollars
from edge.rpc.client import CallProgress, CoordinatorClient
from edge.state.answer_record import AnswerRecord
from edge.state.events import Notice
from edge.state.folder import StateFolder

ARRIVES_WITHIN_S = 45.0


class Arrivals:
    """Of the calls of one process; another one begins to wait anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unknown_since: dict[str, float] = {}

    def sent(self, key: str) -> None:
        """A request leaves: what was heard of the call before counts no longer."""
        self._unknown_since.pop(key, None)

    def is_lost(self, key: str) -> bool:
        """Told that the coordinator does not know the call now: whether no request of it can be on its way any more."""
        now = self._clock.monotonic()
        lost = now - self._unknown_since.setdefault(key, now) >= ARRIVES_WITHIN_S
        if lost:
            del self._unknown_since[key]
        return lost


UNSETTLED = "unsettled"
NEVER_ARRIVED = "never_arrived"
_AWAY = LOST_REASONS | {"DEADLINE_EXCEEDED"}


class UnconfirmedCalls:
    """The notes, and what settles them."""

    def __init__(self, state: StateFolder, client: CoordinatorClient, sink: EventSink, clock: Clock) -> None:
        self._state = state
        self._client = client
        self._sink = sink
        self._clock = clock
        self._under_way: set[str] = set()
        self._arrivals = Arrivals(clock)
        self.wake = asyncio.Event()

    def begin(self, record: AnswerRecord) -> None:
        """Note a call before it is sent, or what became of it; `record` is the answer's as it would be left by a crash now.

        Raises Withheld when it cannot be written: then the call must not leave.
        """
        row = (record.call_key, record.id, record.created_at, json.dumps(record.to_json()))
        try:
            with self._state.database as database:
                database.execute("REPLACE INTO calls_in_doubt VALUES (?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise Withheld(f"the call cannot be written down ({error})", hint="make room on the disk") from error
        self._under_way.add(record.call_key)
        self._arrivals.sent(record.call_key)

    @contextmanager
    def waited_for(self, call_key: Callable[[], str]) -> Iterator[None]:
        """Around an answer, so that its call is not settled under it; the key ("": none was made) is asked for at the end."""
        try:
            yield
        finally:
            self._under_way.discard(call_key())
            with suppress(sqlite3.ProgrammingError):  # closed: an answer that outlives its state folder has nobody to wake
                if self.waiting():
                    self.wake.set()

    def cross_out(self, call_key: str) -> None:
        """The call's end is in the record that the transaction under way keeps."""
        self._state.database.execute("DELETE FROM calls_in_doubt WHERE call_key = ?", (call_key,))

    def waiting(self) -> list[str]:
        """Keys of the calls that nobody waits for and whose end is not known, oldest first."""
        rows = self._state.rows("SELECT call_key FROM calls_in_doubt ORDER BY at, call_key")
        return [str(key) for (key,) in rows if key not in self._under_way]

    async def keep_settling(self, first_pause_s: float, longest_pause_s: float) -> None:
        """Until cancelled: whenever there is something to settle, try, more slowly each time in a row."""
        while True:
            await self.wake.wait()
            pause_s = first_pause_s
            while self.waiting():
                if not await self.settle():
                    await asyncio.sleep(pause_s)
                    pause_s = min(longest_pause_s, 2.0 * pause_s)
            self.wake.clear()

    async def settle(self) -> int:
        """Ask for the end of each; how many are known now. Stops where the coordinator is away; never raises CoordinatorError."""
        settled = 0
        for key in self.waiting():
            try:
                end = await end_of_call(self._client, key)
            except CallInProgress:
                continue
            except CoordinatorError:
                break
            if end["call_state"] == NEVER_ARRIVED and not self._arrivals.is_lost(key):
                continue
            with suppress(sqlite3.Error):  # it stays to be settled, once it can be written down
                settled += self._write(key, end)
        return settled

    def forget(self, key: str) -> bool:
        """Nothing came of the call: it was refused, or never arrived. Where that cannot be written it is asked for again later."""
        try:
            with self._state.database:
                self.cross_out(key)
        except sqlite3.Error:
            return False
        return True

    def _write(self, key: str, end: dict[str, Any]) -> bool:
        """Into the record, or into the one that was begun where the answer never came to its end. False where it was settled meanwhile."""
        rows = self._state.rows("SELECT request_id, at, record FROM calls_in_doubt WHERE call_key = ?", (key,))
        if not rows:
            return False
        request_id, at, begun = rows[0]
        try:
            record = self._state.request(request_id)
        except NotFound:
            if end["call_state"] == NEVER_ARRIVED:
                return self.forget(key)
            record = json.loads(begun)
        self._state.put_request(request_id, at, {**record, **end}, beside=lambda: self.cross_out(key))
        if end["charged_uusd"]:
            text = f"the cloud call of answer {request_id}, whose reply was lost, cost {dollars(end['charged_uusd'])}"
            self._sink.emit(Notice(text, self._clock.now()))
        return True


async def end_of_call(client: CoordinatorClient, key: str) -> dict[str, Any]:
    """What a record has to say of a call whose reply was lost: `call_state`, `charged_uusd`, and of one that was answered its tokens and
    model. Starts no work. Raises CallInProgress, and CoordinatorUnavailable when nobody can be asked."""
    try:
        found = await client.get_call(key)
    except NotFound:
        return {"call_state": NEVER_ARRIVED, "charged_uusd": 0}
    except CallInProgress:
        raise
    except CoordinatorError as error:
        if isinstance(error, CoordinatorUnavailable) and error.reason in _AWAY:
            raise
        return await _failed_end(client, key)
    tokens = found.usage.input_tokens + found.usage.output_tokens
    state = CallProgress.COMPLETED.value
    return {"call_state": state, "charged_uusd": found.charged_uusd, "cloud_tokens": tokens, "cloud_model": found.model}


async def _failed_end(client: CoordinatorClient, key: str) -> dict[str, Any]:
    """Of a call that ended without an answer: how, and what it cost all the same."""
    ended = await client.cancel_call(key)
    if ended.progress is CallProgress.RUNNING:
        raise CallInProgress(f"call {key!r} is running")
    return {"call_state": ended.progress.value, "charged_uusd": ended.charged_uusd}
