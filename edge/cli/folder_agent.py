"""An agent at rest: `AgentControl` over its state folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edge.answering.explain import explained
from edge.app.coordinator import build_client, coordinator_address
from edge.app.engines import sound_adapter
from edge.app.settings import cloud_name, configured_limits, state_folder, switched_off
from edge.budget.dial import Dials
from edge.budget.limits import cloud_name_of, of_the_operator, set_limits
from edge.budget.overview import StoredSettings, nothing_held, nothing_stored, stored_held, stored_overview, stored_tasks
from edge.cloud import switch
from edge.cloud.client import KnownBudget
from edge.core.clock import SystemClock
from edge.core.errors import CoordinatorError, NotFound, StateError
from edge.core.limits import OWN_LABEL
from edge.learning import conditions
from edge.learning.activity import read_activity, read_headline
from edge.learning.own_items import LEARNED_LATER, outlook
from edge.serve import agent_schemas as views
from edge.serve.recorded_control import RecordedControl
from edge.state.feedback import Feedback, FeedbackBook, Rating, said_of
from edge.state.folder import CHECKPOINTS, StateFolder
from edge.state.rankings import ranking_of
from edge.state.reader import LAST_ANSWER, StateReader, no_state_in, reading, reading_or_nothing

if TYPE_CHECKING:
    from edge.cloud.sent import SentChoice
    from edge.config.schema import AgentConfig
    from edge.learning.adapters import Versions
    from edge.rpc.client import CoordinatorClient

_NO_AGENT = "no agent is running"


class FolderAgent(RecordedControl):
    """`AgentControl` over a state folder that no agent uses; no model is loaded and no coordinator started.

    What only reads also works while another process holds the folder, such as `edge-agent learn`; what changes something then raises
    StateError.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._folder = state_folder(config)
        self._clock = SystemClock()

    def _records(self) -> AbstractContextManager[StateReader]:
        return reading_or_nothing(self._folder)

    async def why(self, answer_id: str) -> views.ExplanationView:
        """The record of an answer; its call as the coordinator has it, where one can be asked."""
        with self._answered(answer_id) as state:
            record = state.request(answer_id)
            async with present_coordinator(self._config, state) as client:
                get_call, nobody = client.get_call if client else None, "the embedded coordinator is not running"
                explanation = await explained(record, get_call, nobody, said_of(state, record["id"]))
            ranking = ranking_of(state, record.get("task", "")).to_json()
        return views.ExplanationView.model_validate({**explanation, "ranking": ranking})

    async def status(self) -> views.StatusView:
        """What the folder holds: how far learning has come, and which adapter is active."""
        with self._records() as state:
            position, lineage, last = state.position(), state.lineage(), next(iter(state.steps(last=1)), None)
            terms, paused = state.terms(last.task) if last else None, state.meta(conditions.PAUSED) == "1"
            return views.StatusView(
                running=False,
                mode=self._config.mode,
                learning="stopped",
                online=False,
                offline_reason=_NO_AGENT,
                phase=position.phase,
                phases=state.phases() or len(self._config.phases),
                steps_done=position.steps_done,
                steps_planned=last.steps_planned if last else None,
                task=last.task if last else "",
                adapter_version=lineage.serving,
                trained_version=lineage.latest,
                target_rate=terms.target_rate if terms else None,
                dual=terms.dual if terms else None,
                paused=paused,
                waiting=conditions.BY_YOU if paused else "",
                waiting_reports=len(state.waiting_reports()),
            )

    async def adapters(self) -> Sequence[views.AdapterVersionView]:
        """The adapter versions on disk."""
        with self._versions() as versions:
            return [views.AdapterVersionView.model_validate(version) for version in versions.all()]

    async def usage(self) -> views.UsageView:
        """What was used today and ever, by this device's own records."""
        return self._used(None, online=False, offline_reason=_NO_AGENT)

    async def ready(self) -> views.ReadinessView:
        """Not without an agent."""
        return views.ReadinessView(ready=False, model=None, adapter_version=0, coordinator="away", learning="stopped")

    async def rollback(self, version: int) -> views.LineageView:
        """Let the next agent serve and learn on from a version."""
        with self._versions() as versions:
            versions.checkpoint(version)
            return views.LineageView.model_validate(versions.go_back(version, self._clock.now()).to_dict())

    async def budget(self) -> views.BudgetsView:
        """What the folder knows, and what the coordinator reports now where one can be asked."""
        config = self._config
        settings = self._stored_settings()
        with reading(self._folder) as state:
            if state is None:
                return views.BudgetsView.model_validate(nothing_stored(settings, self._clock.now()).to_json())
            reported: dict[str, KnownBudget] = {}
            async with present_coordinator(config, state) as client:
                with suppress(CoordinatorError):
                    for task in stored_tasks(state, settings):
                        if client is not None:
                            reported[task] = KnownBudget(await client.get_budget(task), self._clock.now())
            return views.BudgetsView.model_validate(stored_overview(state, settings, reported, self._clock).to_json())

    async def set_dial(self, task: str | None, target_rate: float | None) -> views.BudgetsView:
        """Turn the dial of a task, or of every one (None)."""
        with self._writing() as state:
            Dials(state, self._config.budget.dial, self._clock).set(target_rate, task or None)
        return await self.budget()

    async def set_limits(self, changes: Mapping[str, Any] | None) -> views.BudgetsView:
        """Set hard limits that the next agent's own ledger begins with; a folder that nothing has used yet is made."""
        if (address := self._config.coordinator.address) is not None:
            raise of_the_operator(address)
        with StateFolder(self._folder) as state:
            set_limits(state, changes)
        return await self.budget()

    async def forget_task(self, task: str) -> views.BudgetsView:
        """Strike out a label's dial."""
        with self._writing() as state:
            Dials(state, self._config.budget.dial, self._clock).forget(task)
        return await self.budget()

    async def pause(self, paused: bool) -> views.BudgetsView:
        """Ask no cloud until resumed, or again."""
        with self._writing() as state:
            switch.set_paused(state, paused, self._clock.now())
        return await self.budget()

    async def sent(self, choice: SentChoice) -> views.SentView:
        """What left the device. Raises StateError where there is no such folder: nothing is known of what left then."""
        if not self._folder.exists():
            raise no_state_in(self._folder)
        return await super().sent(choice)

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> views.FeedbackView:
        """Store a person's rating of an answer."""
        with self._answered(answer_id) as state:
            record = state.request(answer_id)
        with StateFolder(self._folder) as folder:
            kept = FeedbackBook(folder).give(Feedback(answer_id, cast("Rating", verdict), correction), self._clock.now())
        expected = outlook(record, kept, learns=self._config.use.learns_ratings, when=LEARNED_LATER)
        return views.FeedbackView(id=kept.id, verdict=kept.verdict, correction=kept.correction, outlook=expected)

    async def report(self, since: float) -> views.ReportView:
        """What was learned, gained, forgotten and spent since a time."""
        settings, now = self._stored_settings(), self._clock.now()
        with reading(self._folder) as state:
            held = nothing_held(settings, now) if state is None else stored_held(state, settings, self._clock)
        report = {**read_activity(self._folder, since, now), "target": held.target, "cloud_name": held.cloud_name}
        return views.ReportView.model_validate(report)

    async def headline(self) -> views.HeadlineView:
        """Answered locally, right in the end, gained, and spent."""
        with self._records() as state:
            shown = cloud_name_of(state, cloud_name(self._config))
        return views.HeadlineView.model_validate({**read_headline(self._folder, self._clock.now()), "cloud_name": shown})

    async def pause_learning(self, paused: bool) -> views.LearningPausedView:
        """Let the next agent begin no step, or learn again."""
        with self._writing() as folder:
            conditions.pause_learning(folder, paused)
        return views.LearningPausedView(paused=paused, waiting=conditions.BY_YOU if paused else "")

    def _stored_settings(self) -> StoredSettings:
        config = self._config
        return StoredSettings(
            dial_rate=config.budget.dial,
            serving_task=config.serve.task or OWN_LABEL,
            switched_off=switched_off(config),
            limits=configured_limits(config) if config.coordinator.address is None else None,
            cloud_name=cloud_name(config),
            dual_unit=config.learning.control.dual_unit,
            learning_rates=tuple(phase.target_rate for phase in config.phases),
        )

    @contextmanager
    def _answered(self, answer_id: str) -> Iterator[StateReader]:
        """The folder in which to find an answer. Raises NotFound where nothing was asked yet."""
        with reading(self._folder) as state:
            if state is None:
                wanted = "no answer" if answer_id == LAST_ANSWER else f"no answer with id {answer_id}"
                raise NotFound(f"{wanted}: nothing was asked in {self._folder} yet")
            yield state

    @contextmanager
    def _writing(self) -> Iterator[StateFolder]:
        """The folder with its lock held. Raises StateError where no agent has used it: a typing error must not make another one."""
        with reading(self._folder) as state:
            if state is None:
                raise StateError(
                    f"no agent has used the state folder {self._folder} yet", hint="edge-agent run makes one; check --state"
                )
        with StateFolder(self._folder) as folder:
            yield folder

    @contextmanager
    def _versions(self) -> Iterator[Versions]:
        from edge.learning.adapters import Versions
        from edge.learning.checkpoints import Checkpoints

        with StateFolder(self._folder) as folder:
            yield Versions(folder, Checkpoints(self._folder / CHECKPOINTS), sound_adapter)


@asynccontextmanager
async def present_coordinator(config: AgentConfig, state: StateReader) -> AsyncIterator[CoordinatorClient | None]:
    """The coordinator, if there is one to be reached: the configured one, or an embedded one that runs now."""
    address = coordinator_address(config, state.folder)
    if config.coordinator.address is None and not Path(address.removeprefix("unix:")).exists():  # noqa: ASYNC240
        yield None
        return
    client = build_client(config, address, state.meta("run_id") or "")
    try:
        yield client
    finally:
        await client.aclose()
