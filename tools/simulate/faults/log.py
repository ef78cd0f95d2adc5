"""What devices asked and the replies, line by line: one of the three logs that the checker reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from edge.core.errors import CoordinatorError, OutcomeUnknown
from edge.rpc.client import CloudCompletion
from tools.simulate.virtual.loop import is_alive

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One line: what was asked (`what`, about `key`), and how it ended (`outcome`, with the `reply`)."""

    at: float
    device: str
    what: str
    key: str
    outcome: str
    reply: tuple[Any, ...] = ()


class ChatParts(NamedTuple):
    """The reply of a line about a chat request, as far as it is known: what was asked by whom, and what came back. `asker`: the person,
    "" for nobody in particular. `fresh`: a stored answer of another call is not wanted. `again`: whether it may be sent again."""

    asker: str
    idempotency_key: str
    question: str
    fresh: bool
    streamed: bool
    status: int = 0
    again: bool | None = None
    budget: str = ""
    charged_uusd: int | None = None
    call_key: str = ""
    text: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached: bool = False


class DeviceLog:
    """Where one device writes; all devices of a world share the lines. `written` gets what and outcome of each line of this one."""

    def __init__(
        self, lines: list[DeviceEvent], device: str, written: Callable[[str, str], None] = lambda what, outcome: None
    ) -> None:
        self.device = device
        self._lines = lines
        self._written = written

    def note(self, what: str, key: str, outcome: str, reply: tuple[Any, ...] = ()) -> None:
        """Write a line, unless the device has just died."""
        if is_alive():
            self._lines.append(DeviceEvent(asyncio.get_running_loop().time(), self.device, what, key, outcome, reply))
            self._written(what, outcome)

    async def noted(self, what: str, key: str, asking: Awaitable[T]) -> T:
        """What a question is answered with, between a line before and one after it. Raises CoordinatorError where it is refused."""
        self.note(what, key, "asked")
        try:
            value = await asking
        except CoordinatorError as error:
            self.note(what, key, error.reason, refusal_parts(error))
            raise
        self.note(what, key, "completed" if isinstance(value, CloudCompletion) else "ok", answer_parts(value))
        return value

    async def ask(self, what: str, key: str, asking: Awaitable[T]) -> T | CoordinatorError:
        """The same with the refusal as a value."""
        try:
            return await self.noted(what, key, asking)
        except CoordinatorError as error:
            return error


def refusal_parts(error: CoordinatorError) -> tuple[Any, ...]:
    """The parts of a refusal that the checker reads."""
    if isinstance(error, OutcomeUnknown):
        return tuple(sorted(error.metadata.items()))
    return (error.metadata.get("budget", ""),)


def answer_parts(value: Any) -> tuple[Any, ...]:
    """The parts of an answer that the checker compares."""
    match value:
        case CloudCompletion():
            usage = value.usage
            return (value.text, usage.input_tokens, usage.output_tokens, value.charged_uusd, value.cached)
        case _ if hasattr(value, "dual_after"):
            return (value.dual_before.hex(), value.dual_after.hex(), value.assist_rate.hex())
        case _ if hasattr(value, "call_credit"):
            return (value.dual.hex(), value.target_rate.hex(), value.call_credit)
        case _ if hasattr(value, "spend_uusd"):
            limits = (value.calls_limit, value.tokens_limit, value.spend_limit_uusd)
            return (value.version, value.dual.hex(), value.calls, value.tokens, value.spend_uusd, *limits)
        case _:
            return ()
