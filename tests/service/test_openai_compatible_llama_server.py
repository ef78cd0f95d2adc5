"""The OpenAI-compatible provider against a real server: llama-cpp-python's own, serving nano-cloud."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import pytest

from coordinator.providers.bundled import bundled_model_path
from coordinator.providers.openai_compatible import OpenAICompatibleProvider, OpenAIEndpoint
from coordinator.providers.provider import ProviderError
from edge.core.types import Message
from tests.service.upstream_server import provider_request

MODEL = bundled_model_path("nano-cloud")
MISSING = [
    name for name in ("uvicorn", "fastapi", "sse_starlette", "starlette_context", "pydantic_settings") if find_spec(name) is None
]
START_DEADLINE_S = 120.0
API_KEY = "local-test-key"

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"llama-cpp-python's server needs {', '.join(MISSING)}"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def start_server(port: int, log: Path) -> asyncio.subprocess.Process:
    """Start the server and wait until it lists its models."""
    options = ["--model", str(MODEL), "--host", "127.0.0.1", "--port", str(port), "--api_key", API_KEY]
    limits = ["--n_ctx", "512", "--n_threads", "1", "--n_threads_batch", "1", "--model_alias", "nano-cloud"]
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "llama_cpp.server", *options, *limits, stdout=stream, stderr=stream, env={**os.environ}
        )
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with asyncio.timeout(START_DEADLINE_S), aiohttp.ClientSession(headers=headers) as session:
        while process.returncode is None:
            with suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/v1/models") as response:
                    if response.status == 200:
                        return process
            await asyncio.sleep(0.1)
    raise AssertionError(f"the server ended: {log.read_text()[-2000:]}")


@pytest.fixture
async def base_url(tmp_path: Path) -> AsyncIterator[str]:
    port = free_port()
    process = await start_server(port, tmp_path / "server.log")
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10.0)
        except TimeoutError:
            process.kill()
            await process.wait()


async def test_a_real_server_completes_streams_and_refuses(base_url: str) -> None:
    request = replace(provider_request(deadline_s=60.0, content="What is 3 + 4?"), model="nano-cloud")
    provider = OpenAICompatibleProvider(OpenAIEndpoint(base_url, api_key_env="KEY"), environ={"KEY": API_KEY})
    result = await provider.complete(request)
    assert result.text
    assert result.usage is not None
    assert 0 < result.usage.input_tokens <= provider.input_token_bound(request)
    assert 0 < result.usage.output_tokens <= request.max_output_tokens
    assert result.finish in ("stop", "length")

    pieces = [piece async for piece in provider.stream(request)]
    whole = pieces[-1].result
    assert whole is not None
    assert "".join(piece.text for piece in pieces) == whole.text == result.text
    assert len(pieces) > 2

    with pytest.raises(ProviderError) as too_long:
        await provider.complete(replace(request, messages=(Message("user", "too long " * 1_000),)))
    assert (too_long.value.kind, too_long.value.executed) == ("http_400", False)
    await provider.aclose()

    stranger = OpenAICompatibleProvider(OpenAIEndpoint(base_url, api_key_env="KEY"), environ={"KEY": "wrong"})
    with pytest.raises(ProviderError) as refused:
        await stranger.complete(request)
    assert (refused.value.kind, refused.value.executed) == ("http_401", False)
    await stranger.aclose()
