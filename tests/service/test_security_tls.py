"""Certificates between real servers and clients over TLS: who is accepted, with which identity, and the error of the others."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from coordinator.service.pki import Authority, write_private
from edge.app.coordinator import build_client
from edge.cli.doctor import check_coordinator
from edge.config.agent import resolve_agent_config
from edge.config.loader import Flag
from edge.core.errors import ConfigError, CoordinatorUnavailable, PermissionDenied, StateError, Unauthenticated, UsageError
from edge.rpc.credentials import ClientCredentials, ClientTls
from edge.rpc.health import is_serving
from tests.worlds.coordinator import call
from tests.worlds.coordinator_process import coordinator_process, settings_for
from tests.worlds.metrics_page import scraped, value
from tests.worlds.secure_fleet import SecureFleet, device


async def test_device_identity_comes_from_the_certificate_and_not_from_metadata(fleet) -> None:
    async with fleet.running() as (_, address), device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
        assert (await lamp.register("1", ["math"])).device_id == "lamp"
        assert (await lamp.complete(call(), 10.0)).text == "WHAT IS 2+2?"
    assert fleet.provider.requests[0].idempotency_key.startswith("lamp|")


async def test_unix_socket_still_works_without_credentials(fleet) -> None:
    async with fleet.running(), device(f"unix:{fleet.folder}/c.sock") as local:
        assert (await local.register("1", ["math"])).device_id == "pretender"


async def test_rejected_device_gets_one_line_with_advice(fleet, tmp_path) -> None:
    other = SecureFleet(tmp_path / "other")
    foreign = other.client_certificate("lamp")
    late = fleet.client_certificate("late", days=1, at=fleet.clock.now() - 2 * 86400)
    cases: list[tuple[ClientTls | None, str, str]] = [
        (None, "wants TLS", "set coordinator.tls.ca"),
        (fleet.tls(), "wants a certificate of this device", ""),
        (ClientTls(fleet.ca, foreign.certificate, foreign.key), "does not accept this device's certificate", ""),
        (other.tls(foreign), "comes from an authority", "ca.crt"),
        (fleet.tls(late), "has expired", "pki device"),
        (fleet.tls(fleet.server), "", ""),  # the server's own certificate does not make a device
    ]
    async with fleet.running() as (_, address):
        for shown, message, hint in cases:
            async with device(address, shown) as turned_away:
                error = await refused(turned_away)
            assert message in str(error) and hint in error.hint and "\n" not in str(error), error


async def test_server_with_another_name_is_rejected(fleet) -> None:
    lamp = fleet.client_certificate("lamp")
    fleet.server = fleet.authority.issue_server(["elsewhere.example"], fleet.clock.now(), force=True)
    async with fleet.running() as (_, address):
        async with device(address, fleet.tls(lamp)) as careful:
            error = await refused(careful)
        named = ClientTls(fleet.ca, lamp.certificate, lamp.key, server_name="elsewhere.example")
        async with device(address, named) as client:
            assert (await client.register("1", [])).device_id == "lamp"
    assert "is for another name" in str(error) and "server_name" in error.hint


async def test_expired_server_certificate_is_reported_as_such(fleet, monkeypatch) -> None:
    fleet.server = fleet.authority.issue_server(["localhost", "127.0.0.1"], fleet.clock.now() - 2 * 86400, days=1, force=True)
    monkeypatch.setattr(
        "coordinator.service.tls._check_pair", lambda *_: None
    )  # it refuses to start with one; this one grew old meanwhile
    async with fleet.running() as (_, address), device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
        error = await refused(lamp)
    assert str(error).startswith("the certificate of the coordinator at") and str(error).endswith("has expired")
    assert "pki server" in error.hint


async def test_renewed_server_certificate_is_used_without_a_restart_and_open_connections_continue(fleet) -> None:
    lamp = fleet.tls(fleet.client_certificate("lamp"))
    async with fleet.running() as (_, address):
        async with device(address, lamp) as before:
            await before.register("1", [])
            fleet.authority.issue_server(["elsewhere.example"], fleet.clock.now(), force=True)
            async with device(address, lamp) as after:
                assert "is for another name" in str(await refused(after))
            await before.register("1", [])
            (fleet.folder / "pki" / "server.crt").write_text("half written")
            async with device(address, lamp) as later:  # what cannot be used changes nothing
                assert "is for another name" in str(await refused(later))
            fleet.authority.issue_server(["localhost"], fleet.clock.now(), force=True)
        async with device(address.replace("127.0.0.1", "localhost"), lamp) as again:
            await again.register("1", [])


async def test_revoked_device_is_refused_on_its_open_connection_until_it_has_a_new_certificate(fleet) -> None:
    tls = fleet.tls(fleet.client_certificate("lamp"))
    async with fleet.running() as (_, address), device(address, tls) as lamp:
        await lamp.register("1", [])
        fleet.tokens.revoke("device", "lamp")
        error = await refused(lamp)
        assert isinstance(error, Unauthenticated) and "was revoked" in str(error)
        fleet.client_certificate("lamp", epoch=1)
        assert (await lamp.register("1", [])).device_id == "lamp"


async def test_remote_plaintext_is_refused_by_server_and_client(fleet) -> None:
    with pytest.raises(ConfigError, match="refusing to listen unencrypted"):
        async with fleet.running(tls=None, listen=("0.0.0.0:0",)):
            raise AssertionError
    async with fleet.running(listen=(f"unix:{fleet.folder}/c.sock", "0.0.0.0:0")):
        pass
    with pytest.raises(UsageError, match="refusing to send prompts unencrypted"):
        async with device("10.0.0.1:1"):
            raise AssertionError


async def test_agent_configuration_with_tls_leads_to_a_served_call(fleet) -> None:
    lamp = fleet.client_certificate("lamp")
    fleet.token_file(fleet.tokens.issue("device", "lamp"))
    files = {"ca": str(fleet.ca), "cert": str(lamp.certificate), "key": str(lamp.key)}
    async with fleet.running() as (_, address):
        sets = [f"coordinator.tls.{name}={path}" for name, path in files.items()]
        sets += [f"coordinator.token_file={fleet.folder}/token"]
        config = resolve_agent_config(sets=sets, flags=[Flag("coordinator.address", address, "--coordinator")]).config
        client = build_client(config, address, "run-1")
        assert (await client.register("1", ["math"])).device_id == "lamp"
        await client.aclose()
    lamp.key.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read or changed by others"):
        build_client(config, address, "run-1")


@pytest.mark.parametrize("broken", ["key of mode 0644", "key of another certificate", "no file", "no PEM"])
async def test_unusable_files_are_one_line_at_the_start(fleet, tmp_path, broken) -> None:
    key = fleet.server.key
    if broken == "key of mode 0644":
        key.chmod(0o644)
    elif broken == "key of another certificate":
        key.write_bytes(fleet.client_certificate("lamp").key.read_bytes())
    elif broken == "no file":
        key.unlink()
    else:
        key.write_text("secret nonsense")
    with pytest.raises(ConfigError) as caught:
        async with fleet.running():
            raise AssertionError
    assert "server" in str(caught.value) and "nonsense" not in str(caught.value)


def test_keys_are_private_and_replaced_only_on_request(fleet) -> None:
    lamp = fleet.client_certificate("lamp")
    for key in (fleet.server.key, lamp.key, fleet.folder / "pki" / "ca.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = {path: path.read_bytes() for path in Path(fleet.authority.folder).iterdir()}
    with pytest.raises(StateError, match="not overwritten"):
        fleet.authority.create(fleet.clock.now())
    with pytest.raises(StateError, match="not overwritten"):
        fleet.authority.issue_server(["localhost"], fleet.clock.now())
    assert before == {path: path.read_bytes() for path in Path(fleet.authority.folder).iterdir()}
    link = fleet.folder / "link"
    link.symlink_to(fleet.folder / "elsewhere")
    for taken in (lamp.key, link):
        with pytest.raises(StateError, match="not overwritten"):
            write_private(taken, b"new")
    assert not (fleet.folder / "elsewhere").exists()
    old_mask = os.umask(0)
    try:
        assert stat.S_IMODE(Authority(fleet.folder / "open").create(fleet.clock.now()).key.stat().st_mode) == 0o600
    finally:
        os.umask(old_mask)


async def refused(client) -> Exception:
    """The typed error that ends a registration."""
    with pytest.raises((CoordinatorUnavailable, Unauthenticated, PermissionDenied)) as caught:
        await client.register("1", ["math"])
    return caught.value


@pytest.mark.parametrize(
    ("shown", "finding"),
    [
        ("nothing", "wants TLS"),
        ("authority", "wants a certificate of this device"),
        ("certificate", "answers"),
    ],
)
async def test_doctor_explains_why_a_tls_coordinator_does_not_answer(fleet, shown, finding) -> None:
    lamp = fleet.client_certificate("lamp")
    sets = {"nothing": [], "authority": [f"coordinator.tls.ca={fleet.ca}"]}
    sets["certificate"] = [*sets["authority"], f"coordinator.tls.cert={lamp.certificate}", f"coordinator.tls.key={lamp.key}"]
    async with fleet.running() as (_, address):
        config = resolve_agent_config(sets=sets[shown], flags=[Flag("coordinator.address", address, "--coordinator")]).config
        check = await asyncio.to_thread(check_coordinator, config)
    assert finding in check.text
    assert (check.state, bool(check.hint)) == (("ok", False) if shown == "certificate" else ("fail", True))


def strangers_of(fleet: SecureFleet) -> list[ClientTls | None]:
    """Credentials that no handshake accepts: none at all, no certificate, one of another authority."""
    other = SecureFleet(fleet.folder / "other").client_certificate("lamp")
    return [None, fleet.tls(), ClientTls(fleet.ca, other.certificate, other.key)]


async def test_failed_handshakes_leave_no_grpc_text_in_the_log(fleet, tmp_path, upstream) -> None:
    settings = settings_for(upstream, tls=fleet.tls_settings())
    async with coordinator_process(tmp_path, settings, "--listen", "127.0.0.1:0", "--json") as child:
        address = json.loads(child.serving_line)["addresses"][1]
        for shown in strangers_of(fleet):
            async with device(address, shown) as turned_away:
                await refused(turned_away)
        async with device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
            await lamp.register("1", ["math"])
        assert await child.stop() == ""


async def test_failed_handshakes_are_counted_separately_from_served_connections(fleet, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.service.tls.PATIENCE_S", 0.2)
    async with fleet.running(metrics_listen="127.0.0.1:0") as (coordinator, address):
        url = coordinator.serving.metrics_url
        for shown in strangers_of(fleet):
            async with device(address, shown) as turned_away:
                await refused(turned_away)
        async with device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
            await lamp.register("1", ["math"])
            assert await is_serving(address, 5.0, credentials=ClientCredentials(fleet.tls(fleet.client_certificate("oven"))))
            await asyncio.sleep(0.3)
            seen = await scraped(url)
    assert value(seen, "tls_connections_total", outcome="served") == 2
    assert value(seen, "tls_connections_total", outcome="failed") >= 2 * 3  # gRPC's own try, and that of who asks why
