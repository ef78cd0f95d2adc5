"""Tokens with real servers: what they allow, what ends them, the refusal of forged ones, and how an agent renews its own."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from contextlib import AsyncExitStack

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.config import AuthConfig
from coordinator.service.authentication import Authenticator, CallFacts, FailureLimiter
from coordinator.service.tokens import CHECK_FILES_S, SigningKey, TokenAuthority, TokenStore
from edge.core.clock import SystemClock
from edge.core.errors import PermissionDenied, RateLimited, StateError, Unauthenticated, UsageError
from edge.rpc.client import StepUnits
from edge.rpc.errors import from_rpc_error
from edge.rpc.v1 import budget_pb2, device_pb2_grpc
from edge.testing.clock import ManualClock
from tests.until import until
from tests.worlds.coordinator import call
from tests.worlds.secure_fleet import SecureFleet, device

TOKENS_ONLY = {"client_cert": False}


async def test_a_token_names_the_device_and_its_tasks(fleet) -> None:
    token = fleet.token_file(fleet.tokens.issue("device", "lamp", ["math", "code"]))
    async with fleet.running(**TOKENS_ONLY) as (_, address), device(address, fleet.tls(), token) as lamp:
        assert (await lamp.register("1", ["math"])).device_id == "lamp"
        assert (await lamp.complete(call(), 10.0)).text == "WHAT IS 2+2?"
        for attempt in (
            lamp.complete(call("k2", task="secrets"), 10.0),
            lamp.open_step("secrets", 0, 4, 4, 0.3),
            lamp.close_step("secrets", 0, StepUnits(4, 1)),
            lamp.get_budget("secrets"),
            lamp.register("1", ["math", "secrets"]),
        ):
            with pytest.raises(PermissionDenied, match="may not work on task 'secrets'"):
                await attempt
        with pytest.raises(PermissionDenied):
            await anext(aiter(lamp.stream_complete(call("k3", task="secrets"), 10.0)))
    assert len(fleet.provider.requests) == 1


async def test_the_configuration_narrows_what_a_token_allows(fleet) -> None:
    auth = {"devices": {"lamp": {"tasks": ["math"]}}, "unlisted_devices": "refuse"}
    async with fleet.running(auth=auth, **TOKENS_ONLY) as (_, address):
        async with device(address, fleet.tls(), fleet.token_file(fleet.tokens.issue("device", "lamp", ["math", "code"]))) as lamp:
            await lamp.get_budget("math")
            with pytest.raises(PermissionDenied):
                await lamp.get_budget("code")
        async with device(address, fleet.tls(), fleet.token_file(fleet.tokens.issue("device", "oven"), "oven")) as oven:
            with pytest.raises(PermissionDenied, match="not listed"):
                await oven.get_budget("math")


async def test_over_tls_only_the_health_check_is_served_without_a_credential(fleet) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with fleet.running(**TOKENS_ONLY) as (_, address):
        async with device(address, fleet.tls()) as nobody:
            with pytest.raises(Unauthenticated, match="no credential"):
                await nobody.get_budget("math")
        async with grpc.aio.secure_channel(address, fleet.tls().channel_credentials()) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_token_and_certificate_must_name_the_same_device(fleet) -> None:
    lamp = fleet.tls(fleet.client_certificate("lamp"))
    async with fleet.running() as (_, address):
        async with device(address, lamp, fleet.token_file(fleet.tokens.issue("device", "lamp"))) as same:
            assert (await same.register("1", [])).device_id == "lamp"
        async with device(address, lamp, fleet.token_file(fleet.tokens.issue("device", "oven"), "other")) as other:
            with pytest.raises(Unauthenticated, match="another holder"):
                await other.register("1", [])


def now_s() -> int:
    return int(SystemClock().now())


def claims(**changes) -> dict:
    now = now_s()
    good = {"iss": "edge-coordinator", "aud": "edge-coordinator", "sub": "lamp", "role": "device", "tasks": [], "epoch": 0}
    return {**good, "iat": now, "nbf": now, "exp": now + 600, "begun": now, "jti": "1", **changes}


def signed(key: SigningKey, payload: dict, headers: dict | None = None) -> str:
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.private))
    return jwt.encode(payload, private, algorithm="EdDSA", headers={"kid": key.kid, **(headers or {})})


def unsigned(header: dict, payload: dict, signature: str = "") -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, payload))
    return ".".join((*parts, signature))


def confused(key: SigningKey) -> str:
    """HMAC over the public key's bytes, as if the verifier took the algorithm from the token."""
    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.private)).public_key().public_bytes_raw()
    return jwt.encode(claims(), public, algorithm="HS256", headers={"kid": key.kid})


