"""What `AgentControl` reads from the records in a state folder alone, whether an agent runs on it or not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from edge.budget.whatif import what_if_recorded
from edge.cloud.sent import SentChoice, SentReader, entry_json
from edge.core.clock import Clock
from edge.serve import agent_schemas as views
from edge.state.reader import StateReader
from edge.state.usage import used_today

_MOST_STEPS = 2000


class RecordedControl:
    """The verbs that need nothing but the records."""

    _clock: Clock

    def _records(self) -> AbstractContextManager[StateReader]:
        """The records, for as long as the block lasts."""
        raise NotImplementedError

    async def steps(self, after: int) -> Sequence[views.StepView]:
        """Finished steps above `after`, oldest first, the newest 2000 at most."""
        with self._records() as state:
            wanted = min(_MOST_STEPS, state.position().steps_done - after)
            steps = state.steps(last=wanted) if wanted > 0 else []
        return [views.StepView.model_validate(step.to_json()) for step in steps if step.step > after]

    async def whatif(self, rates: Sequence[float], task: str, last: int) -> views.WhatIfView:
        """What other rates would have meant for the recorded answers."""
        with self._records() as state:
            return views.WhatIfView.model_validate(what_if_recorded(state, rates, task, last))

    async def sent(self, choice: SentChoice) -> views.SentView:
        """What left the device, and the step reports that wait."""
        with self._records() as state:
            return views.SentView.model_validate(SentReader(state.database).listing(choice))

    async def sent_entry(self, entry_id: int) -> views.SentRequestView:
        """One request that left, with its content. Raises NotFound."""
        with self._records() as state:
            return views.SentRequestView.model_validate(entry_json(*SentReader(state.database).entry(entry_id)))

    def _used(self, ledger: dict[str, Any] | None, *, online: bool, offline_reason: str) -> views.UsageView:
        """This device's own records of use, with what the coordinator reports."""
        with self._records() as state:
            used = used_today(state.database, self._clock.now())
        about = {"ledger": ledger, "online": online, "offline_reason": offline_reason}
        return views.UsageView.model_validate({**used.to_json(), **about})
