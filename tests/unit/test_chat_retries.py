"""Which refusals of the OpenAI-compatible endpoint a client may answer by sending the same request again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from coordinator.endpoint.api import ChatApi
from coordinator.endpoint.replies import error_reply
from coordinator.endpoint.requests import read_request
from edge.core.errors import CoordinatorError, CoordinatorUnavailable
from edge.testing.clock import ManualClock

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "why?"}]}'


class _Refusing:
    """A broker that refuses every call."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def complete(self, *_: Any, **__: Any) -> Any:
        raise CoordinatorUnavailable("no", reason=self.reason)

    async def stream(self, *_: Any, **__: Any) -> AsyncGenerator[str, None]:
        raise CoordinatorUnavailable("no", reason=self.reason)
        yield ""


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("reason", "key", "again"),
    [
        ("OVERLOADED", "", "true"),
        ("OVERLOADED", "k", "true"),
        ("LEDGER_UNAVAILABLE", "", "false"),
        ("LEDGER_UNAVAILABLE", "k", "true"),
    ],
)
async def test_without_a_key_nothing_that_may_be_charged_is_sent_again(reason: str, key: str, again: str, streamed: bool) -> None:
    """A hold whose writing failed may stay, and is charged then: only the same key makes the next request the same call."""
    clock = ManualClock(0.0)
    api = ChatApi(_Refusing(reason), None, None, clock)  # type: ignore[arg-type]
    asked = read_request(BODY, task="", key=key, user="ann", most_tokens={"m": 5})
    with pytest.raises(CoordinatorError) as refused:
        await (anext(api.stream(asked, "d")) if streamed else api.complete(asked, "d"))
    assert error_reply(refused.value, clock.now()).headers["x-should-retry"] == again