FORGED = {
    "no algorithm": lambda key: unsigned({"alg": "none", "kid": key.kid}, claims()),
    "no signature": lambda key: signed(key, claims()).rpartition(".")[0] + ".",
    "algorithm confusion": confused,
    "another key under a known kid": lambda key: signed(SigningKey(key.kid, "11" * 32, 0), claims()),
    "an unknown kid": lambda key: signed(SigningKey("0" * 16, key.private, 0), claims()),
    "a changed claim": lambda key: ".".join(
        [
            *signed(key, claims()).split(".")[:1],
            unsigned({}, claims(sub="oven")).split(".")[1],
            signed(key, claims()).split(".")[2],
        ]
    ),
    "another audience": lambda key: signed(key, claims(aud="other-fleet")),
    "a list of audiences": lambda key: signed(key, claims(aud=["edge-coordinator", "other-fleet"])),
    "another issuer": lambda key: signed(key, claims(iss="someone")),
    "expired": lambda key: signed(key, claims(iat=now_s() - 800, nbf=now_s() - 800, exp=now_s() - 100)),
    "not yet valid": lambda key: signed(key, claims(nbf=now_s() + 300)),
    "issued in the future": lambda key: signed(key, claims(iat=now_s() + 300, nbf=now_s(), exp=now_s() + 600)),
    "a life of a year": lambda key: signed(key, claims(exp=now_s() + 365 * 86400)),
    "no end": lambda key: signed(key, {name: value for name, value in claims().items() if name != "exp"}),
    "an end that is no number": lambda key: signed(key, claims(exp=True)),
    "an unknown role": lambda key: signed(key, claims(role="root")),
    "tasks that are no list": lambda key: signed(key, claims(tasks="math")),
    "another epoch": lambda key: signed(key, claims(epoch=7)),
    "a critical extension": lambda key: signed(key, claims(), {"crit": ["x"], "x": 1}),
    "garbage": lambda key: "garbage",
    "nothing": lambda key: "",
    "far too long": lambda key: "e" * 5000,
}


async def test_every_forged_token_is_refused_without_repeating_it(fleet) -> None:
    fleet.tokens.issue("device", "lamp")
    key = TokenStore(fleet.folder).signing_keys()[0]
    messages = {}
    async with fleet.running(auth={"max_failures_per_min": 1000}, **TOKENS_ONLY) as (_, address):
        for name, forge in FORGED.items():
            token = forge(key)
            with pytest.raises(Unauthenticated) as caught:
                await ask(fleet, address, token)
            messages[name] = str(caught.value)
            assert not token or token not in messages[name]
        await ask(fleet, address, signed(key, claims()))
    assert messages["expired"] == "the token has expired" and "was revoked" in messages["another epoch"]
    assert messages["not yet valid"] == messages["issued in the future"] and "clocks" in messages["not yet valid"]


async def test_token_guessing_is_slowed_down_but_known_holders_are_not(fleet) -> None:
    good = fleet.tokens.issue("device", "lamp")
    late = fleet.tokens.issue("device", "oven")
    async with fleet.running(auth={"max_failures_per_min": 3}, **TOKENS_ONLY) as (_, address):
        await ask(fleet, address, good)
        refusals = []
        for number in range(6):
            with pytest.raises((Unauthenticated, RateLimited)) as caught:
                await ask(fleet, address, f"guess-{number}")
            refusals.append(caught.value)
        assert [type(each) for each in refusals] == [Unauthenticated] * 3 + [RateLimited] * 3
        assert 0.0 < (refusals[-1].retry_after_s or 0.0) <= 60.0
        await ask(fleet, address, good)
        with pytest.raises(RateLimited):
            await ask(fleet, address, late)


async def test_a_revoked_token_ends_in_a_running_coordinator_and_a_later_one_works(fleet) -> None:
    first = fleet.tokens.issue("device", "lamp")
    async with fleet.running(**TOKENS_ONLY) as (_, address):
        await ask(fleet, address, first)
        fleet.tokens.revoke("device", "lamp")
        with pytest.raises(Unauthenticated, match="was revoked"):
            await ask(fleet, address, first)
        await ask(fleet, address, fleet.tokens.issue("device", "lamp"))
        await ask(fleet, address, fleet.tokens.issue("device", "oven"))
    async with fleet.running(**TOKENS_ONLY) as (_, address):  # after a restart too
        with pytest.raises(Unauthenticated, match="was revoked"):
            await ask(fleet, address, first)


def test_old_key_verifies_only_until_its_tokens_expire(tmp_path) -> None:
    clock = ManualClock()
    tokens = TokenAuthority(TokenStore(tmp_path), AuthConfig(), clock)
    token = tokens.issue("device", "lamp")
    tokens.rotate()
    assert jwt.get_unverified_header(tokens.issue("device", "lamp"))["kid"] != jwt.get_unverified_header(token)["kid"]
    clock.advance(899.0)
    assert tokens.check(token).name == "lamp"
    clock.advance(100.0)
    with pytest.raises(Unauthenticated):
        tokens.check(token)


