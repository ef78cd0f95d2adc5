"""Cassettes of a cloud's answers."""

from __future__ import annotations

from pathlib import Path

from coordinator.providers.provider import CloudProvider, ProviderRequest, ProviderResult
from edge.rpc.cassette import RecordedAnswer, answer_digest, append_answer


async def record(cassette: Path, request: ProviderRequest, source: CloudProvider) -> ProviderResult:
    """Put what the source answers onto a cassette."""
    result = await source.complete(request)
    content = (request.messages, request.model, request.max_output_tokens, request.temperature, request.openai_json)
    answer = RecordedAnswer(result.text, result.usage, result.upstream_id, result.finish, beyond_text=result.beyond_text)
    append_answer(cassette, answer_digest(*content), answer)
    return result
