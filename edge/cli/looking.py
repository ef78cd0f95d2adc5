"""A look at a state folder and its coordinator without an agent: nothing is loaded, started or locked. Knows files and sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edge.core.errors import CoordinatorError, StateError

if TYPE_CHECKING:
    from edge.cloud.client import KnownBudget
    from edge.config.schema import AgentConfig
    from edge.rpc.client import CoordinatorClient
    from edge.state.reader import StateReader

NOBODY = "the embedded coordinator is not running"


def present_folder(state: Path) -> Path:
    """The state folder, where an agent has used it: a slip of the hand must not make another one. Raises StateError."""
    from edge.state.reader import reading

    with reading(state) as there:
        if there is None:
            raise StateError(f"no agent has used the state folder {state} yet", hint="edge-agent run makes one; check --state")
    return state


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


async def told_budgets(config: AgentConfig, state: StateReader, tasks: Sequence[str]) -> dict[str, KnownBudget]:
    """What the coordinator says of these tasks now, {} where nobody is there."""
    from edge.cloud.client import KnownBudget
    from edge.core.clock import SystemClock

    told: dict[str, KnownBudget] = {}
    async with present_coordinator(config, state) as client:
        if client is None:
            return told
        for task in tasks:
            try:
                told[task] = KnownBudget(await client.get_budget(task), SystemClock().now())
            except CoordinatorError:
                break
    return told
