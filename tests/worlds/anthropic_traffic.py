"""Bodies and events of the Messages API, as its public description has them, and a provider that asks a server on loopback."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from coordinator.config import UpstreamConfig
from coordinator.providers.anthropic import AnthropicProvider
from coordinator.providers.http import HttpLimits
from tests.worlds.upstream_server import Behaviour, Upstream, running_upstream


def playing(behaviour: Behaviour) -> AbstractAsyncContextManager[Upstream]:
    """A server of the API that behaves so."""
    return running_upstream(behaviour, "/v1/messages")


def anthropic_provider(base_url: str, key: str = "", *, limits: HttpLimits | None = None, **settings: Any) -> AnthropicProvider:
    """A provider that asks the server there; `key` is in the variable TEST_KEY ("": it needs none)."""
    api_key = {"api_key_env": "TEST_KEY"} if key else {}
    config = UpstreamConfig(provider="anthropic", base_url=base_url, **api_key, **settings)
    return AnthropicProvider(config, "test", limits=limits, environ={"TEST_KEY": key})


def message(**changes: Any) -> dict[str, Any]:
    """A whole message."""
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [{"type": "text", "text": "forty-two"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3},
        **changes,
    }


def failure(word: str, text: str = "something went wrong") -> dict[str, Any]:
    """The body of a refusal."""
    return {"type": "error", "error": {"type": word, "message": text}, "request_id": "req_1"}


def event(kind: str, **fields: Any) -> bytes:
    """One event of a stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


START = event("message_start", message=message(content=[], stop_reason=None, usage={"input_tokens": 12, "output_tokens": 1}))
BLOCK = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
PING = event("ping")
BLOCK_STOP = event("content_block_stop", index=0)
STOP = event("message_stop")


def text(piece: str) -> bytes:
    """An event that brings text."""
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})


def ending(reason: str = "end_turn", output_tokens: int = 3, **usage: int) -> bytes:
    """The event with the stop reason of the message and its total usage."""
    return event(
        "message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": output_tokens, **usage}
    )


WHOLE_STREAM = (START, BLOCK, PING, text("forty"), text("-two"), BLOCK_STOP, ending(), STOP)


TOOL_MESSAGE = message(content=[{"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 2}}], stop_reason="tool_use")
TOOL_STREAM = (
    START,
    event("content_block_start", index=0, content_block={"type": "tool_use", "id": "call_1", "name": "add", "input": {}}),
    event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": ""}),
    event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"a":'}),
    event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": " 2}"}),
    BLOCK_STOP,
    ending("tool_use"),
    STOP,
)
