"""What an agent has kept on this device: answers and what was said of them, steps, use, what left. Knows where each is found; knows
nothing of engines or of the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge.agent.daybook import MadeSteps, daybook
from edge.agent.events import StepFinished
from edge.agent.feedback import Feedback, FeedbackBook
from edge.agent.record import AnswerRecord
from edge.agent.sent import SentReader
from edge.agent.state import StateFolder
from edge.agent.usage import UsedToday, used_today
from edge.agent.whatif import WhatIf, what_if_recorded
from edge.core.clock import Clock


class Records:
    """The records of a running agent; only verdicts are written here."""

    def __init__(self, state: StateFolder, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._made_steps = MadeSteps()
        self.feedback = FeedbackBook(state)

    @property
    def run_id(self) -> str:
        """The name of this state folder's run."""
        return self._state.run_id

    def why(self, answer_id: str) -> AnswerRecord:
        """The stored record of an answer. Raises NotFound."""
        return AnswerRecord(**self._state.request(answer_id))

    def rate(self, feedback: Feedback) -> Feedback:
        """Keep what a person thinks of an answer. Raises NotFound, UsageError."""
        return self.feedback.give(feedback, self._clock.now())

    def steps(self, last: int | None = None) -> list[StepFinished]:
        """Finished steps, oldest first (for learning curves)."""
        return self._state.steps(last)

    def report(self, since: float) -> dict[str, Any]:
        """What was learned, gained, forgotten and spent since a time (seconds since the epoch)."""
        return daybook(self._state.database, since, self._clock.now(), self._made_steps)

    def used_today(self) -> UsedToday:
        """What this device has used, today and ever."""
        return used_today(self._state.database, self._clock.now())

    def sent(self) -> SentReader:
        """What left the device, and what waits."""
        return SentReader(self._state.database)

    def what_if(self, rates: Sequence[float], task: str, last: int) -> WhatIf:
        """The last answers to a task ("": to any) at other rates. Raises TooFewAnswers."""
        return what_if_recorded(self._state, rates, task, last)
