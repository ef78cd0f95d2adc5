"""What a call asks, as a digest."""

from __future__ import annotations

import hashlib
import json

from edge.rpc.client import CloudCall

_compact_json = json.JSONEncoder(separators=(",", ":")).encode


def fingerprint(call: CloudCall) -> str:
    """A digest of a call's content: all but its key, and but the number of responses that wait for it (a group made again after a
    crash on other hardware may count differently, and must still get the answer it paid for)."""
    turns = [[message.role, message.content] for message in call.messages]
    content = [call.task, call.step, call.prompt_id, call.model_alias, turns, call.max_output_tokens]
    return digest([*content, call.temperature.hex(), *openai_part(call)])


def openai_part(call: CloudCall) -> list[str]:
    """What OpenAI's fields add to a digest: nothing where there are none, so that digests of plain calls stay what they were."""
    return [call.openai_json] if call.openai_json else []


def digest(value: list[object]) -> str:
    """SHA-256 of the value as compact JSON, in hexadecimal."""
    return hashlib.sha256(_compact_json(value).encode("ascii")).hexdigest()
