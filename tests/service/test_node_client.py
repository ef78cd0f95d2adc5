"""A third-party client (Node's gRPC without generated code) with a real coordinator process."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from tests.worlds.coordinator_process import coordinator_process, settings_for
from tests.worlds.upstream_server import good_reply, running_upstream

CLIENT = Path(__file__).parent / "node_client"
INSTALL_TIMEOUT_S = 180.0

pytestmark = [
    pytest.mark.long,  # its packages come from a registry
    pytest.mark.skipif(
        not (shutil.which("node") and shutil.which("npm")), reason="a foreign gRPC client needs node and npm here"
    ),
]


async def whole_or_streamed(request: web.Request) -> web.StreamResponse:
    """The last message in capitals, whole or, on request, streamed word by word."""
    asked = await request.json()
    if not asked.get("stream"):
        return await good_reply(request)
    words = asked["messages"][-1]["content"].upper().split(" ")
    pieces = [{"choices": [{"index": 0, "delta": {"content": word if n == 0 else f" {word}"}}]} for n, word in enumerate(words)]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
    lines = [f"data: {json.dumps({'id': 'up', **piece})}\n\n" for piece in (*pieces, end, usage)]
    return web.Response(text="".join([*lines, "data: [DONE]\n\n"]), content_type="text/event-stream")


async def run(*command: str, folder: Path, limit_s: float) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), limit_s)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, stdout.decode(), stderr.decode()


async def installed(folder: Path) -> Path:
    """The client's folder with its packages, or a loud skip where no registry answers."""
    for name in ("package.json", "stranger.js"):
        shutil.copy(CLIENT / name, folder / name)
    try:
        code, _, stderr = await run("npm", "install", "--no-audit", "--no-fund", folder=folder, limit_s=INSTALL_TIMEOUT_S)
    except TimeoutError:
        code, stderr = 1, "npm did not end in time"
    if code != 0:
        pytest.skip(f"NOT RUN: the foreign client's packages cannot be installed: {stderr.strip()[-300:]}")
    return folder


async def test_node_client_does_everything_a_device_does(tmp_path) -> None:
    (tmp_path / "node").mkdir()
    folder = await installed(tmp_path / "node")
    async with running_upstream() as upstream, coordinator_process(tmp_path, settings_for(upstream)) as child:
        upstream.reply = whole_or_streamed
        code, stdout, stderr = await run("node", "stranger.js", f"unix:{tmp_path}/c.sock", folder=folder, limit_s=60.0)
        assert code == 0, stderr
        assert await child.stop() == ""
    seen = json.loads(stdout)
    assert (seen["check"], seen["checkDevice"], seen["watch"]) == ("SERVING",) * 3
    assert {"edge.rpc.v1.DeviceService", "grpc.health.v1.Health"} <= set(seen["services"])
    assert "edge.rpc.v1.AdminService" not in seen["services"]
    assert seen["registered"] == {"device_id": "stranger", "task": "math"}
    assert seen["completed"] == {"text": "UNARY", "charged": 20, "spent": 20}
    assert seen["streamed"] == ["started", "delta", "delta", "finished"]
    assert seen["many"] == {**{f"b{number}": f"ITEM {number}" for number in range(20)}, "bad": "error 3"}
    assert (seen["watched"], seen["cancelled"]) == (22, "CALL_STATE_COMPLETED")
    assert seen["refused"] == {"code": "FAILED_PRECONDITION", "details": 1}
    assert len(upstream.keys) == 22 and len(set(upstream.keys)) == 22
