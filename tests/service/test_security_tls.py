"""Certificates between real servers and real clients over TLS: who is let in, as whom, and what the others are told."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from coordinator.service.pki import Authority, write_private
from edge.app import build_client
from edge.config.agent import resolve_agent_config
from edge.config.loader import Flag
from edge.core.errors import ConfigError, CoordinatorUnavailable, PermissionDenied, StateError, Unauthenticated, UsageError
from edge.rpc.credentials import ClientTls
from tests.service.in_process import call
from tests.service.security import SecureFleet, device


@pytest.fixture
def fleet(tmp_path) -> SecureFleet:
    return SecureFleet(tmp_path)


async def test_a_device_is_who_its_certificate_says_and_not_who_its_metadata_says(fleet) -> None:
    async with fleet.running() as (_, address), device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
        assert (await lamp.register("1", ["math"])).device_id == "lamp"
        assert (await lamp.complete(call(), 10.0)).text == "WHAT IS 2+2?"
    assert fleet.provider.requests[0].idempotency_key.startswith("lamp|")


async def test_the_unix_socket_goes_on_without_credentials(fleet) -> None:
    async with fleet.running(), device(f"unix:{fleet.folder}/c.sock") as local:
        assert (await local.register("1", ["math"])).device_id == "pretender"


async def test_without_a_certificate_the_device_is_told_to_get_one(fleet) -> None:
    async with fleet.running() as (_, address), device(address, fleet.tls()) as nobody:
        error = await refused(nobody)
    assert error.reason == "UNREACHABLE" and "wants a certificate of this device" in str(error)


async def test_a_certificate_of_another_authority_is_refused_and_the_reason_told(fleet, tmp_path) -> None:
    other = SecureFleet(tmp_path / "other")
    foreign = other.client_certificate("lamp")
    async with fleet.running() as (_, address):
        async with device(address, ClientTls(fleet.ca, foreign.certificate, foreign.key)) as intruder:
            assert "does not accept this device's certificate" in str(await refused(intruder))
        async with device(address, other.tls(foreign)) as lost:
            error = await refused(lost)
    assert "comes from an authority" in str(error) and "ca.crt" in error.hint


async def test_an_expired_device_certificate_is_refused_and_the_reason_told(fleet) -> None:
    expired = fleet.client_certificate("lamp", days=1, at=fleet.clock.now() - 2 * 86400)
    async with fleet.running() as (_, address), device(address, fleet.tls(expired)) as late:
        error = await refused(late)
    assert "has expired" in str(error) and "pki device" in error.hint


async def test_a_server_that_is_called_otherwise_is_not_believed(fleet) -> None:
    lamp = fleet.client_certificate("lamp")
    fleet.server = fleet.authority.issue_server(["elsewhere.example"], fleet.clock.now(), force=True)
    async with fleet.running() as (_, address):
        async with device(address, fleet.tls(lamp)) as careful:
            error = await refused(careful)
        named = ClientTls(fleet.ca, lamp.certificate, lamp.key, server_name="elsewhere.example")
        async with device(address, named) as told:
            assert (await told.register("1", [])).device_id == "lamp"
    assert "is for another name" in str(error) and "server_name" in error.hint


async def test_a_revoked_device_is_refused_on_its_open_connection_and_a_new_certificate_lets_it_in(fleet) -> None:
    async with fleet.running() as (_, address):
        async with device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
            await lamp.register("1", ["math"])
            fleet.tokens.revoke("device", "lamp")
            error = await refused(lamp)
        async with device(address, fleet.tls(fleet.client_certificate("lamp", epoch=1))) as renewed:
            assert (await renewed.register("1", ["math"])).device_id == "lamp"
    assert isinstance(error, Unauthenticated) and "was revoked" in str(error)


async def test_a_renewed_server_certificate_serves_without_a_restart_and_open_connections_go_on(fleet) -> None:
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


async def test_a_renewed_device_certificate_is_taken_by_a_running_client(fleet) -> None:
    tls = fleet.tls(fleet.client_certificate("lamp"))
    async with fleet.running() as (_, address), device(address, tls) as lamp:
        await lamp.register("1", [])
        fleet.tokens.revoke("device", "lamp")
        assert isinstance(await refused(lamp), Unauthenticated)
        fleet.client_certificate("lamp", epoch=1)
        assert (await lamp.register("1", [])).device_id == "lamp"


async def test_plaintext_beyond_this_machine_stays_refused_by_server_and_client(fleet) -> None:
    with pytest.raises(ConfigError, match="refusing to listen unencrypted"):
        async with fleet.running(tls=None, listen=("0.0.0.0:0",)):
            raise AssertionError
    async with fleet.running(listen=(f"unix:{fleet.folder}/c.sock", "0.0.0.0:0")):
        pass
    with pytest.raises(UsageError, match="refusing to send prompts unencrypted"):
        async with device("10.0.0.1:1"):
            raise AssertionError


async def test_an_agents_configuration_leads_to_a_served_call(fleet) -> None:
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
async def test_files_that_cannot_be_used_are_one_line_at_the_start(fleet, tmp_path, broken) -> None:
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


def test_keys_are_private_and_never_replaced_unless_asked(fleet) -> None:
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
