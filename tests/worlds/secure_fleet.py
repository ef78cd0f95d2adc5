"""A fleet with certificates and tokens: an authority in a folder, a coordinator on a TLS port, and devices with credentials chosen by the
test."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.app import Coordinator
from coordinator.config import AuthConfig
from coordinator.service.holders import Holder
from coordinator.service.pki import Authority, Written
from coordinator.service.tokens import CHECK_FILES_S, HolderRow, SigningKey, TokenAuthority, TokenStore
from edge.core.clock import Clock, SystemClock
from edge.rpc.credentials import ClientCredentials, ClientTls, TokenFile
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tests.worlds.coordinator import ProgrammedProvider, running_coordinator


class NoticedTokens(TokenAuthority):
    """Tokens changed in another process than the coordinator's, which checks the files every CHECK_FILES_S."""

    def revoke(self, role: str, name: str) -> HolderRow:
        """Revoke, and wait until it is noticed."""
        row = super().revoke(role, name)
        threading.Event().wait(CHECK_FILES_S)
        return row

    def rotate(self, *, at_once: bool = False) -> SigningKey:
        """Rotate, and wait until it is noticed."""
        key = super().rotate(at_once=at_once)
        threading.Event().wait(CHECK_FILES_S)
        return key


class SecureFleet:
    """An authority and the state of one coordinator, under `folder`."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder = folder
        self.clock = clock or SystemClock()
        self.authority = Authority(folder / "pki")
        self.ca = self.authority.create(self.clock.now()).certificate
        self.server = self.authority.issue_server(["localhost", "127.0.0.1"], self.clock.now())
        self.provider = ProgrammedProvider()

    @property
    def tokens(self) -> TokenAuthority:
        """As another process would open them."""
        return NoticedTokens(TokenStore(self.folder), AuthConfig(), self.clock)

    def tls_settings(self, *, client_cert: bool = True) -> dict[str, Any]:
        """The `tls` section."""
        settings: dict[str, Any] = {"cert": str(self.server.certificate), "key": str(self.server.key)}
        return {**settings, "require_client_cert": client_cert, **({"client_ca": str(self.ca)} if client_cert else {})}

    def client_certificate(
        self, name: str, *, role: str = "device", epoch: int = 0, days: int = 7, at: float | None = None
    ) -> Written:
        """A certificate for a holder."""
        now = self.clock.now() if at is None else at
        return self.authority.issue_client(Holder(role, name, epoch), now, days=days, force=True)

    def tls(self, written: Written | None = None) -> ClientTls:
        """A client's files."""
        tls = ClientTls(self.ca)
        return tls if written is None else replace(tls, cert=written.certificate, key=written.key)

    def token_file(self, token: str, name: str = "token") -> TokenFile:
        """A token in a file of mode 0600."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(token)
        return TokenFile(path, self.clock)

    @asynccontextmanager
    async def running(self, *, client_cert: bool = True, **config: Any) -> AsyncIterator[tuple[Coordinator, str]]:
        """A coordinator on a Unix socket and a TLS port; with it the port's address."""
        listen = (f"unix:{self.folder}/c.sock", "127.0.0.1:0")
        config = {"tls": self.tls_settings(client_cert=client_cert), "listen": listen, **config}
        async with running_coordinator(self.folder, self.provider, clock=self.clock, **config) as coordinator:
            yield coordinator, coordinator.serving.addresses[1]


@asynccontextmanager
async def device(address: str, tls: ClientTls | None = None, token: TokenFile | None = None, **policy: Any) -> AsyncIterator[Any]:
    """A client that shows this."""
    client = GrpcCoordinatorClient(
        address,
        device_id="pretender",
        policy=ClientPolicy(**{"connect_timeout_s": 10.0, **policy}),
        credentials=ClientCredentials(tls, token),
    )
    try:
        yield client
    finally:
        await client.aclose()