def test_an_old_key_verifies_each_role_as_long_as_its_tokens_may_live(tmp_path) -> None:
    clock = ManualClock()
    tokens = TokenAuthority(TokenStore(tmp_path / "ours"), AuthConfig(), clock)
    of_client = tokens.issue("client", "webui")
    stolen = TokenStore(tmp_path / "thief")
    with stolen.writing():
        stolen.put_keys(TokenStore(tmp_path / "ours").signing_keys())
    forger = TokenAuthority(stolen, AuthConfig(), clock)
    tokens.rotate()
    clock.advance(1000.0)
    with pytest.raises(Unauthenticated, match="unknown key"):
        tokens.check(forger.issue("device", "lamp"))
    assert tokens.check(of_client).name == "webui"
    tokens.rotate()
    assert len(TokenStore(tmp_path / "ours").signing_keys()) == 3
    clock.advance(90 * 86400.0)
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.check(of_client)
    clock.advance(300 * 86400.0)
    tokens.rotate()
    assert len(TokenStore(tmp_path / "ours").signing_keys()) == 2
    tokens.rotate(at_once=True)
    with pytest.raises(Unauthenticated, match="unknown key"):
        tokens.check(forger.issue("client", "webui"))


def test_token_expires_on_time_within_the_allowed_clock_skew(tmp_path) -> None:
    clock = ManualClock()
    tokens = TokenAuthority(TokenStore(tmp_path), AuthConfig(clock_skew_s=30), clock)
    token = tokens.issue("device", "lamp", life_s=60)
    clock.advance(89.0)
    assert tokens.check(token).name == "lamp"
    clock.advance(1.0)
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.check(token)
    with pytest.raises(UsageError):
        tokens.issue("device", "lamp", life_s=901)


def test_a_chain_of_renewals_ends(tmp_path) -> None:
    clock = ManualClock()
    tokens = TokenAuthority(TokenStore(tmp_path), AuthConfig(renewable_s=3600), clock)
    token = tokens.issue("device", "lamp", ["math"])
    for _ in range(6):
        clock.advance(600.0)
        shown = tokens.check(token)
        token = tokens.renew("device", "lamp", shown.tasks, shown.begun)
    clock.advance(600.0)
    shown = tokens.check(token)
    assert shown.tasks == ("math",)
    with pytest.raises(Unauthenticated, match="renewed any more"):
        tokens.renew("device", "lamp", shown.tasks, shown.begun)


@pytest.mark.parametrize("end", ["revoke", "rotate"])
def test_credential_that_ends_while_it_is_renewed_gets_no_new_one(tmp_path, end: str) -> None:
    clock, auth = ManualClock(), AuthConfig()
    elsewhere = TokenAuthority(TokenStore(tmp_path), auth, clock)
    token = elsewhere.issue("device", "lamp")
    here = TokenAuthority(TokenStore(tmp_path, monotonic=clock.monotonic), auth, clock)
    authenticator = Authenticator(here, auth, FailureLimiter(clock, 20), clock)
    identity = authenticator.authenticate(CallFacts("unix:", authorization=f"Bearer {token}"))
    assert here.check(authenticator.renewed_token(identity)).name == "lamp"
    if end == "revoke":
        elsewhere.revoke("device", "lamp")
    else:
        elsewhere.rotate(at_once=True)
    clock.advance(2 * CHECK_FILES_S)
    with pytest.raises(Unauthenticated):
        authenticator.renewed_token(identity)


def test_secrets_of_the_store_are_private_and_not_in_reprs(tmp_path) -> None:
    store = TokenStore(tmp_path)
    TokenAuthority(store, AuthConfig(), ManualClock()).issue("device", "lamp")
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()} == {0o600}
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert store.signing_keys()[0].private not in repr(store.signing_keys())


@pytest.mark.parametrize("name", ["signing_keys.json", "holders.json"])
@pytest.mark.parametrize(
    "text",
    [
        "{}x",
        "[" * 100_000,
        '[{"kid": "a", "private": "zz", "made_at": 1}]',
        '[{"role": "device", "name": "lamp", "epoch": null}]',
    ],
    ids=["cut", "deep", "key", "epoch"],
)
def test_damaged_store_is_a_state_error_for_issuing_and_revoking(tmp_path, name: str, text: str) -> None:
    tokens = TokenAuthority(TokenStore(tmp_path), AuthConfig(), ManualClock())
    tokens.issue("device", "lamp")
    (tmp_path / "auth" / name).write_text(text)
    with pytest.raises(StateError, match=f"{name} is damaged"):
        tokens.issue("device", "lamp")
    if name == "holders.json":
        with pytest.raises(StateError, match=f"{name} is damaged"):
            tokens.revoke("device", "lamp")


