"""How commands look at an agent and steer it: one `AgentControl`, of the agent that runs on the state folder or of the folder at rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from edge.core.errors import CoordinatorError, NotFound, StateError

if TYPE_CHECKING:
    from edge.budget.dial import Dials
    from edge.budget.overview import StoredSettings
    from edge.cloud.client import KnownBudget
    from edge.cloud.sent import Choice
    from edge.config.schema import AgentConfig
    from edge.learning.adapters import Versions
    from edge.rpc.client import CoordinatorClient
    from edge.serve.ports import AgentControl
    from edge.state.folder import StateFolder
    from edge.state.reader import StateReader, Used

Result = TypeVar("Result")
_NOBODY = "the embedded coordinator is not running"
_NOTHING_SENT: Mapping[str, Any] = {"sent": [], "next_before": None, "dropped": {"entries": 0, "until": 0.0}, "waiting": []}


@asynccontextmanager
async def agent_control(config: AgentConfig) -> AsyncIterator[AgentControl]:
    """The agent that runs on the configured state folder; where none can be spoken to, the folder itself."""
    from edge.app import state_folder
    from edge.cli.remote import running_agent

    async with running_agent(state_folder(config)) as remote:
        yield FolderAgent(config) if remote is None else remote


class FolderAgent:
    """`AgentControl` over a state folder that no agent uses; no model is loaded and no coordinator started.

    What only looks also works beside a process that holds the folder, such as `edge-agent learn`; what changes something then raises
    StateError.
    """

    def __init__(self, config: AgentConfig) -> None:
        from edge.app import state_folder
        from edge.core.clock import SystemClock

        self._config = config
        self._folder = state_folder(config)
        self._clock = SystemClock()

    async def why(self, answer_id: str) -> Mapping[str, Any]:
        """The record of an answer; its call as the coordinator has it, where one can be asked."""
        from edge.answering.explain import explained
        from edge.state.feedback import said_of

        with self._answered(answer_id) as state:
            record = state.request(answer_id)
            async with present_coordinator(self._config, state) as client:
                return await explained(record, client.get_call if client else None, _NOBODY, said_of(state, answer_id))

    async def status(self) -> Mapping[str, Any]:
        """What the folder holds: how far learning has come, and which adapter is active."""
        from edge.learning.conditions import BY_YOU, PAUSED

        known: dict[str, Any] = {
            "running": False, "address": None, "pid": None, "learning": "stopped", "mode": self._config.mode, "model": None,
            "phases": len(self._config.phases), "steps_planned": None, "online": False,
            "offline_reason": "no agent is running",
        }  # fmt: skip
        with self._reading() as state:
            if state is None:
                return {**known, "steps_done": 0, "phase": 0, "task": "", "adapter_version": 0, "trained_version": 0,
                        "target_rate": None, "dual": None, "paused": False, "waiting": "", "outbox": 0}  # fmt: skip
            position, lineage, last = state.position(), state.lineage(), next(iter(state.steps(last=1)), None)
            terms, paused = state.terms(last.task) if last else None, state.meta(PAUSED) == "1"
            return {
                **known,
                "steps_done": position.steps_done,
                "phase": position.phase,
                "task": last.task if last else "",
                "adapter_version": lineage.serving,
                "trained_version": lineage.latest,
                "target_rate": terms.target_rate if terms else None,
                "dual": terms.dual if terms else None,
                "paused": paused,
                "waiting": BY_YOU if paused else "",
                "outbox": len(state.unreported()),
            }

    async def steps(self, after: int) -> Sequence[Mapping[str, Any]]:
        """The committed steps above `after`."""
        with self._reading() as state:
            return [] if state is None else [step.to_json() for step in state.steps() if step.step > after]

    async def adapters(self) -> Sequence[Mapping[str, Any]]:
        """The adapter versions on disk."""
        return self._with_versions(lambda versions: [version.to_json() for version in versions.all()])

    async def usage(self) -> Mapping[str, Any]:
        """What was used today and ever, by this device's own records."""
        from edge.core.clock import local_day
        from edge.state.reader import Used, used_today

        with self._reading() as state:
            if state is None:
                day, today, ever = local_day(self._clock.now()), Used(), Used()
            else:
                found = used_today(state.database, self._clock.now())
                day, today, ever = found.day, found.today, found.ever
        return {
            "day": day, "today": _used(today), "all": _used(ever), "ledger": None, "online": False,
            "offline_reason": "no agent is running",
        }  # fmt: skip

    async def ready(self) -> Mapping[str, Any]:
        """Not without an agent."""
        return {"ready": False, "model": None, "adapter_version": 0, "coordinator": "away", "learning": "stopped"}

    async def rollback(self, version: int) -> Mapping[str, Any]:
        """Let the next agent serve and learn on from a version."""

        def go_back(versions: Versions) -> dict[str, Any]:
            versions.checkpoint(version)
            return versions.go_back(version, self._clock.now()).to_dict()

        return self._with_versions(go_back)

    async def budget(self) -> Mapping[str, Any]:
        """What the folder knows, and what the coordinator says now where one can be asked."""
        from edge.budget.overview import nothing_stored, stored_overview, stored_tasks

        settings = self._stored_settings()
        with self._reading() as state:
            if state is None:
                return nothing_stored(settings).to_json()
            reported = await reported_budgets(self._config, state, stored_tasks(state, settings))
            return stored_overview(state, settings, reported).to_json()

    async def set_dial(self, task: str | None, target_rate: float | None) -> Mapping[str, Any]:
        """Turn the dial of a task, or of every one (None)."""
        with self._writing() as state:
            self._dials(state).set(target_rate, task or None)
        return await self.budget()

    async def forget_task(self, task: str) -> Mapping[str, Any]:
        """Strike out a label's dial."""
        with self._writing() as state:
            self._dials(state).forget(task)
        return await self.budget()

    async def pause(self, paused: bool) -> Mapping[str, Any]:
        """Ask no cloud until resumed, or again."""
        from edge.cloud.switch import set_paused

        with self._writing() as state:
            set_paused(state, paused, self._clock.now())
        return await self.budget()

    async def whatif(self, rates: Sequence[float], task: str, last: int) -> Mapping[str, Any]:
        """What other rates would have meant for the recorded answers."""
        from edge.budget.whatif import what_if, what_if_recorded

        with self._reading() as state:
            found = what_if([], rates, task) if state is None else what_if_recorded(state, rates, task, last)
            return found.to_json()

    async def sent(self, choice: Choice) -> Mapping[str, Any]:
        """What left the device."""
        from edge.cloud.sent import reading_sent

        with reading_sent(self._folder) as reader:
            return _NOTHING_SENT if reader is None else reader.listing(choice)

    async def sent_entry(self, entry_id: int) -> Mapping[str, Any]:
        """One request that left, with its content."""
        from edge.cloud.sent import entry_json, reading_sent

        with reading_sent(self._folder) as reader:
            if reader is None:
                raise NotFound("nothing has left this device", hint="see edge-agent outbox")
            return entry_json(*reader.entry(entry_id))

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
        """Keep what a person says of an answer."""
        from edge.state.feedback import Feedback, FeedbackBook, Verdict
        from edge.state.folder import StateFolder

        with self._answered(answer_id):
            pass
        with StateFolder(self._folder) as folder:
            judged = Feedback(answer_id, cast("Verdict", verdict), correction)
            return FeedbackBook(folder).give(judged, self._clock.now()).to_json()

    async def report(self, since: float) -> Mapping[str, Any]:
        """What was learned, gained, forgotten and spent since a time."""
        from edge.learning.activity import read_activity

        return read_activity(self._folder, since, self._clock.now())

    async def pause_learning(self, paused: bool) -> Mapping[str, Any]:
        """Let the next agent begin no step, or learn again."""
        from edge.learning.conditions import BY_YOU, pause_learning

        with self._writing() as folder:
            pause_learning(folder, paused)
        return {"paused": paused, "waiting": BY_YOU if paused else ""}

    @contextmanager
    def _reading(self) -> Iterator[StateReader | None]:
        from edge.state.reader import reading

        with reading(self._folder) as state:
            yield state

    @contextmanager
    def _answered(self, answer_id: str) -> Iterator[StateReader]:
        """The folder in which an answer is looked for. Raises NotFound where nothing was asked yet."""
        with self._reading() as state:
            if state is None:
                raise NotFound(f"no answer with id {answer_id}: nothing was asked in {self._folder} yet")
            yield state

    @contextmanager
    def _writing(self) -> Iterator[StateFolder]:
        """The folder with its lock held. Raises StateError where no agent has used it: a slip of the hand must not make another one."""
        from edge.state.folder import StateFolder

        with self._reading() as state:
            if state is None:
                raise StateError(
                    f"no agent has used the state folder {self._folder} yet", hint="edge-agent run makes one; check --state"
                )
        with StateFolder(self._folder) as folder:
            yield folder

    def _with_versions(self, work: Callable[[Versions], Result]) -> Result:
        from edge.app import sound_adapter
        from edge.learning.adapters import Versions
        from edge.learning.checkpoints import Checkpoints
        from edge.state.folder import CHECKPOINTS, StateFolder

        with StateFolder(self._folder) as folder:
            return work(Versions(folder, Checkpoints(self._folder / CHECKPOINTS), sound_adapter))

    def _dials(self, state: StateFolder) -> Dials:
        from edge.budget.dial import Dials

        return Dials(state, self._config.budget.dial, self._clock)

    def _stored_settings(self) -> StoredSettings:
        from edge.app import switched_off
        from edge.budget.overview import StoredSettings

        config = self._config
        return StoredSettings(config.budget.dial, config.serve.task or "", switched_off(config))


