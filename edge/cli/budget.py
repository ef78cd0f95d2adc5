"""`edge-agent budget show`: what may be spent and what was. Knows the budget's words; knows nothing of ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edge.cli.running import running_agent
from edge.cli.saying import print_json
from edge.config.schema import AgentConfig
from edge.console import dollars, percent
from edge.core.errors import EdgeError

if TYPE_CHECKING:
    from edge.cli.settings import Settings


def show(settings: Settings, *, as_json: bool) -> int:
    """The budget at the coordinator. Raises CoordinatorError when it cannot be asked."""
    budget = asyncio.run(_budget(settings.config()))
    if as_json:
        print_json(budget)
    else:
        print("\n".join(budget_lines(budget)))
    return 0


async def _budget(config: AgentConfig) -> Mapping[str, Any]:
    from edge.bootstrap import state_folder

    async with running_agent(state_folder(config)) as remote:
        if remote is not None:
            budget = (await remote.get("/api/status")).get("budget")
            if budget is None:
                raise EdgeError("the running agent cannot reach its coordinator", hint="see edge-agent doctor")
            return dict(budget)
    return await _own_budget(config)


async def _own_budget(config: AgentConfig) -> Mapping[str, Any]:
    import sys

    from edge.bootstrap import build_agent
    from edge.console import ProblemLines

    async with build_agent(config, ProblemLines(sys.stderr)) as agent:
        return asdict(await agent.budget())


def budget_lines(budget: Mapping[str, Any]) -> list[str]:
    """The budget for a person."""
    spend, limit = budget["spend_uusd"], budget["spend_limit_uusd"]
    return [
        f"calls    {_used(budget['calls'], budget['calls_limit'])}",
        f"tokens   {_used(budget['tokens'], budget['tokens_limit'])}",
        f"spend    {dollars(spend)} of {'no limit' if limit is None else dollars(limit)}",
        f"target   {percent(budget['target_rate'])} of responses may ask for help",
        f"price λ  {budget['dual']:.4f}",
    ]


def budget_line(budget: Mapping[str, Any] | None) -> str:
    """The budget on one line; None where the coordinator cannot be asked."""
    if budget is None:
        return "the coordinator cannot be reached; answers are local"
    spend, limit = dollars(budget["spend_uusd"]), budget["spend_limit_uusd"]
    parts = [
        f"calls {_used(budget['calls'], budget['calls_limit'])}",
        f"tokens {_used(budget['tokens'], budget['tokens_limit'])}",
        f"spend {spend} of {'no limit' if limit is None else dollars(limit)}",
        f"target {percent(budget['target_rate'])}",
        f"λ {budget['dual']:.3f}",
    ]
    return " · ".join(parts)


def _used(used: int, limit: int | None) -> str:
    return f"{used} of {'no limit' if limit is None else limit}"
