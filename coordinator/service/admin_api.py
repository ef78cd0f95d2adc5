"""The AdminService's handlers: request message -> response message, without sockets or gRPC contexts.

No reply holds prompts, answers or keys. Lists are read page by page, so that a long ledger holds up no call for long.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message
from msgspec.structs import asdict

from coordinator.calls.admission import draining
from coordinator.calls.broker import Broker, progress_of
from coordinator.calls.upstreams import Upstream, UpstreamTable
from coordinator.config import LimitConfig
from coordinator.control.devices import MAX_VERSION_CHARS, Fleet, require_device_id
from coordinator.ledger.accounts import AS_CONFIGURED, Amount, AmountLimits, BudgetRow, CallRow, CallState, DeviceRow
from coordinator.ledger.budgets import SCOPES, SETTINGS, BudgetBook, limits_of, rows_held_to_next, settings_set
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.verify import VerifyReport
from coordinator.providers.provider import MAX_WORD_CHARS
from coordinator.service.authentication import Identity
from coordinator.service.tokens import MAX_LIFE_S, TokenAuthority
from edge.core.clock import Clock
from edge.core.errors import InvalidRequest
from edge.core.periods import PERIODS
from edge.rpc import codec
from edge.rpc.client import CallProgress
from edge.rpc.v1 import admin_pb2

T = TypeVar("T")
Record = TypeVar("Record", bound=Message)
DEFAULT_PAGE, MAX_PAGE = 100, 1000
MAX_PAGE_BYTES = 1 << 20
MAX_SEQ = 2**53
MAX_TOKEN_TASKS, MAX_TASK_CHARS = 256, 64
MAX_GRACE_S = 86400.0
JOURNAL_PAGE = 500
FOLLOW_EVERY_S = 0.5
MOST_LIMIT = 2**62
_STATES = {progress: state for state in CallState for progress in [progress_of(state)]}


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The AdminService without its transport."""

    store: LedgerStore
    broker: Broker
    fleet: Fleet
    upstreams: UpstreamTable
    book: BudgetBook
    tokens: TokenAuthority
    clock: Clock
    verify: Callable[[], Awaitable[VerifyReport]]
    """The ledger."""
    begin_drain: Callable[[float | None], None]
    """Within seconds (None: as configured), without waiting for the end."""
    openai_url: Callable[[], str] = lambda: ""
    """Base URL of the OpenAI-compatible endpoint, "" where it is off."""

    async def list_budgets(self, request: admin_pb2.ListBudgetsRequest, caller: Identity) -> admin_pb2.ListBudgetsResponse:
        """What was used of each budget, and the limits of each scope."""
        size, after = _page(request, 1)
        rows = await self.store.list_budgets_after(after[0], size, with_steps=request.include_steps)
        self.book.take_limits(await self.store.list_set_limits())
        shown = _fitting(map(budget_record, rows_held_to_next(rows, self.book.limits, self.clock.now())))
        token = _token(shown[-1].key) if len(shown) < len(rows) or len(rows) == size else ""
        scopes = [_scope(scope, self.book) for scope in SCOPES]
        return admin_pb2.ListBudgetsResponse(budgets=shown, next_page_token=token, scopes=scopes)

    async def set_budget(self, request: admin_pb2.SetBudgetRequest, caller: Identity) -> admin_pb2.SetBudgetResponse:
        """Change limits of one scope, durably, at once and at every replica."""
        if request.scope not in SCOPES:
            raise InvalidRequest(f"no scope is called {request.scope!r}; known: {', '.join(SCOPES)}")
        self.book.take_limits(await self.store.set_limits(request.scope, _changes(request), self.clock.now()))
        return admin_pb2.SetBudgetResponse(scope=_scope(request.scope, self.book))

    async def list_tasks(self, request: admin_pb2.ListTasksRequest, caller: Identity) -> admin_pb2.ListTasksResponse:
        """Each λ that several share, then λ, τ and next step of each device's tasks. While shared λs are left a page ends at one, under
        the empty name, which no device has.
        """
        size, after = _page(request, 2)
        left = [] if after[0] else [row for row in await self.store.list_shared_duals() if row.key > after[1]]
        shared = _fitting(map(shared_dual_record, sorted(left, key=lambda row: row.key)))
        if len(shared) < len(left):
            return admin_pb2.ListTasksResponse(next_page_token=_token("", shared[-1].key), shared_duals=shared)
        mine = [row for row in await self.store.list_tasks() if request.device in ("", row.device)]
        rows, token = _cut(mine, lambda row: (row.device, row.task), (after[0], after[1]), size, task_record)
        return admin_pb2.ListTasksResponse(tasks=rows, next_page_token=token, shared_duals=shared)

    async def list_upstreams(self, request: admin_pb2.ListUpstreamsRequest, caller: Identity) -> admin_pb2.ListUpstreamsResponse:
        """The cloud LLMs, what they cost and how busy they are."""
        now, loop_s = self.clock.now(), asyncio.get_running_loop().time()
        return admin_pb2.ListUpstreamsResponse(
            upstreams=[_upstream(upstream, now, loop_s) for upstream in self.upstreams.all()],
            in_flight=self.broker.in_flight,
            draining=not self.broker.admitting,
            ledger_unwritable=not self.store.writability.ok,
            openai_url=self.openai_url(),
        )

    async def list_devices(self, request: admin_pb2.ListDevicesRequest, caller: Identity) -> admin_pb2.ListDevicesResponse:
        """The devices that ever registered."""
        size, after = _page(request, 1)
        rows, token = _cut(await self.fleet.devices(), lambda row: (row.device,), (after[0],), size, device_record)
        return admin_pb2.ListDevicesResponse(devices=rows, next_page_token=token)

    async def set_device_disabled(
        self, request: admin_pb2.SetDeviceDisabledRequest, caller: Identity
    ) -> admin_pb2.SetDeviceDisabledResponse:
        """Shut a device out, or let it in again, at every replica. Raises InvalidRequest on a malformed name, NotFound."""
        device = await self.fleet.set_disabled(request.device, request.disabled)
        return admin_pb2.SetDeviceDisabledResponse(device=device_record(device))

    async def issue_token(self, request: admin_pb2.IssueTokenRequest, caller: Identity) -> admin_pb2.IssueTokenResponse:
        """A first token for a device. Raises InvalidRequest on a malformed name or a life that is too long."""
        device, life_s = require_device_id(request.device), self.tokens.life_s
        if request.HasField("lifetime"):
            life_s = request.lifetime.seconds
        if not 1 <= life_s <= MAX_LIFE_S:
            raise InvalidRequest(f"a token lives 1 to {MAX_LIFE_S} s, not {life_s}")
        if len(request.tasks) > MAX_TOKEN_TASKS or any(not 0 < len(task) <= MAX_TASK_CHARS for task in request.tasks):
            raise InvalidRequest(f"a token names at most {MAX_TOKEN_TASKS} tasks of 1 to {MAX_TASK_CHARS} characters")
        token = await asyncio.to_thread(self.tokens.issue, "device", device, tuple(request.tasks), life_s)
        return admin_pb2.IssueTokenResponse(token=token, expires_ms=1000 * self.tokens.check(token).expires_at)

    async def revoke_device(self, request: admin_pb2.RevokeDeviceRequest, caller: Identity) -> admin_pb2.RevokeDeviceResponse:
        """End all tokens and certificates of a device. Raises InvalidRequest on a malformed name."""
        row = await asyncio.to_thread(self.tokens.revoke, "device", require_device_id(request.device))
        known = row.issued_at is not None or any(each.device == row.name for each in await self.fleet.devices())
        return admin_pb2.RevokeDeviceResponse(epoch=row.epoch, known=known)

    async def list_calls(self, request: admin_pb2.ListCallsRequest, caller: Identity) -> admin_pb2.ListCallsResponse:
        """The calls by device and key. A page of one state may be short, because only `page_size` calls are looked at."""
        size, after = _page(request, 2)
        wanted = codec.decode_progress(request.state)
        if wanted is CallProgress.DROPPED:
            raise InvalidRequest("dropped calls leave no trace in the ledger")
        rows = await self.store.list_calls_after(after[0], after[1], size, device=request.device)
        page = _fitting(map(_call, rows))
        token = _token(page[-1].device, page[-1].call_key) if len(page) < len(rows) or len(rows) == size else ""
        shown = [call for call, row in zip(page, rows, strict=False) if wanted is None or row.state is _STATES[wanted]]
        return admin_pb2.ListCallsResponse(calls=shown, next_page_token=token)

    async def read_journal(
        self, request: admin_pb2.ReadJournalRequest, caller: Identity
    ) -> AsyncIterator[admin_pb2.ReadJournalResponse]:
        """The journal's entries; with `follow` also those to come, until the coordinator drains (DRAINING)."""
        after = request.after
        if after > MAX_SEQ:
            raise InvalidRequest(f"after is the number of an entry, at most {MAX_SEQ}")
        while True:
            last_look = not self.broker.admitting and self.broker.in_flight == 0
            while entries := await self.store.read_journal(after, JOURNAL_PAGE):
                for entry in entries:
                    yield record_of(admin_pb2.ReadJournalResponse, entry)
                after = entries[-1].seq
            if not request.follow:
                return
            if last_look:
                raise draining()
            await asyncio.sleep(FOLLOW_EVERY_S)

    async def verify_ledger(self, request: admin_pb2.VerifyLedgerRequest, caller: Identity) -> admin_pb2.VerifyLedgerResponse:
        """Prove every balance and every λ from the journal."""
        report = await self.verify()
        return admin_pb2.VerifyLedgerResponse(**report.to_json())

    async def drain(self, request: admin_pb2.DrainRequest, caller: Identity) -> admin_pb2.DrainResponse:
        """Begin to stop; returns what is under way now."""
        grace_s = request.grace.ToNanoseconds() / 1e9 if request.HasField("grace") else None
        if grace_s is not None and not 0.0 <= grace_s <= MAX_GRACE_S:
            raise InvalidRequest("grace cannot be negative or longer than a day")
        running = self.broker.in_flight
        self.begin_drain(grace_s)
        return admin_pb2.DrainResponse(in_flight=running)


