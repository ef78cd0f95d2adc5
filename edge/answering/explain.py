"""Why an answer came about as it did: its record, the decision in words, and the ledger's entry of its call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from edge.cloud.client import LOST_REASONS
from edge.core.errors import CallInProgress, CoordinatorError, CoordinatorUnavailable, NotFound, OutcomeUnknown
from edge.rpc.client import CallProgress, CloudCompletion
from edge.state.feedback import Feedback

GetCall = Callable[[str], Awaitable[CloudCompletion]]


async def explained(
    record: Mapping[str, Any], get_call: GetCall | None, why_nobody: str = "", said: Feedback | None = None
) -> dict[str, Any]:
    """The record with `verdict` and `correction`, a person's feedback on it (`said`), `decision`, the decision in words, and `ledger`, the
    coordinator's entry of its call.

    `ledger` is None when no call was made; else it has state, tokens, charged_uusd, model and call_key, and `reported_by` is
    coordinator, or record where the coordinator cannot be asked (`note` has the reason). `get_call` None: there is nobody to ask, for the
    reason `why_nobody`.
    """
    feedback = {"verdict": said.verdict, "correction": said.correction} if said else {"verdict": "none", "correction": None}
    return {**record, **feedback, "decision": decision(record), "ledger": await _ledger(record, get_call, why_nobody)}


def decision(record: Mapping[str, Any]) -> str:
    """What was decided, and by what, in one line."""
    odds, bias, rate = record.get("help_log_odds"), float(record.get("help_bias") or 0.0), record.get("target_rate")
    if record.get("mode") != "auto" or not record.get("local_text"):
        return str(record.get("reason"))
    if odds is None:
        return f"the response came to no place where it could have asked; {_outcome(record)}"
    doubt = record.get("doubt")
    of_parts = "" if doubt is None else f" ({odds - doubt:+.2f} for the help phrase, {doubt:+.2f} for its doubt in the answer)"
    dial = "no dial was set" if rate is None else f"the dial (τ {100 * rate:g} %) added {bias:+.2f}: {odds + bias:+.2f}"
    stood = f"the model's log-odds of asking were {odds:+.2f}{of_parts}, {dial}"
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
    if not record.get("call_key"):
        return None
    recorded = {
        "reported_by": "record",
        "state": str(record.get("call_state") or CallProgress.COMPLETED.value),
        "tokens": int(record.get("cloud_tokens") or 0),
        "charged_uusd": int(record.get("charged_uusd") or 0),
        "model": str(record.get("cloud_model") or ""),
        "call_key": record["call_key"],
        "note": why_nobody,
    }
    if get_call is None:
        return recorded
    try:
        found = await get_call(str(record["call_key"]))
    except CoordinatorError as error:
        if isinstance(error, CoordinatorUnavailable) and error.reason in LOST_REASONS | {"DEADLINE_EXCEEDED"}:
            return {**recorded, "note": f"the coordinator cannot be asked: {error.with_hint}"}
        states = (
            (NotFound, "unknown"),
            (CallInProgress, CallProgress.RUNNING.value),
            (OutcomeUnknown, CallProgress.IN_DOUBT.value),
        )
        state = next((name for kind, name in states if isinstance(error, kind)), CallProgress.FAILED.value)
        return {**recorded, "reported_by": "coordinator", "state": state, "tokens": 0, "model": "", "note": str(error)}
    tokens = found.usage.input_tokens + found.usage.output_tokens
    answered = {"state": CallProgress.COMPLETED.value, "tokens": tokens, "charged_uusd": found.charged_uusd, "model": found.model}
    return {**recorded, "reported_by": "coordinator", **answered, "note": ""}
