"""The agent: answers and learns in one process. Knows when to learn and when to stop; knows nothing of HTTP, terminals or torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from edge.agent.answer import Answerer, AnswerRecord
from edge.agent.events import RunFinished, StepFinished
from edge.core.types import AdapterRef
from edge.inference.backend import ModelInfo
from edge.rpc.client import BudgetSnapshot


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """A snapshot for a screen. `learning` is one of idle, learning, paused (somebody is served), stopped, finished."""

    run_id: str
    model: ModelInfo
    adapter_version: int
    mode: str
    learning: str
    online: bool
    offline_reason: str
    coordinator: str
    task: str
    target_rate: float | None
    dual: float | None
    phase: int
    steps_done: int
    steps_planned: int | None
    last_step: StepFinished | None
    outbox: int
    answers: int
    total_cloud_calls: int
    total_cloud_tokens: int
    total_spend_uusd: int
    uptime_s: float


class Agent:
    """`async with build_agent(...) as agent:`; then serve `agent.answerer` and run `agent.learn()` beside it."""

    answerer: Answerer

    async def __aenter__(self) -> Self:
        """Load the model and the last adapter, start or reach the coordinator (offline is fine), resume the state."""
        raise NotImplementedError

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop learning at the safe point, release engine, coordinator and state."""
        raise NotImplementedError

    async def learn(self, max_steps: int | None = None) -> RunFinished:
        """Work through the phases, at most `max_steps` steps in this call; pauses while somebody is served."""
        raise NotImplementedError

    def request_stop(self) -> None:
        """Ask learning to end after the step's current safe point; may be called from a signal handler."""
        raise NotImplementedError

    def status(self) -> AgentStatus:
        """A snapshot for a screen."""
        raise NotImplementedError

    def steps(self, last: int | None = None) -> list[StepFinished]:
        """Finished steps from the state folder, oldest first (for learning curves)."""
        raise NotImplementedError

    def why(self, request_id: str) -> AnswerRecord:
        """The stored record of an answer. Raises NotFound."""
        raise NotImplementedError

    async def budget(self, task: str | None = None) -> BudgetSnapshot:
        """The budget at the coordinator. Raises CoordinatorError."""
        raise NotImplementedError

    def adapter(self) -> AdapterRef | None:
        """The adapter in use, None for the bare model."""
        raise NotImplementedError