def _page(request: Any, parts: int) -> tuple[int, tuple[str, ...]]:
    """Entries wanted, and the key of the last one shown (empty texts at the beginning). Raises InvalidRequest."""
    size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
    if not request.page_token:
        return size, ("",) * parts
    try:
        after = json.loads(base64.urlsafe_b64decode(request.page_token.encode("ascii")))
    except ValueError as error:
        raise InvalidRequest("page_token is none of this coordinator's") from error
    if not (isinstance(after, list) and len(after) == parts and all(isinstance(part, str) for part in after)):
        raise InvalidRequest("page_token is none of this list's")
    return size, tuple(after)


def _token(*key: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode("ascii")).decode("ascii")


def _cut(
    rows: Sequence[T],
    key: Callable[[T], tuple[str, ...]],
    after: tuple[str, ...],
    size: int,
    encode: Callable[[T], Record],
) -> tuple[list[Record], str]:
    """The page after a key of rows sorted by it, encoded, and the token of the next page."""
    left = [row for row in rows if key(row) > after]
    page = _fitting(map(encode, left[:size]))
    return page, _token(*key(left[len(page) - 1])) if len(left) > len(page) else ""


def _fitting(records: Iterable[Record]) -> list[Record]:
    """The first records that fit one page of MAX_PAGE_BYTES, at least one where there are any: a list must pass every message limit."""
    page: list[Record] = []
    size = 0
    for record in records:
        size += record.ByteSize()
        if page and size > MAX_PAGE_BYTES:
            break
        page.append(record)
    return page


