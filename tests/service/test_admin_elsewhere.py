"""Commands that administer a coordinator on another machine, over mTLS with an administrator's certificate or with a token."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.cli import main
from coordinator.ledger.stores.sqlite import SqliteLedgerStore
from coordinator.service.pki import Written
from edge.core.errors import BudgetExhausted, Unauthenticated
from tests.worlds.coordinator import call
from tests.worlds.ledger_requests import read_export
from tests.worlds.secure_fleet import SecureFleet, device

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def run(tmp_path, capsys) -> Run:
    """Run a command that cannot read a local ledger; returns exit code, stdout, stderr."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*arguments, "--state", str(tmp_path / "empty")])
        return (code, *capsys.readouterr())

    return run


@asynccontextmanager
async def administered(fleet: SecureFleet, *, client_cert: bool = True) -> AsyncIterator[tuple[str, str]]:
    """A coordinator over a file, whose administrators connect to a TLS port; the devices' address and theirs."""
    store = await SqliteLedgerStore.open(fleet.folder / "ledger.sqlite3", 0.0)
    async with fleet.running(client_cert=client_cert, store=store, admin_listen=("127.0.0.1:0",)) as (coordinator, address):
        yield address, coordinator.serving.admin_addresses[0]


def shown(fleet: SecureFleet, written: Written | None, **settings: str) -> list[str]:
    """The options that name these files."""
    files = {"tls.ca": str(fleet.ca), **settings}
    if written is not None:
        files |= {"tls.cert": str(written.certificate), "tls.key": str(written.key)}
    return [part for name, path in files.items() for part in ("--set", f"admin.{name}={path}")]


async def test_every_command_works_with_an_administrator_certificate(fleet, run, tmp_path) -> None:
    async with administered(fleet) as (address, admins), device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
        there = ["--coordinator", admins, *shown(fleet, fleet.client_certificate("eve", role="admin"))]
        await lamp.register("9.1", ["math"])
        await lamp.complete(call("k1"), 10.0)
        listed = {name: json.loads((await run(name, "--json", *there))[1]) for name in ("devices", "calls", "upstreams")}
        assert (listed["devices"]["device"], listed["calls"]["call_key"]) == ("lamp", "k1")
        assert await run("budget", "set", "device", "--calls", "1", *there) == (0, "device: 1 call (total)\n", "")
        with pytest.raises(BudgetExhausted):
            await lamp.complete(call("k2", "another"), 5.0)
        budgets = json.loads((await run("budget", "show", "--json", *there))[1])["budgets"]
        assert next(row for row in budgets if row["key"] == "device[device:lamp]")["calls"]["committed"] == 1
        assert (await run("healthcheck", admins, *there[2:]))[:2] == (0, f"SERVING on {admins}\n")

        code, verified, stderr = await run("ledger", "verify", *there)
        assert (code, stderr) == (0, "") and "all equal, bit for bit" in verified and "1 call," in verified
        code, exported, _ = await run("ledger", "export", *there)
        entries = list(read_export(exported.splitlines()))
        assert code == 0 and [entry.seq for entry in entries] == list(range(1, len(entries) + 1))

        code, token, _ = await run("token", "issue", "oven", *there)
        assert code == 0 and fleet.tokens.check(token.strip()).name == "oven"
        code, out, stderr = await run("token", "revoke", "lamp", *there)
        assert (code, stderr) == (0, "") and "its epoch is 1\n" in out
        code, out, stderr = await run("token", "rotate", "--coordinator", admins)
        assert (code, out) == (2, "") and "keys are not rotated from another machine" in stderr
        with pytest.raises(Unauthenticated):
            await lamp.get_budget("math")
    assert not (tmp_path / "empty").exists()


async def test_admin_token_is_enough_where_no_certificate_is_required(fleet, run) -> None:
    async with administered(fleet, client_cert=False) as (_, admins):
        for role, code in (("admin", 0), ("device", 1)):
            fleet.token_file(fleet.tokens.issue(role, "eve"))
            ended, _, stderr = await run(
                "devices", "--coordinator", admins, *shown(fleet, None, token_file=f"{fleet.folder}/token")
            )
            assert ended == code and ("role device may not use AdminService" in stderr) == (code == 1)
        code, _, err = await run("upstreams", "--coordinator", admins, *shown(fleet, None))
    assert code == 1 and "takes only tokens of administrators" in err and "admin.token_file" in err


