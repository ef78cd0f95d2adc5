"""The hard limits of this device's own ledger: those of the configuration, and what `edge-agent budget limit` or the page set over them.

What was set is kept in the state folder, and the embedded coordinator is started with it. The limits of another coordinator are its
operator's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.core.errors import UsageError
from edge.core.periods import PERIOD_WORDS, Period
from edge.core.units import CALLS, SPEND, TOKENS
from edge.state.folder import StateFolder
from edge.state.reader import StateReader

SET_LIMITS = "budget_limits"
_CHARGED_BY_A_CLOUD = "charged_by_a_cloud"
Changes = Mapping[str, Any]
"""Fields of BudgetLimits that are set, by name."""


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Most calls, tokens and micro-USD (None: no limit) in each period of the calendar."""

    calls_limit: int | None = None
    tokens_limit: int | None = None
    spend_limit_uusd: int | None = None
    period: Period = "total"

    @property
    def words(self) -> str:
        """`5.00 USD and 100 calls a month`, or `no limit`."""
        limits = [(unit, getattr(self, unit.limit)) for unit in (SPEND, CALLS, TOKENS)]
        amounts = [unit.amount(limit) for unit, limit in limits if limit is not None]
        return f"{' and '.join(amounts)} {PERIOD_WORDS[self.period]}" if amounts else "no limit"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def to_coordinator(self) -> dict[str, Any]:
        """As the coordinator's configuration has the limits of a scope."""
        limits = self.to_json()
        return {"window": limits.pop("period"), **limits}


NO_BUDGET_LIMITS = BudgetLimits()


def set_limits_of(state: StateReader) -> dict[str, Any]:
    """What was set over the configuration; empty where nothing was."""
    found: dict[str, Any] = json.loads(state.meta(SET_LIMITS) or "{}")
    return found


def has_set_limits(state: StateReader) -> bool:
    """Whether somebody has ever set limits over the configuration, or taken them off."""
    return state.meta(SET_LIMITS) is not None


def limits_of(state: StateReader | None, configured: BudgetLimits) -> BudgetLimits:
    """The limits that hold."""
    return configured if state is None else replace(configured, **set_limits_of(state))


def set_limits(state: StateFolder, changes: Changes | None) -> None:
    """Set some limits over the configuration's, durably; those set before stay. None: only the configuration's hold again."""
    kept = {} if changes is None else {**set_limits_of(state), **changes}
    state.set_meta(SET_LIMITS, json.dumps(kept))


def note_charge(state: StateFolder) -> None:
    """Keep that a cloud that charges was paid: from now on amounts of this folder are money, whatever cloud is configured."""
    with suppress(sqlite3.Error):  # of a full disk; the next charge is noted
        if state.meta(_CHARGED_BY_A_CLOUD) is None:
            state.set_meta(_CHARGED_BY_A_CLOUD, "1")


def cloud_name_of(state: StateReader, configured: str) -> str:
    """What the cloud is called where amounts of a folder are shown: `configured` ("" for one that charges), and "" where a cloud that
    charges was paid."""
    return "" if state.meta(_CHARGED_BY_A_CLOUD) else configured


def of_the_operator(address: str) -> UsageError:
    """What is raised where the limits are not this device's to set."""
    return UsageError(
        f"the limits of this device are set by who runs the coordinator at {address}",
        hint="there: edge-coordinator budget set device --spend-uusd 5000000 --window month; here edge-agent budget pause stops all asking",
    )