def _changes(request: admin_pb2.SetBudgetRequest) -> dict[str, Any]:
    changes = {name: _limit(getattr(request, unit)) for unit, name in SETTINGS.items() if request.HasField(unit)}
    if request.window:
        if request.window not in (*PERIODS, AS_CONFIGURED):
            raise InvalidRequest(f"no window is called {request.window!r}; known: {', '.join(PERIODS)}")
        changes["window"] = request.window
    if not changes:
        raise InvalidRequest("nothing to set")
    return changes


def _limit(change: admin_pb2.LimitChange) -> Any:
    kind = change.WhichOneof("to")
    if kind == "unlimited" and change.unlimited:
        return None
    if kind == "configured" and change.configured:
        return AS_CONFIGURED
    if kind != "value" or change.value > MOST_LIMIT:
        raise InvalidRequest(f"a limit is `unlimited`, `configured` or a number up to {MOST_LIMIT}")
    return change.value


def record_of(kind: type[Record], row: Any, **other: Any) -> Record:
    """A record with the fields that `row` has under the same names, and `other` in place of those it has not."""
    fields = {field.name: getattr(row, field.name) for field in kind.DESCRIPTOR.fields if field.name not in other} | other
    return kind(**{name: asdict(value) if isinstance(value, Amount | AmountLimits) else value for name, value in fields.items()})


def budget_record(row: BudgetRow) -> admin_pb2.BudgetRecord:
    """A budget for the wire."""
    return record_of(admin_pb2.BudgetRecord, row, limits=row.asked)


def device_record(row: DeviceRow) -> admin_pb2.DeviceRecord:
    """A device for the wire."""
    return record_of(admin_pb2.DeviceRecord, row, agent_version=row.agent_version[:MAX_VERSION_CHARS])


task_record = partial(record_of, admin_pb2.TaskRecord)
shared_dual_record = partial(record_of, admin_pb2.SharedDualRecord)


def _scope(scope: str, book: BudgetBook) -> admin_pb2.ScopeLimits:
    limit: LimitConfig = getattr(book.limits, scope)
    names = settings_set(book.rows).get(scope, ())
    return admin_pb2.ScopeLimits(scope=scope, window=limit.window, limits=asdict(limits_of(limit)), set=names)


def _upstream(upstream: Upstream, now: float, loop_s: float) -> admin_pb2.UpstreamRecord:
    price = upstream.price_at(now)
    return record_of(
        admin_pb2.UpstreamRecord,
        upstream,
        provider=upstream.provider.name,
        waiting=upstream.gate.waiting,
        breaker=upstream.breaker.state(loop_s),
        price=None if price is None else record_of(admin_pb2.PriceRecord, price),
    )


def _call(row: CallRow) -> admin_pb2.CallRecord:
    return record_of(
        admin_pb2.CallRecord,
        row,
        call_key=row.key,
        step=None if row.step < 0 else row.step,
        state=codec.encode_progress(progress_of(row.state)),
        finish=row.finish[:MAX_WORD_CHARS],
    )
