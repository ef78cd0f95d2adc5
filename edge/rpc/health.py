"""Asking a coordinator whether it serves."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edge.core.errors import CoordinatorUnavailable
from edge.rpc.address import parse_address
from edge.rpc.credentials import ClientCredentials
from edge.rpc.handshake import DEVICE, Caller, open_channel, why_no_handshake

NO_CREDENTIALS = ClientCredentials()


async def is_serving(
    address: str, timeout_s: float = 1.0, *, service: str = "", credentials: ClientCredentials = NO_CREDENTIALS
) -> bool:
    """True when the standard health check answers SERVING within the time, for a service or ("") the server as a whole.

    Raises UsageError for an address that cannot be read, ConfigError for files of the credentials that cannot be used.
    """
    async with open_channel(parse_address(address), credentials) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def require_handshake(address: str, timeout_s: float, credentials: ClientCredentials, caller: Caller = DEVICE) -> None:
    """After a failure: raises CoordinatorUnavailable when TLS is its reason, with the reason and what to do."""
    why = await why_no_handshake(parse_address(address), credentials, timeout_s, caller)
    if why is not None:
        raise CoordinatorUnavailable(why[0], hint=why[1])
