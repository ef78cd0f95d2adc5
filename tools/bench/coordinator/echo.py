"""The cheapest possible gRPC server, as a baseline: DeviceService's calls, answered immediately with a constant.

    python -m tools.bench.coordinator.echo

Prints its port in one line of JSON. Includes parsing and writing messages only.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tools.bench.mock_cloud import TEXT
from tools.bench.processes import announce


async def serve() -> None:
    """Serve until killed."""
    import grpc

    from edge.rpc.v1 import call_pb2, device_pb2_grpc

    class Echo(device_pb2_grpc.DeviceServiceServicer):
        """Answers with a constant."""

        async def Complete(self, request: Any, context: Any) -> Any:
            """One completion."""
            return call_pb2.CompleteResponse(completion=call_pb2.Completion(call_key=request.call_key, text=TEXT))

    server = grpc.aio.server()
    device_pb2_grpc.add_DeviceServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce({"port": port})
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