async def test_missing_admin_credential_is_one_line(fleet, run, tmp_path) -> None:
    other = SecureFleet(tmp_path / "other")
    eve = fleet.client_certificate("eve", role="admin")
    cases = {
        "wants TLS, and this administrator has none; set admin.tls.ca, and admin.tls.cert": [],
        "wants a certificate of this administrator; set admin.tls.cert and admin.tls.key": shown(fleet, None),
        "does not accept this administrator's certificate": shown(fleet, other.client_certificate("eve", role="admin")),
        "comes from an authority that": shown(other, eve),
        "role device may not use AdminService": shown(fleet, fleet.client_certificate("lamp")),
    }
    async with administered(fleet) as (_, admins):
        for line, files in cases.items():
            code, stdout, stderr = await run("devices", "--coordinator", admins, *files)
            assert (code, stdout, stderr.count("\n")) == (1, "", 1) and line in stderr, (line, stderr)
        late = fleet.client_certificate("eve", role="admin", days=1, at=fleet.clock.now() - 2 * 86400)
        code, _, stderr = await run("devices", "--coordinator", admins, *shown(fleet, late))
        assert code == 1 and "has expired; renew it: edge-coordinator pki admin NAME" in stderr
    async with fleet.running(tls=None) as (_, plain):
        assert "speaks no TLS; remove admin.tls" in (await run("devices", "--coordinator", plain, *shown(fleet, eve)))[2]


async def test_given_address_must_answer_and_is_never_contacted_in_plaintext(fleet, run) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        await _all_refused(run, f"127.0.0.1:{closed.getsockname()[1]}")
    code, _, stderr = await run("devices", "--coordinator", "10.0.0.1:7444")
    assert code == 2 and "refusing to administer 10.0.0.1:7444 unencrypted; set admin.tls.ca" in stderr


async def _all_refused(run: Run, gone: str) -> None:
    for command in (("budget", "show"), ("budget", "set", "device", "--calls", "1"), ("ledger", "verify"), ("devices",)):
        code, stdout, stderr = await run(*command, "--coordinator", gone)
        assert (code, stdout) == (1, "") and stderr.startswith(f"error: no coordinator answers at {gone}"), stderr


async def test_address_and_credential_files_can_be_configured(fleet, run, tmp_path) -> None:
    eve = fleet.client_certificate("eve", role="admin")
    async with administered(fleet) as (_, admins):
        tls = {"ca": str(fleet.ca), "cert": str(eve.certificate), "key": str(eve.key)}
        file = Path(tmp_path / "admin.yaml")
        file.write_text(json.dumps({"admin": {"address": admins, "tls": tls}}))
        assert (await run("upstreams", "--config", str(file)))[1].startswith("default: m")


async def test_admin_port_keeps_local_commands_free_of_credentials(fleet, tmp_path, capsys) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"admin_listen": ["127.0.0.1:1"], "state_dir": str(tmp_path), "tls": fleet.tls_settings()}))
    async with administered(fleet):
        for command in (("upstreams",), ("budget", "show"), ("healthcheck",)):
            assert await asyncio.to_thread(main, [*command, "--config", str(config)]) == 0, command
        assert "SERVING on unix:" in capsys.readouterr().out


async def test_administrators_need_certificates_where_devices_use_tokens(fleet, run, caplog) -> None:
    settings = {**fleet.tls_settings(), "require_client_cert": False}
    eve = fleet.client_certificate("eve", role="admin")
    async with fleet.running(tls=settings, admin_listen=("127.0.0.1:0",)) as (coordinator, address):
        assert "tls.require_client_cert is false: devices show tokens" in caplog.text
        admins = coordinator.serving.admin_addresses[0]
        assert (await run("upstreams", "--coordinator", admins, *shown(fleet, eve)))[0] == 0
        code, _, err = await run("upstreams", "--coordinator", admins, *shown(fleet, None))
        assert code == 1 and "wants a certificate of this administrator" in err
        token = fleet.token_file(fleet.tokens.issue("device", "lamp"))
        async with device(address, fleet.tls(), token) as lamp:
            assert (await lamp.register("1", ["math"])).device_id == "lamp"
        async with device(address, fleet.tls(fleet.client_certificate("lamp"))) as lamp:
            with pytest.raises(Unauthenticated, match="takes only tokens of devices, and no certificates") as refused:
                await lamp.register("1", ["math"])
        assert "coordinator.token_file" in refused.value.hint
