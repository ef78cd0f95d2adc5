"""The devices: who calls, when each was last seen and who is disabled.

Without a credential identity is taken on trust, and only from this machine: a Unix socket or loopback connection is the device `local`, or
the one it names in its `device-id` metadata.
"""

from __future__ import annotations

import logging
import re

from msgspec.structs import replace

from coordinator.ledger.accounts import DeviceRow
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.transitions import device_disabled, milliseconds
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError, InvalidRequest, PermissionDenied

log = logging.getLogger(__name__)

LOCAL_DEVICE = "local"
MOST_SEEN_AT_ONCE = 256
MAX_VERSION_CHARS = 100
DEVICE_ID_FORM = "1 to 64 letters, digits, dots, dashes or underscores"
_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")


def is_device_id(text: str) -> bool:
    """Whether a device may be called that."""
    return _DEVICE_ID.fullmatch(text) is not None


def require_device_id(text: str) -> str:
    """The text. Raises InvalidRequest when no device may be called that."""
    if not is_device_id(text):
        raise InvalidRequest(f"a device id is {DEVICE_ID_FORM}")
    return text


def identify(peer: str, claimed: str, *, allow_remote: bool = False) -> str:
    """The device of a connection from `peer` (gRPC's notation) that calls itself `claimed` ("" for nothing).

    Raises PermissionDenied for a peer that is not on this machine, InvalidRequest for a malformed id.
    """
    if not (allow_remote or peer.startswith(LOCAL_PEERS)):
        raise PermissionDenied(
            "a device of another machine needs a credential", hint="connect over TLS with a certificate or a token"
        )
    return require_device_id(claimed) if claimed else LOCAL_DEVICE


class Fleet:
    """The devices, kept in the ledger's store. What a request needs is in memory; `refresh` brings both together now and then.

    The ledger itself refuses holds and steps of a disabled device from the moment it was disabled, whichever replica did so.
    """

    def __init__(self, store: LedgerStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._disabled: frozenset[str] = frozenset()
        self._seen: dict[str, float] = {}

    async def register(self, device_id: str, agent_version: str, tasks: tuple[str, ...]) -> DeviceRow:
        """Note a registration; a device that registers again keeps its first time. Raises PermissionDenied for a disabled one."""
        return await self._store.register_device(device_id, agent_version, tasks, self._clock.now())

    def admit(self, device_id: str) -> None:
        """Note that a device called. Raises PermissionDenied for a disabled one."""
        if device_id in self._disabled:
            raise device_disabled(device_id)
        self._seen[device_id] = self._clock.now()

    async def set_disabled(self, device_id: str, disabled: bool) -> DeviceRow:
        """Shut a device out, or let it in again. What it has under way is settled as ever. Raises InvalidRequest on a malformed
        id, NotFound for one to be enabled that nobody knows."""
        row = await self._store.set_device_disabled(require_device_id(device_id), disabled, self._clock.now())
        self._disabled = self._disabled | {device_id} if disabled else self._disabled - {device_id}
        return row

    async def devices(self) -> tuple[DeviceRow, ...]:
        """All of them, by id."""
        rows = await self._store.list_devices()
        seen_ms = {row.device: max(row.last_seen_ms, milliseconds(self._seen.get(row.device, 0.0))) for row in rows}
        return tuple(replace(row, last_seen_ms=seen_ms[row.device]) for row in rows)

    async def refresh(self) -> None:
        """Write down who was seen, and read who was disabled, also by another replica."""
        waiting = sorted(self._seen)
        for first in range(0, len(waiting), MOST_SEEN_AT_ONCE):
            # Taken out before they are written, so that who calls meanwhile is written the next time.
            seen = {device: self._seen.pop(device) for device in waiting[first : first + MOST_SEEN_AT_ONCE]}
            try:
                await self._store.saw_devices(seen)
            except BaseException:
                self._seen = {**seen, **self._seen}
                raise
        await self.read_disabled()

    async def heard(self, device_id: str) -> None:
        """A device was disabled or enabled, perhaps by another replica. What cannot be read now is read by the next `refresh`."""
        try:
            await self.read_disabled()
        except CoordinatorError as error:
            log.warning("whether device %s is disabled is read later: %s", device_id, error)

    async def read_disabled(self) -> None:
        """Read who is disabled, by whichever replica."""
        self._disabled = frozenset(row.device for row in await self._store.list_devices() if row.disabled)
