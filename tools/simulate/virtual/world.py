"""What fleets and fault worlds have in common: time, a network, a disk, the coordinator, and a story of what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from edge.core.rng import stream
from tools.simulate.virtual.disk import Disk
from tools.simulate.virtual.loop import SeededLoop, VirtualClock
from tools.simulate.virtual.network import Network, ServiceEndpoint
from tools.simulate.virtual.site import Site

NetworkT = TypeVar("NetworkT", bound=Network)


class SimulatedWorld(Generic[NetworkT]):
    """A world of a seed. `site`: its coordinator's place; `story`: (virtual seconds, what happened)."""

    site: Site

    def __init__(self, seed: int, begins_s: float, network: type[NetworkT], *, inline_executor: bool = True) -> None:
        """`begins_s`: what the calendar shows at the beginning, as the distance from EPOCH."""
        self.loop = SeededLoop(seed, inline_executor=inline_executor)
        self.clock = VirtualClock(self.loop, begins_s)
        self.network = network(self.loop, stream(seed, "network"))
        self.disk = Disk(self.loop, stream(seed, "disk"))
        self.story: list[tuple[float, str]] = []

    def endpoint(self) -> ServiceEndpoint | None:
        """Of the coordinator that serves now, if any."""
        return self.site.endpoint

    def note(self, text: str) -> None:
        """Note what happened to the world."""
        self.story.append((self.loop.time(), text))

    async def until(self, holds: Callable[[], bool], most_s: float, every_s: float) -> None:
        """Wait until something holds, but no longer than `most_s`."""
        end = self.loop.time() + most_s
        while not holds() and self.loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(every_s)
