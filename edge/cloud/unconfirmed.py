"""Cloud calls whose outcome this device does not know: the one place where they are reconciled with the coordinator.

A call is written down under its key before it is sent. Where its reply is lost, the coordinator is asked what became of it, until that is
known: it never sends anything again. Two tables hold such calls: `AnswerCalls` those for people, `edge.budget.daily` those of learning.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from edge.cloud.client import LOST_REASONS
from edge.core.clock import Clock
from edge.core.errors import CallInProgress, CoordinatorError, CoordinatorUnavailable, NotFound, Withheld, is_refused_alone
from edge.core.events import EventSink
from edge.core.formatting import money
from edge.rpc.client import CallProgress, CoordinatorClient
from edge.state.answer_record import AnswerRecord
from edge.state.events import Notice
from edge.state.folder import StateFolder

ARRIVES_WITHIN_S = 45.0
"""A request that the coordinator has not known for so long is not on its way any more."""
UNSETTLED = "unsettled"
NEVER_ARRIVED = "never_arrived"
_AWAY = LOST_REASONS | {"DEADLINE_EXCEEDED"}
EndOf = Callable[[str], Awaitable[Mapping[str, Any]]]
"""What became of a call, by its key, as `end_of_call` returns it; raises CoordinatorError while nobody can be asked."""


class UnconfirmedCalls(ABC):
    """A table of calls, and what reconciles it. What was seen of a call under way counts for one process; another one begins again."""

    def __init__(self, clock: Clock, end_of: EndOf) -> None:
        self._clock = clock
        self._end_of = end_of
        self._under_way: set[str] = set()
        self._unknown_since: dict[str, float] = {}

    @abstractmethod
    def unsettled(self) -> list[str]:
        """Keys of the calls without a known end, oldest first."""

    @abstractmethod
    def write_end(self, key: str, end: Mapping[str, Any]) -> bool:
        """Write down what became of a call; False where that was done meanwhile. May raise sqlite3.Error: it is asked for again."""

    def sent(self, key: str) -> None:
        """A call is about to be sent; until `returned` nobody else asks for its end."""
        self._unknown_since.pop(key, None)
        self._under_way.add(key)

    def returned(self, key: str) -> None:
        """Nobody waits for the call any more."""
        self._under_way.discard(key)

    def waiting(self) -> list[str]:
        """Keys of the calls that nobody waits for and whose end is not known, oldest first."""
        return [key for key in self.unsettled() if key not in self._under_way]

    async def settle(self) -> int:
        """Ask for the end of each waiting call; how many are known now. Stops where nobody can be asked."""
        settled = 0
        for key in self.waiting():
            try:
                settled += await self._reconcile(key, waited_for=False)
            except CoordinatorError as error:
                if not is_refused_alone(error):
                    break
        return settled

    async def settle_own(self, key: str) -> None:
        """Ask for the end of a failed call while it still counts as under way."""
        with suppress(CoordinatorError):
            await self._reconcile(key, waited_for=True)

    async def _reconcile(self, key: str, *, waited_for: bool) -> bool:
        try:
            end = await self._end_of(key)
        except CallInProgress:
            return False
        if key in self._under_way and not waited_for:  # it was made again meanwhile
            return False
        if end["call_state"] == NEVER_ARRIVED:
            now = self._clock.monotonic()
            if now - self._unknown_since.setdefault(key, now) < ARRIVES_WITHIN_S:  # a request may still be on its way
                return False
            del self._unknown_since[key]
        with suppress(sqlite3.Error):
            return self.write_end(key, end)
        return False


class AnswerCalls(UnconfirmedCalls):
    """The calls made for people, with the records of their answers."""

    def __init__(self, state: StateFolder, end_of: EndOf, sink: EventSink, clock: Clock) -> None:
        super().__init__(clock, end_of)
        self._state = state
        self._sink = sink
        self.wake = asyncio.Event()

    def begin(self, record: AnswerRecord) -> None:
        """Write down a call before it is sent, or what became of it; `record` is the answer's as it would be left by a crash now.

        Raises Withheld when it cannot be written: then the call must not be sent.
        """
        row = (record.call_key, record.id, record.created_at, json.dumps(record.to_json()))
        try:
            with self._state.database as database:
                database.execute("REPLACE INTO calls_in_doubt VALUES (?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise Withheld(f"the call cannot be written down ({error})", hint="make room on the disk") from error
        self.sent(record.call_key)

    @contextmanager
    def waited_for(self, call_key: Callable[[], str]) -> Iterator[None]:
        """Around an answer, so that its call is not settled under it; the key ("": none was made) is asked for at the end."""
        try:
            yield
        finally:
            self.returned(call_key())
            with suppress(sqlite3.ProgrammingError):  # closed: an answer that outlives its state folder has nobody to wake
                if self.waiting():
                    self.wake.set()

    def confirm(self, call_key: str) -> None:
        """The call's end is in the record that the transaction under way keeps."""
        self._state.database.execute("DELETE FROM calls_in_doubt WHERE call_key = ?", (call_key,))

    def forget(self, key: str) -> bool:
        """Nothing came of the call: it was refused, or never arrived. Where that cannot be written it is asked for again later."""
        try:
            with self._state.database:
                self.confirm(key)
        except sqlite3.Error:
            return False
        return True

    def unsettled(self) -> list[str]:
        """See UnconfirmedCalls."""
        return [str(key) for (key,) in self._state.rows("SELECT call_key FROM calls_in_doubt ORDER BY at, call_key")]

    def write_end(self, key: str, end: Mapping[str, Any]) -> bool:
        """Into the answer's record, or into the one that was begun where the answer never came to its end."""
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
        self._state.put_request(request_id, at, {**record, **end}, in_the_same_transaction=lambda: self.confirm(key))
        if end["charged_uusd"]:
            text = f"the cloud call of answer {request_id}, whose reply was lost, cost {money(end['charged_uusd'])}"
            self._sink.emit(Notice(text, self._clock.now()))
        return True

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


async def end_of_call(client: CoordinatorClient, key: str) -> dict[str, Any]:
    """What became of a call whose reply was lost, as fields of its record: `call_state`, `charged_uusd`, and of one that was answered its
    tokens and model. Starts no work. Raises CallInProgress, and CoordinatorUnavailable when nobody can be asked."""
    try:
        found = await client.get_call(key)
    except NotFound:
        return {"call_state": NEVER_ARRIVED, "charged_uusd": 0}
    except CallInProgress:
        raise
    except CoordinatorError as error:
        if isinstance(error, CoordinatorUnavailable) and error.reason in _AWAY:
            raise
        ended = await client.cancel_call(key)  # it ended without an answer: how, and what it cost all the same
        if ended.progress is CallProgress.RUNNING:
            raise CallInProgress(f"call {key!r} is running") from error
        return {"call_state": ended.progress.value, "charged_uusd": ended.charged_uusd}
    tokens = found.usage.input_tokens + found.usage.output_tokens
    state = CallProgress.COMPLETED.value
    return {"call_state": state, "charged_uusd": found.charged_uusd, "cloud_tokens": tokens, "cloud_model": found.model}
