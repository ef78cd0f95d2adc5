"""Cassettes: answers of another provider, recorded once and replayed without keys, network or cost. Knows JSON lines; knows nothing of
HTTP.

A line holds the digest of a request, never the request, and its result. A cassette can be read by people and kept in a repository.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator.providers.provider import CloudProvider, ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from coordinator.providers.scripted import pieces_of
from edge.core.errors import ConfigError
from edge.core.types import TokenUsage


def request_digest(request: ProviderRequest) -> str:
    """What a recorded answer is found by: sha256 over messages, model, output limit and temperature."""
    turns = [[turn.role, turn.content] for turn in request.messages]
    content = [turns, request.model, request.max_output_tokens, request.temperature.hex()]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode("ascii")).hexdigest()


class RecordedProvider:
    """CloudProvider over a cassette: replays what is recorded; asks `source` for the rest and records it, or without one refuses."""

    def __init__(self, cassette: Path, source: CloudProvider | None = None, *, name: str = "recorded") -> None:
        self.name = name
        self._cassette = cassette
        self._source = source
        self._results: dict[str, ProviderResult] | None = None

    async def start(self) -> None:
        """Read the cassette. Raises ConfigError naming FILE:LINE of a bad line. Safe to call twice."""
        if self._results is None:
            self._results = _read_cassette(self._cassette, required=self._source is None)
        if self._source is not None:
            await self._source.start()

    def input_token_bound(self, request: ProviderRequest) -> int:
        """The recorded usage where there is one, else the source's bound, else one by bytes."""
        known = (self._results or {}).get(request_digest(request))
        if known is not None and known.usage is not None:
            return known.usage.input_tokens
        if self._source is not None:
            return self._source.input_token_bound(request)
        return sum(len(turn.content.encode("utf-8", "replace")) + 16 for turn in request.messages) + 64

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Replay, or ask and record. Raises ProviderError (`not_recorded`, not executed) when neither is possible."""
        await self.start()
        digest = request_digest(request)
        known = self._recorded(digest)
        if known is not None:
            return known
        if self._source is None:
            raise ProviderError("the cassette holds no answer to this request", kind="not_recorded", executed=False)
        return self._record(digest, await self._source.complete(request))

    async def stream(self, request: ProviderRequest) -> AsyncIterator[ProviderDelta]:
        """The same, word by word."""
        result = await self.complete(request)
        for piece in pieces_of(result.text):
            yield ProviderDelta(piece)
        yield ProviderDelta("", result)

    async def aclose(self) -> None:
        """Close the source."""
        if self._source is not None:
            await self._source.aclose()

    def _recorded(self, digest: str) -> ProviderResult | None:
        return None if self._results is None else self._results.get(digest)

    def _record(self, digest: str, result: ProviderResult) -> ProviderResult:
        assert self._results is not None
        self._results[digest] = result
        with self._cassette.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"request": digest, "result": asdict(result)}, ensure_ascii=False) + "\n")
        return result


def _read_cassette(path: Path, *, required: bool) -> dict[str, ProviderResult]:
    if not path.exists() and not required:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cassette {path} cannot be read: {error.strerror}") from error
    return dict(_read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def _read_line(path: Path, number: int, line: str) -> tuple[str, ProviderResult]:
    try:
        entry = json.loads(line)
        return str(entry["request"]), _result_from(entry["result"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}:{number}: not a cassette line ({error})") from error


def _result_from(data: dict[str, Any]) -> ProviderResult:
    usage = None if data["usage"] is None else TokenUsage(**data["usage"])
    return ProviderResult(str(data["text"]), usage, str(data["upstream_id"]), str(data["finish"]))
