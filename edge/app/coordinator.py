"""The way to the coordinator: its address, the client with its credentials, the embedded one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from edge.app.settings import configured_limits, switched_off
from edge.config.schema import AgentConfig
from edge.config.secret_refs import SecretRef, parse_secret_ref
from edge.core.errors import ConfigError
from edge.core.events import EventSink

if TYPE_CHECKING:
    from edge.cloud.embedded import EmbeddedCoordinator
    from edge.core.clock import Clock
    from edge.privacy.registry import PrivacyRegistry
    from edge.rpc.client import CoordinatorClient
    from edge.rpc.credentials import ClientCredentials
    from edge.state.folder import StateFolder


def coordinator_address(config: AgentConfig, folder: Path) -> str:
    """Where the coordinator is: the configured address, or the embedded one's socket."""
    from edge.cloud.embedded import socket_path

    return config.coordinator.address or f"unix:{socket_path(folder / 'coordinator')}"


def build_client(config: AgentConfig, address: str, run_id: str) -> CoordinatorClient:
    """The gRPC client. Raises UsageError for an address that cannot be read."""
    from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient

    coordinator = config.coordinator
    remote_id = coordinator.device_id or f"device-{run_id}"
    return GrpcCoordinatorClient(
        address,
        device_id=remote_id if coordinator.address else "",
        allow_insecure=coordinator.allow_insecure,
        policy=ClientPolicy(control_deadline_s=coordinator.control_deadline_s),
        credentials=build_credentials(config),
    )


def build_credentials(config: AgentConfig) -> ClientCredentials:
    """What this device shows to its coordinator. Raises ConfigError for files that cannot be used."""
    from edge.core.clock import SystemClock
    from edge.rpc.credentials import ClientCredentials, ClientTls, TokenFile

    coordinator = config.coordinator
    if coordinator.address is None:  # the embedded coordinator trusts its socket
        return ClientCredentials()
    tls, token = None, None
    if coordinator.tls is not None:
        cert, key = (Path(name).expanduser() if name else None for name in (coordinator.tls.cert, coordinator.tls.key))
        tls = ClientTls(Path(coordinator.tls.ca).expanduser(), cert, key, coordinator.tls.server_name)
        tls.channel_credentials()
    if coordinator.token_file is not None:
        token = TokenFile(Path(coordinator.token_file).expanduser(), SystemClock())
        token.token()
    return ClientCredentials(tls, token)


def require_cloud_key(config: AgentConfig) -> None:
    """Raises ConfigError where the variable with the key of the embedded coordinator's cloud LLM is not set."""
    upstream = config.coordinator.embedded
    key = SecretRef(env=upstream.api_key_env) if upstream.api_key_env else upstream.api_key and parse_secret_ref(upstream.api_key)
    if key and key.env and not os.environ.get(key.env):
        raise ConfigError(f"the environment variable {key.env} is not set", hint="set it to the cloud LLM's API key")


def build_embedded(config: AgentConfig, state: StateFolder, sink: EventSink, clock: Clock) -> EmbeddedCoordinator | None:
    """The coordinator this agent starts for itself, with the limits that were set over the configuration's; None when it has an address
    to go to. Raises ConfigError for a cloud LLM's key that is not there: the child would end at each start."""
    if config.coordinator.address is not None:
        return None
    if not switched_off(config):
        require_cloud_key(config)
    from edge.budget.limits import limits_of
    from edge.cloud.embedded import EmbeddedCoordinator, embedded_settings
    from edge.rpc.health import is_serving

    address, limits = coordinator_address(config, state.folder), limits_of(state, configured_limits(config))
    return EmbeddedCoordinator(
        state.folder / "coordinator",
        {**embedded_settings(config), "budgets": {"device": limits.to_coordinator()}},
        lambda: is_serving(address),
        sink,
        clock,
        start_timeout_s=config.coordinator.embedded.start_timeout_s,
    )


def egress_client(
    config: AgentConfig, registry: PrivacyRegistry, address: str, state: StateFolder, clock: Clock
) -> CoordinatorClient:
    """The gRPC client, wrapped in the egress layer: redact, write down, send. Raises UsageError, ConfigError."""
    from edge.cloud.egress import EgressClient
    from edge.cloud.sent import Keep, SentLog

    keep = Keep(config.privacy.keep_days, config.privacy.keep_entries)
    return EgressClient(build_client(config, address, state.run_id), registry, SentLog(state.database, clock, keep))
