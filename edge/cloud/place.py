"""Where the cloud is asked: what to do next after an error that ends a question."""

from __future__ import annotations

from dataclasses import dataclass

from edge.cloud.client import LOST_REASONS
from edge.core.errors import CoordinatorError, InvalidRequest, RateLimited, Withheld

_REFUSES_THE_REQUEST = ("http_400", "http_422")
"""The error's message holds the provider's own words: asking the same again is pointless, and the connection works."""
_BY_CAUSE = {
    "http_402": "its provider wants to be paid first",
    "http_404": "check coordinator.embedded.base_url and coordinator.embedded.model",
    "http_429": "that is its provider's own rate limit: ask again later",
    "not_recorded": "the recording has no answer to this question: ask without demanding the cloud",
    "too_long": "ask with less text",
}


@dataclass(frozen=True, slots=True)
class CloudPlace:
    """`own`: it is asked over this agent's own coordinator. `name`: the address of the provider (of the coordinator where it is another),
    or what the model is called. `key`: where the API key is read from, "" where none is sent."""

    own: bool = False
    name: str = "the cloud"
    key: str = ""

    def what_next(self, error: CoordinatorError) -> str:
        """What to do about a call that failed: the error's own hint, where it has one."""
        if self.own and error.reason in LOST_REASONS:
            return (
                "this agent's own coordinator starts again by itself; its log is coordinator/coordinator.log in the state folder"
            )
        if error.hint or isinstance(error, (Withheld, InvalidRequest)):  # their message names what is wrong with the question
            return error.hint
        if isinstance(error, RateLimited):
            return f"ask again in {error.retry_after_s or 1.0:.0f} s"
        cause = error.metadata.get("cause", "")
        if cause in _REFUSES_THE_REQUEST:
            other = "set coordinator.embedded.model to another" if self.own else "ask who runs the coordinator for another model"
            return f"ask without what its provider refuses, or {other}"
        checked = f"edge-agent doctor checks the connection to {self.name}"
        if not self.own:
            return f"{checked}; ask who runs that coordinator where it is there"
        if cause in ("http_401", "http_403"):
            return f"check the API key in {self.key}" if self.key else "no API key is sent: set coordinator.embedded.api_key_env"
        return _BY_CAUSE.get(cause, checked)
