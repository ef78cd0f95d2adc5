"""What every device and agent of a fault world is: lives that begin and end, a link, a notebook that outlives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field

from edge.rpc.client import CloudCall
from tools.simulate.faults.log import DeviceEvent
from tools.simulate.faults.scenario import Fault, Scenario
from tools.simulate.virtual.loop import Host
from tools.simulate.virtual.network import LinkFaults, Network, SimulatedChannel
from tools.simulate.virtual.world import SimulatedWorld

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


class Surroundings(SimulatedWorld[Network]):
    """A fault world as its devices and agents see it, and where they note what happens to them."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.seed, scenario.begins_s, Network, inline_executor=bool(scenario.agents))
        self.scenario = scenario
        self.log: list[DeviceEvent] = []
        self.injected: Counter[str] = Counter()

    def link(self) -> LinkFaults:
        """A link with the scenario's faults."""
        scenario = self.scenario
        return LinkFaults(drop=scenario.drop, duplicate=scenario.duplicate, late=scenario.late, reorder=scenario.reorder)

    def channel(self, link: LinkFaults) -> SimulatedChannel:
        """To the coordinator that serves when something is sent."""
        return SimulatedChannel(self.network, self.endpoint, link)


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
