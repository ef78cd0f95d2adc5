"""What a running coordinator reports: how it is doing, its lists, whether it serves; and which devices it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from msgspec.structs import asdict as amount_asdict

from coordinator.commands.admin_client import AdminClient, credentials_of, required_coordinator, running_coordinator
from coordinator.config import ServerConfig
from coordinator.control.devices import Fleet
from coordinator.ledger.accounts import NO_AMOUNT, Amount
from coordinator.ledger.opening import in_ledger
from coordinator.service.admin_api import device_record
from coordinator.service.admin_text import as_json, records_of, upstream_line
from edge.core.clock import SystemClock
from edge.core.errors import CoordinatorUnavailable, UsageError
from edge.core.formatting import counted, money
from edge.rpc.address import parse_address
from edge.rpc.credentials import ClientCredentials
from edge.rpc.handshake import ADMINISTRATOR
from edge.rpc.health import is_serving, require_handshake
from edge.rpc.v1 import admin_pb2

DAY_MS = 86_400_000
DEVICE_SERVICE = "edge.rpc.v1.DeviceService"


@dataclass(frozen=True, slots=True)
class Status:
    """What `edge-coordinator status` shows. Today begins at midnight UTC."""

    serving: bool
    ledger_writable: bool
    open_calls: int
    upstreams: tuple[str, ...]
    spent_today: Amount
    devices: int
    """Those that registered at some time."""
    devices_today: int
    """Those of them that called today."""
    devices_disabled: int
    openai_url: str = ""
    """Base URL of the OpenAI-compatible endpoint; "" where it is off."""

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {**asdict(self), "upstreams": list(self.upstreams), "spent_today": amount_asdict(self.spent_today)}

    def lines(self) -> Iterator[str]:
        """For people."""
        spent = self.spent_today
        yield f"{'serving' if self.serving else 'draining: nothing new is taken'}, {counted(self.open_calls, 'call')} open"
        if not self.ledger_writable:
            yield "the ledger cannot be written: calls are refused, and the log says why"
        yield f"today: {counted(spent.calls, 'call')}, {counted(spent.tokens, 'token')}, {money(spent.uusd)}"
        disabled = f", {self.devices_disabled} disabled" if self.devices_disabled else ""
        yield f"devices: {self.devices} registered, {self.devices_today} seen today{disabled}"
        if self.openai_url:
            yield f"OpenAI's clients: {self.openai_url}"
        yield from self.upstreams


def status_of(client: AdminClient, now: float) -> Status:
    """As a running coordinator reports it. Raises CoordinatorError."""
    today_ms = int(now * 1000) // DAY_MS * DAY_MS
    upstreams = client.ask("ListUpstreams", admin_pb2.ListUpstreamsRequest())
    pages = client.pages("ListDevices", admin_pb2.ListDevicesRequest())
    devices: Sequence[Any] = [device for page in pages for device in page.devices]
    return Status(
        serving=not upstreams.draining,
        ledger_writable=not upstreams.ledger_unwritable,
        open_calls=upstreams.in_flight,
        upstreams=tuple(map(upstream_line, upstreams.upstreams)),
        spent_today=spent_since(client, today_ms),
        devices=sum(device.first_seen_ms > 0 for device in devices),
        devices_today=sum(device.last_seen_ms >= today_ms for device in devices),
        devices_disabled=sum(device.disabled for device in devices),
        openai_url=str(upstreams.openai_url),
    )


def spent_since(client: AdminClient, since_ms: int) -> Amount:
    """What calls that ended since then were charged, by the journal."""
    spent = NO_AMOUNT
    for entry in client.journal(_last_before(client, since_ms)):
        charge = entry.data().get("charge")
        if charge is not None and entry.at_ms >= since_ms:
            spent = Amount(*charge).plus(spent)
    return spent


def _last_before(client: AdminClient, since_ms: int) -> int:
    """The number of the last journal entry before this time, found by halving."""
    before, after = 0, 1
    while (entry := client.journal_entry_after(after)) is not None and entry.at_ms < since_ms:
        before, after = after, 2 * after
    while after - before > 1:
        middle = (before + after) // 2
        entry = client.journal_entry_after(middle)
        if entry is not None and entry.at_ms < since_ms:
            before = middle
        else:
            after = middle
    return before


def listed(config: ServerConfig, method: str, request: Any, line: Callable[[Any], str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every record of a running coordinator's list, as JSON and as a line, page by page. Raises CoordinatorError."""
    with required_coordinator(config) as client:
        for reply in client.pages(method, request):
            yield from ((as_json(record), line(record)) for record in records_of(reply))


def set_disabled(config: ServerConfig, device: str, disabled: bool) -> admin_pb2.DeviceRecord:
    """Disable or enable a device, by a running coordinator or in the ledger itself where none runs. Raises CoordinatorError, StateError."""
    with running_coordinator(config) as client:
        if client is not None:
            request = admin_pb2.SetDeviceDisabledRequest(device=device, disabled=disabled)
            record: admin_pb2.DeviceRecord = client.ask("SetDeviceDisabled", request).device
            return record
    return device_record(in_ledger(config, lambda store: Fleet(store, SystemClock()).set_disabled(device, disabled)))


def require_serving(config: ServerConfig, address: str | None, timeout_s: float) -> str:
    """The address that answered SERVING. Raises CoordinatorUnavailable, or UsageError when nothing local can be asked."""
    asked = address or config.admin.address or _local_address(config)
    credentials = ClientCredentials() if parse_address(asked).path else credentials_of(config)

    async def ask() -> None:
        if not await is_serving(asked, timeout_s, service=DEVICE_SERVICE, credentials=credentials):
            await require_handshake(asked, timeout_s, credentials, ADMINISTRATOR)
            raise CoordinatorUnavailable(f"NOT_SERVING: no coordinator takes work on {asked}", hint="look at its log")

    asyncio.run(ask())
    return asked


def _local_address(config: ServerConfig) -> str:
    """Where a health check can connect without a credential: a Unix socket, or a loopback port without TLS. Raises UsageError."""
    listening = [*config.admin_addresses, *config.listen]
    sockets = [each for each in listening if parse_address(each).path]
    ports = [each for each in listening if config.tls is None and parse_address(each).is_local]
    for each in (*sockets, *ports):
        return each
    raise UsageError("nothing listens locally without TLS", hint="give the address, or a Unix socket in admin_listen")
