"""What every device and agent of a fault world is: lives that begin and end, a link, a notebook that outlives them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from edge.rpc.client import CloudCall
from tools.simulate.faults.log import DeviceEvent
from tools.simulate.faults.scenario import Fault, Scenario
from tools.simulate.virtual.loop import Host, SeededLoop
from tools.simulate.virtual.network import LinkFaults, Network, SimulatedChannel
from tools.simulate.virtual.site import Site

MAX_OUTPUT_TOKENS = 8
WISHED_RATE = 0.5


@dataclass(slots=True)
class Page:
    """Of one task: the step at hand, and what is to be reported of it."""

    step: int = 0
    report: tuple[int, int] | None = None


@dataclass(slots=True)
class Notebook:
    """What a device keeps over a crash: where it stands with each task, and the calls it made."""

    pages: dict[str, Page] = field(default_factory=dict)
    calls: dict[str, CloudCall] = field(default_factory=dict)
    done: bool = False
    lives: int = 0

    def page(self, task: str) -> Page:
        """Where it stands with a task."""
        return self.pages.setdefault(task, Page())

    def keep(self, call: CloudCall) -> CloudCall:
        """Note a call before it is made; where its key is known already, the one it stands for."""
        return self.calls.setdefault(call.call_key, call)


@dataclass(slots=True)
class Surroundings:
    """What the devices and agents of a world share, and where they note what happens to them."""

    scenario: Scenario
    loop: SeededLoop
    network: Network
    site: Site
    log: list[DeviceEvent] = field(default_factory=list)
    story: list[tuple[float, str]] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)

    def link(self) -> LinkFaults:
        """A link with the scenario's faults."""
        scenario = self.scenario
        return LinkFaults(drop=scenario.drop, duplicate=scenario.duplicate, late=scenario.late, reorder=scenario.reorder)

    def channel(self, link: LinkFaults) -> SimulatedChannel:
        """To the coordinator that serves when something is sent."""
        return SimulatedChannel(self.network, lambda: self.site.endpoint, link)

    def note(self, text: str) -> None:
        """Note what happened to the world."""
        self.story.append((self.loop.time(), text))

    async def until(self, holds: Callable[[], bool], most_s: float, every_s: float) -> None:
        """Wait until something holds, but no longer than so many seconds."""
        end = self.loop.time() + most_s
        while not holds() and self.loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(every_s)


class Member(ABC):
    """A device or agent over all its lives."""

    invariant: str
    """What its `leftovers` violate."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.around = around
        self.link = around.link()
        self.notebook = Notebook()
        self.leftovers: list[str] = []
        self._host: Host | None = None

    def new_host(self) -> Host:
        """For another life."""
        self.notebook.lives += 1
        self._host = Host(f"{self.name} life {self.notebook.lives}", self.around.loop)
        return self._host

    @property
    @abstractmethod
    def up(self) -> bool:
        """Whether it runs."""

    @property
    @abstractmethod
    def rests(self) -> bool:
        """Whether nothing is left to do but what waits for the end of the faults."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether nothing at all is left to do."""

    @abstractmethod
    def boot(self) -> None:
        """Begin a life."""

    @abstractmethod
    async def suffer(self, fault: Fault) -> None:
        """What befalls one member."""

    def heal(self) -> None:
        """No fault any more."""
        self.link.heal()

    @abstractmethod
    async def resume(self) -> None:
        """Everything is over: go on with what was paused."""
