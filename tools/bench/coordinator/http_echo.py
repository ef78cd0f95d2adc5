"""The cheapest HTTP server that the endpoint's library allows, as a baseline: aiohttp's low-level server, answering every request at once
with a constant.

    python -m tools.bench.coordinator.http_echo

Prints its port in one line of JSON. Includes reading the request's body, and no JSON.
"""

from __future__ import annotations

import asyncio

from tools.bench.mock_cloud import completion
from tools.bench.processes import announce


async def serve() -> None:
    """Serve until killed."""
    from aiohttp import web

    body = completion()

    async def answer(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    announce({"port": runner.addresses[0][1]})
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