async def test_damaged_store_rejects_everybody(fleet) -> None:
    token = fleet.tokens.issue("device", "lamp")
    async with fleet.running(**TOKENS_ONLY) as (_, address):
        await ask(fleet, address, token)
        (fleet.folder / "auth" / "holders.json").write_text("{")
        await asyncio.sleep(CHECK_FILES_S)
        with pytest.raises(Exception, match="cannot be checked now") as caught:
            await ask(fleet, address, token)
    assert getattr(caught.value, "reason", "") == "LEDGER_UNAVAILABLE"


async def test_agent_renews_its_token_before_it_expires_and_stores_it_in_its_file(fleet) -> None:
    a_while_ago = TokenAuthority(TokenStore(fleet.folder), AuthConfig(), ManualClock(now_s() - 59))
    file = fleet.token_file(a_while_ago.issue("device", "lamp", ["math"], life_s=90))  # within a second two thirds are over
    first = file.token()
    async with fleet.running(**TOKENS_ONLY) as (_, address), device(address, fleet.tls(), file) as lamp:
        await lamp.get_budget("math")
        await until(lambda: file.token() != first)
        await lamp.get_budget("math")
        with pytest.raises(PermissionDenied):  # renewed to the same tasks
            await lamp.get_budget("code")
    path = fleet.folder / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_text().strip() == file.token()
    assert fleet.tokens.check(file.token()).expires_at - now_s() > 600


async def test_expired_token_is_rejected_before_sending_and_a_new_file_fixes_it(fleet) -> None:
    old = fleet.token_file(signed(SigningKey("k", "22" * 32, 0), claims(iat=now_s() - 900, exp=now_s() - 10)))
    async with fleet.running(**TOKENS_ONLY) as (_, address), device(address, fleet.tls(), old) as lamp:
        with pytest.raises(Unauthenticated, match="has expired by this device's clock") as caught:
            await lamp.get_budget("math")
        assert "token issue" in caught.value.hint
        fleet.token_file(fleet.tokens.issue("device", "lamp"))
        assert (await lamp.register("1", [])).device_id == "lamp"


async def test_certificate_gets_a_token_where_the_file_has_no_valid_one(fleet) -> None:
    old = fleet.token_file(signed(SigningKey("k", "22" * 32, 0), claims(iat=now_s() - 900, exp=now_s() - 10)))
    stale = old.token()
    lamp_tls = fleet.tls(fleet.client_certificate("lamp"))
    async with fleet.running() as (_, address), device(address, lamp_tls, old) as lamp:
        await lamp.get_budget("math")
        await until(lambda: old.token() != stale)
        await lamp.get_budget("math")
    assert fleet.tokens.check(old.token()).name == "lamp"


async def test_a_token_is_never_sent_in_the_clear_to_another_machine(fleet) -> None:
    with pytest.raises(UsageError, match="refusing to send a token unencrypted"):
        async with device("10.0.0.1:1", None, fleet.token_file("x")):
            raise AssertionError


async def ask(fleet: SecureFleet, address: str, token: str) -> None:
    """GetBudget with this token. Raises the typed error."""
    async with grpc.aio.secure_channel(address, fleet.tls().channel_credentials()) as channel:
        stub = device_pb2_grpc.DeviceServiceStub(channel)
        try:
            await stub.GetBudget(
                budget_pb2.GetBudgetRequest(task="math"),
                metadata=(("authorization", f"Bearer {token}"), ("device-id", "pretender")),
                timeout=20,
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


async def test_an_administrator_issues_and_revokes_over_the_admin_socket(fleet) -> None:
    from edge.rpc.v1 import admin_pb2, admin_pb2_grpc

    async with AsyncExitStack() as stack:
        coordinator, address = await stack.enter_async_context(fleet.running(**TOKENS_ONLY))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(coordinator.serving.admin_addresses[0]))
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        token = (await admin.IssueToken(admin_pb2.IssueTokenRequest(device="lamp", tasks=["math"]))).token
        await ask(fleet, address, token)
        assert (await admin.RevokeDevice(admin_pb2.RevokeDeviceRequest(device="lamp"))).epoch == 1
        with pytest.raises(Unauthenticated, match="was revoked"):
            await ask(fleet, address, token)
        again = (await admin.IssueToken(admin_pb2.IssueTokenRequest(device="lamp"))).token
        with pytest.raises(grpc.RpcError) as refused:  # a device's token opens no administration, not even on the socket
            await admin.ListDevices(admin_pb2.ListDevicesRequest(), metadata=(("authorization", f"Bearer {again}"),))
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
