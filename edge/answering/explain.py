"""Why an answer came about as it did: its record, the decision in words, and the ledger's entry of its call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from edge.cloud.client import LOST_REASONS, why_away
from edge.core.errors import CallInProgress, CoordinatorError, CoordinatorUnavailable, NotFound, OutcomeUnknown
from edge.rpc.client import CallProgress, CloudCompletion
from edge.state.feedback import Feedback

GetCall = Callable[[str], Awaitable[CloudCompletion]]


async def explained(
    record: Mapping[str, Any], get_call: GetCall | None, why_nobody: str = "", said: Feedback | None = None
) -> dict[str, Any]:
    """The record with `verdict` and `correction`, what a person `said` of it, `decision`, the decision in words, and `ledger`, the
    coordinator's entry of its call.

    `ledger` is None when no call was made; else it has state, tokens, charged_uusd, model and call_key, and `told_by` is coordinator, or
    record where the coordinator cannot be asked (`note` says why). `get_call` None: there is nobody to ask, for the reason `why_nobody`.
    """
    feedback = {"verdict": said.verdict, "correction": said.correction} if said else {"verdict": "none", "correction": None}
    return {**record, **feedback, "decision": decision(record), "ledger": await _ledger(record, get_call, why_nobody)}


def decision(record: Mapping[str, Any]) -> str:
    """What was decided, and by what, in one line."""
    odds, bias, rate = record.get("help_log_odds"), float(record.get("help_bias") or 0.0), record.get("target_rate")
    if record.get("mode") != "auto" or not record.get("local_text"):
        return str(record.get("reason"))
    dial = f"the dial (τ {100 * rate:g} %) added {bias:+.2f}" if rate is not None else "no dial was set"
    if odds is None:
        stood = "the response came to no place where it could have asked"
    else:
        stood = f"the model's log-odds of asking were {odds:+.2f}, {dial}" + (f": {odds + bias:+.2f}" if rate is not None else "")
    return f"{stood}; {_outcome(record)}"


def _outcome(record: Mapping[str, Any]) -> str:
    source = record.get("source")
    if source == "cloud":
        stored = ", with an answer from the coordinator's store that was not charged" if record.get("cached") else ""
        return f"it asked, and the cloud answered{stored}"
    if source == "local-fallback":
        return str(record.get("reason"))
    return "it did not ask" if record.get("reason") == "answered on this device" else str(record.get("reason"))


async def _ledger(record: Mapping[str, Any], get_call: GetCall | None, why_nobody: str) -> dict[str, Any] | None:
    key = str(record.get("call_key") or "")
    if not key:
        return None
    if get_call is None:
        return _as_recorded(record, why_nobody)
    try:
        found = await get_call(key)
    except CoordinatorError as error:
        return _without_answer(record, error)
    tokens = found.usage.input_tokens + found.usage.output_tokens
    return _entry(record, "coordinator", CallProgress.COMPLETED.value, tokens, found.charged_uusd, found.model)


def _without_answer(record: Mapping[str, Any], error: CoordinatorError) -> dict[str, Any]:
    """A call that the coordinator has no answer of, or a coordinator that says nothing."""
    states = ((NotFound, "unknown"), (CallInProgress, CallProgress.RUNNING.value), (OutcomeUnknown, CallProgress.IN_DOUBT.value))
    if isinstance(error, CoordinatorUnavailable) and error.reason in LOST_REASONS | {"DEADLINE_EXCEEDED"}:
        return _as_recorded(record, f"the coordinator cannot be asked: {why_away(error)}")
    state = next((name for kind, name in states if isinstance(error, kind)), CallProgress.FAILED.value)
    return {**_entry(record, "coordinator", state, 0, int(record.get("charged_uusd") or 0), ""), "note": str(error)}


def _as_recorded(record: Mapping[str, Any], why: str) -> dict[str, Any]:
    state, tokens = str(record.get("call_state") or CallProgress.COMPLETED.value), int(record.get("cloud_tokens") or 0)
    charged, model = int(record.get("charged_uusd") or 0), str(record.get("cloud_model") or "")
    return {**_entry(record, "record", state, tokens, charged, model), "note": why}


def _entry(record: Mapping[str, Any], told_by: str, state: str, tokens: int, charged_uusd: int, model: str) -> dict[str, Any]:
    return {
        "told_by": told_by,
        "state": state,
        "tokens": tokens,
        "charged_uusd": charged_uusd,
        "model": model,
        "call_key": record["call_key"],
        "note": "",
    }