@asynccontextmanager
async def present_coordinator(config: AgentConfig, state: StateReader) -> AsyncIterator[CoordinatorClient | None]:
    """The coordinator, if there is one to be reached: the configured one, or an embedded one that runs now."""
    from edge.app import build_client, coordinator_address

    address = coordinator_address(config, state.folder)
    if config.coordinator.address is None and not _is_there(address):
        yield None
        return
    client = build_client(config, address, state.meta("run_id") or "")
    try:
        yield client
    finally:
        await client.aclose()


def _is_there(address: str) -> bool:
    return Path(address.removeprefix("unix:")).exists()


async def reported_budgets(config: AgentConfig, state: StateReader, tasks: Sequence[str]) -> dict[str, KnownBudget]:
    """What the coordinator says of these tasks now, {} where nobody is there."""
    from edge.cloud.client import KnownBudget
    from edge.core.clock import SystemClock

    reported: dict[str, KnownBudget] = {}
    async with present_coordinator(config, state) as client:
        if client is None:
            return reported
        for task in tasks:
            try:
                reported[task] = KnownBudget(await client.get_budget(task), SystemClock().now())
            except CoordinatorError:
                break
    return reported


def _used(used: Used) -> dict[str, Any]:
    every = asdict(used)
    serving = {unit: every[unit] for unit in ("calls", "tokens", "spend_uusd")}
    return {"answers": used.answers, "serving": serving, "learning": {unit: every[f"learning_{unit}"] for unit in serving}}
