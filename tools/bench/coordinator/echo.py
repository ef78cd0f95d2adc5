"""The cheapest servers there can be, as baselines: a bare grpc.aio method and a bare HTTP one that answer at once.

    python -m tools.bench.coordinator.echo grpc|http

Says its port in one line of JSON. The grpc one answers Complete and CompleteBatch with a constant completion: parsing and writing messages
is included, nothing else is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tools.bench.coordinator.http_wire import listen
from tools.bench.coordinator.upstream import TEXT, MockCloud
from tools.bench.processes import say


async def serve_http() -> None:
    """Serve until killed."""
    server, port = await listen(MockCloud(0.0).handle)
    say({"port": port})
    await server.serve_forever()


async def serve_grpc() -> None:
    """Serve until killed."""
    import grpc

    from edge.rpc.v1 import call_pb2, device_pb2_grpc

    class Echo(device_pb2_grpc.DeviceServiceServicer):
        """Answers with a constant."""

        async def Complete(self, request: Any, context: Any) -> Any:
            """One completion."""
            return call_pb2.CompleteResponse(completion=call_pb2.Completion(call_key=request.call_key, text=TEXT))

        async def CompleteBatch(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            """One completion for each."""
            async for request in requests:
                completion = call_pb2.Completion(call_key=request.call.call_key, text=TEXT)
                finished = call_pb2.CompleteResponse(completion=completion)
                yield call_pb2.CompleteBatchResponse(call_key=request.call.call_key, finished=finished)

    server = grpc.aio.server()
    device_pb2_grpc.add_DeviceServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say({"port": port})
    await server.wait_for_termination()


def main(arguments: Sequence[str]) -> None:
    """The process."""
    asyncio.run(serve_grpc() if arguments[0] == "grpc" else serve_http())


if __name__ == "__main__":
    main(sys.argv[1:])
