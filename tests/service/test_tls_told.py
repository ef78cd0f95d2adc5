"""What people are told when TLS is the reason that nothing answers: one line and what to do, by a real server and every way to ask it."""

from __future__ import annotations

import asyncio
import json

import pytest

from edge.cli.doctor import check_coordinator
from edge.config.agent import resolve_agent_config
from edge.config.loader import Flag
from edge.core.errors import CoordinatorUnavailable
from edge.rpc.credentials import ClientCredentials, ClientTls
from edge.rpc.health import is_serving
from tests.service.metrics_page import scraped, value
from tests.service.processes import coordinator_process, fake_upstream, settings_for
from tests.service.security import SecureFleet, device


@pytest.fixture
def fleet(tmp_path) -> SecureFleet:
    return SecureFleet(tmp_path)


async def told(client) -> CoordinatorUnavailable:
    """Why a registration does not reach the coordinator."""
    with pytest.raises(CoordinatorUnavailable) as caught:
        await client.register("1", ["math"])
    assert caught.value.reason == "UNREACHABLE" and "\n" not in str(caught.value)
    return caught.value


async def test_a_device_in_the_clear_is_told_that_the_coordinator_wants_tls(fleet) -> None:
    async with fleet.running() as (_, address), device(address) as plain:
        error = await told(plain)
    assert "wants TLS" in str(error) and "set coordinator.tls.ca" in error.hint and "token_file" in error.hint


async def test_a_server_certificate_that_has_expired_is_told_as_such(fleet, monkeypatch) -> None:
    fleet.server = fleet.authority.issue_server(["localhost", "127.0.0.1"], fleet.clock.now() - 2 * 86400, days=1, force=True)
    monkeypatch.setattr(
        "coordinator.service.tls._check_pair", lambda *_: None
    )  # it refuses to start with one; this one grew old meanwhile
    async with fleet.running() as (_, address), device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
        error = await told(lamp)
    assert str(error).startswith("the certificate of the coordinator at") and str(error).endswith("has expired")
    assert "pki server" in error.hint


@pytest.mark.parametrize(
    ("shown", "finding"),
    [
        ("nothing", "wants TLS"),
        ("authority", "wants a certificate of this device"),
        ("certificate", "answers"),
    ],
)
async def test_the_doctor_says_why_a_coordinator_behind_tls_does_not_answer(fleet, shown, finding) -> None:
    lamp = fleet.client_certificate("lamp")
    sets = {"nothing": [], "authority": [f"coordinator.tls.ca={fleet.ca}"]}
    sets["certificate"] = [*sets["authority"], f"coordinator.tls.cert={lamp.certificate}", f"coordinator.tls.key={lamp.key}"]
    async with fleet.running() as (_, address):
        config = resolve_agent_config(sets=sets[shown], flags=[Flag("coordinator.address", address, "--coordinator")]).config
        told_by_doctor = await asyncio.to_thread(check_coordinator, config)
    assert finding in told_by_doctor.text
    assert (told_by_doctor.state, bool(told_by_doctor.hint)) == (("ok", False) if shown == "certificate" else ("fail", True))


def strangers_of(fleet: SecureFleet) -> list[ClientTls | None]:
    """What callers show that no handshake lets in: nothing at all, no certificate, one of another authority."""
    other = SecureFleet(fleet.folder / "other").client_certificate("lamp")
    return [None, fleet.tls(), ClientTls(fleet.ca, other.certificate, other.key)]


async def test_failed_handshakes_leave_grpcs_own_words_out_of_the_log(fleet, tmp_path) -> None:
    async with fake_upstream() as upstream:
        settings = settings_for(upstream, tls=fleet.tls_settings())
        async with coordinator_process(tmp_path, settings, "--listen", "127.0.0.1:0", "--json") as child:
            address = json.loads(child.serving_line)["addresses"][1]
            for shown in strangers_of(fleet):
                async with device(address, shown) as turned_away:
                    await told(turned_away)
            async with device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
                await lamp.register("1", ["math"])
            assert await child.stop() == ""


async def test_failed_handshakes_are_counted_beside_the_connections_that_are_served(fleet, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.service.tls.PATIENCE_S", 0.2)
    async with fleet.running(metrics_listen="127.0.0.1:0") as (coordinator, address):
        url = coordinator.serving.metrics_url
        for shown in strangers_of(fleet):
            async with device(address, shown) as turned_away:
                await told(turned_away)
        async with device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
            await lamp.register("1", ["math"])
            assert await is_serving(address, 5.0, credentials=ClientCredentials(fleet.tls(fleet.client_certificate("oven"))))
            await asyncio.sleep(0.3)
            seen = await scraped(url)
    assert value(seen, "tls_connections_total", outcome="served") == 2
    assert value(seen, "tls_connections_total", outcome="failed") >= 2 * 3  # gRPC's own try, and that of who asks why
