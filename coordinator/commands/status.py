"""How a running coordinator is doing: whether it serves, its upstreams, open calls, what was spent today, devices seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coordinator.commands.admin_client import AdminClient
from coordinator.ledger.accounts import NO_AMOUNT, Amount
from coordinator.service.admin_text import upstream_line
from edge.core.formatting import counted, money
from edge.rpc.v1 import admin_pb2

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Status:
    """What `edge-coordinator status` shows. Today begins at midnight UTC; `devices_today` were seen since then."""

    serving: bool
    open_calls: int
    upstreams: tuple[str, ...]
    spent_today: Amount
    devices: int
    devices_today: int
    devices_disabled: int

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        spent = self.spent_today
        told = {name: value for name, value in asdict(self).items() if name not in ("spent_today", "upstreams")}
        return {**told, "upstreams": list(self.upstreams), "spent_today": {**_amount_json(spent)}}

    def lines(self) -> Iterator[str]:
        """For people."""
        spent = self.spent_today
        yield f"{'serving' if self.serving else 'draining: nothing new is taken'}, {counted(self.open_calls, 'call')} open"
        yield f"today: {counted(spent.calls, 'call')}, {counted(spent.tokens, 'token')}, {money(spent.uusd)}"
        disabled = f", {self.devices_disabled} disabled" if self.devices_disabled else ""
        yield f"devices: {self.devices} seen, {self.devices_today} today{disabled}"
        yield from self.upstreams


def status_of(client: AdminClient, now: float) -> Status:
    """As a running coordinator tells it. Raises CoordinatorError."""
    today_ms = int(now * 1000) // DAY_MS * DAY_MS
    upstreams = client.ask("ListUpstreams", admin_pb2.ListUpstreamsRequest())
    prices = {price.alias: price for price in client.ask("ListPrices", admin_pb2.ListPricesRequest()).prices}
    pages = client.pages("ListDevices", admin_pb2.ListDevicesRequest())
    devices: Sequence[Any] = [device for page in pages for device in page.devices]
    return Status(
        serving=not upstreams.draining,
        open_calls=upstreams.in_flight,
        upstreams=tuple(upstream_line(upstream, prices.get(upstream.alias)) for upstream in upstreams.upstreams),
        spent_today=spent_since(client, today_ms),
        devices=len(devices),
        devices_today=sum(device.last_seen_ms >= today_ms for device in devices),
        devices_disabled=sum(device.disabled for device in devices),
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


def _amount_json(amount: Amount) -> dict[str, int]:
    return {"calls": amount.calls, "tokens": amount.tokens, "uusd": amount.uusd}
