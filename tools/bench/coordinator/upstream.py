"""A mock cloud LLM: OpenAI's chat completions after a constant delay, with a log of what it was asked.

    python -m tools.bench.coordinator.upstream DELAY_S

Says its port in one line of JSON. `GET /log` gives the idempotency keys in the order in which requests came; a request without one is
logged as "". Knows nothing of who asks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from tools.bench.coordinator.http_wire import Answer, Request, listen
from tools.bench.processes import say

INPUT_TOKENS, OUTPUT_TOKENS = 180, 96
TEXT = "The greater of the two is found by comparing each digit from the left; here the third one decides. " * 4
COMPLETION = {
    "id": "chatcmpl-bench",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "mock",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    },
}
"""What every request is answered with."""


class MockCloud:
    """Answers and remembers."""

    def __init__(self, delay_s: float) -> None:
        self._answer = Answer(json.dumps(COMPLETION).encode(), after_s=delay_s)
        self._log: list[str] = []

    def handle(self, request: Request) -> Answer:
        """The completion, or the log."""
        if request.method == "GET":
            return Answer(json.dumps(self._log).encode())
        self._log.append(request.headers.get("idempotency-key", ""))
        return self._answer


async def serve(delay_s: float) -> None:
    """Serve until killed."""
    server, port = await listen(MockCloud(delay_s).handle)
    say({"port": port})
    await server.serve_forever()


def main(arguments: Sequence[str]) -> None:
    """The process."""
    asyncio.run(serve(float(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
