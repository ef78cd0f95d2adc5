"""What asking the cloud for every item may cost, told before it is done. Knows budgets and prices; knows nothing of scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from edge.config.schema import CoordinatorConfig
from edge.core.clock import Clock
from edge.core.counts import counted
from edge.core.errors import CoordinatorError
from edge.core.events import EventSink
from edge.evaluation.judged import Candidate
from edge.rpc.client import BudgetSnapshot, CoordinatorClient
from edge.state.events import Notice


async def announce_cost(
    client: CoordinatorClient, candidates: Sequence[Candidate], config: CoordinatorConfig, sink: EventSink, clock: Clock
) -> None:
    """A notice with the number of calls and the most they can cost, and one with the budget of each task."""
    sink.emit(Notice(cost_line(len(candidates), config), clock.now()))
    for task, items in Counter(candidate.item.task for candidate in candidates).items():
        try:
            line = budget_line(task, items, await client.get_budget(task))
        except CoordinatorError as error:
            line = f"budget of {task}: not known ({error})"
        sink.emit(Notice(line, clock.now()))


def cost_line(items: int, config: CoordinatorConfig) -> str:
    """E.g. `asking the cloud LLM for all 400 items: at most 400 calls and 204800 output tokens, $0.31 for these`."""
    tokens = items * config.max_output_tokens
    price = config.embedded.price_out_uusd_per_mtok if config.address is None else None
    money = "" if price is None else f", at most ${tokens * price / 1e12:.2f} for these"
    which = "one item" if items == 1 else f"all {items} items"
    return f"asking the cloud LLM for {which}: at most {counted(items, 'call')} and {counted(tokens, 'output token')}{money}"


def budget_line(task: str, items: int, budget: BudgetSnapshot) -> str:
    """What is used and allowed, and whether it can suffice."""
    limits = [f"{name} {used} of {limit}" for name, used, limit in _limits(budget) if limit is not None]
    short = budget.calls_limit is not None and budget.calls_limit - budget.calls < items
    return f"budget of {task}: {', '.join(limits) or 'no limit'}" + (
        f"; not enough for {counted(items, 'call')}" if short else ""
    )


def _limits(budget: BudgetSnapshot) -> Iterator[tuple[str, str, str | None]]:
    yield "calls", str(budget.calls), None if budget.calls_limit is None else str(budget.calls_limit)
    yield "tokens", str(budget.tokens), None if budget.tokens_limit is None else str(budget.tokens_limit)
    money = budget.spend_limit_uusd
    yield "spend", f"${budget.spend_uusd / 1e6:.4f}", None if money is None else f"${money / 1e6:.4f}"
