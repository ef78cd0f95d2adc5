"""Secrets do not leak: a known prompt and known keys are sent through every kind of failure, then every log, message and journal is
searched."""

from __future__ import annotations

import io
import json
import logging
import signal
import stat

import pytest
from aiohttp import web

from coordinator.cli import main
from coordinator.config_secrets import read_secret
from coordinator.redact import RedactingFilter, redacted
from edge.config.secret_refs import parse_secret_ref
from edge.core.clock import SystemClock
from edge.core.errors import ConfigError, CoordinatorError
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tests.worlds.coordinator import ProgrammedProvider, call, connected, running_coordinator
from tests.worlds.coordinator_process import command, coordinator_process, settings_for
from tests.worlds.secure_fleet import SecureFleet, device
from tests.worlds.upstream_server import disconnects, good_reply, hangs

PROMPT = "my neighbour Zebedee Quux has measles"
KEY = "sk-proj-4f9aK2mQ7xW1vB8nR3tY6uZ0"
TRACES = ("Zebedee", "Quux", "measles", "4f9aK2", "W1vB8n")


def leaks(*texts: str) -> list[str]:
    """The parts of the prompt and the key that occur in the texts, ignoring case."""
    return [trace for trace in TRACES for text in texts if trace.lower() in text.lower()]


def loud(code: int, content_type: str = "application/json"):
    """An upstream that repeats all it was sent: headers and body."""

    async def reply(request: web.Request) -> web.StreamResponse:
        body = {"error": {"message": f"{dict(request.headers)} {await request.text()}"}}
        return web.Response(status=code, text=json.dumps(body), content_type=content_type)

    return reply


FAULTS = {
    "400": loud(400), "401": loud(401), "404": loud(404), "422": loud(422), "429": loud(429), "500": loud(500), "503": loud(503),
    "no JSON": loud(200, "text/html"), "other JSON": loud(200), "hang": hangs, "cut": disconnects,
}  # fmt: skip


async def test_no_prompt_or_key_reaches_a_log_message_or_the_journal_on_any_failure(tmp_path, monkeypatch, upstream) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    messages: list[str] = []
    alias = {"api_key_env": "UPSTREAM_KEY", "deadline_s": 2.0, "breaker": {"failures_to_open": 100}}
    settings = settings_for(upstream, upstream=alias, budgets={"device": {"calls_limit": len(FAULTS)}})
    async with coordinator_process(tmp_path, settings, "--log-level", "debug") as child:
        client = GrpcCoordinatorClient(child.address, policy=ClientPolicy(max_retries=0))
        for name, reply in FAULTS.items():
            upstream.reply = reply
            messages.append(await failure(client.complete(call(name, PROMPT, prompt_id=name), 20.0)))
        upstream.reply = good_reply
        await client.complete(call("good", PROMPT), 20.0)
        messages.append(await failure(client.complete(call("good", PROMPT + KEY), 20.0)))  # the key again, other content
        messages.append(await failure(client.complete(call("big", PROMPT, max_output_tokens=10**6), 20.0)))
        messages.append(await failure(client.complete(call("odd", PROMPT, model_alias=f"{KEY[:3]}x"), 20.0)))
        for number in range(6):
            messages.append(await failure(client.complete(call(f"over-{number}", f"{PROMPT} {number}"), 20.0), or_none=True))
        await client.aclose()
        log = await child.stop()
    code, journal, complaints = await command("ledger", "export", "--state", str(child.state))
    assert code == 0 and journal.count("\n") > len(FAULTS) and "http_500" in log
    assert any("BudgetExhausted" in each for each in messages) and set(leaks(PROMPT, KEY)) == set(TRACES)
    assert leaks(log, journal, complaints, *messages) == []


async def failure(attempt, *, or_none: bool = False) -> str:
    """All text of the error of an attempt."""
    try:
        await attempt
    except CoordinatorError as error:
        return f"{error!r} {error.hint} {error.metadata}"
    assert or_none
    return ""


async def test_unexpected_exception_is_logged_without_the_text_it_quotes(tmp_path) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(RedactingFilter())
    logging.getLogger().addHandler(handler)

    async def quote(request) -> None:
        raise KeyError(f"cannot work on {request.messages} with Authorization: Bearer {KEY}")

    try:
        async with running_coordinator(tmp_path, ProgrammedProvider(quote)), connected(tmp_path, max_retries=0) as client:
            message = await failure(client.complete(call("k1", PROMPT), 10.0))
    finally:
        logging.getLogger().removeHandler(handler)
    assert "KeyError" in written.getvalue() and "withheld" in written.getvalue() and "quote" in written.getvalue()
    assert leaks(written.getvalue(), message) == []


async def test_tokens_reach_no_log_or_message(tmp_path) -> None:
    fleet = SecureFleet(tmp_path)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger().addHandler(handler)
    good, bad = fleet.tokens.issue("device", "lamp"), fleet.tokens.issue("admin", "lamp")[:-4]
    try:
        async with fleet.running(client_cert=False) as (_, address):
            for number, token in enumerate((good, bad)):
                async with device(address, fleet.tls(), fleet.token_file(token, f"t{number}")) as client:
                    message = await failure(client.get_budget("math"), or_none=True)
                    assert token not in message
    finally:
        logging.getLogger().removeHandler(handler)
    assert "refused a credential" in written.getvalue()  # even without the filter
    assert not any(part in written.getvalue() for token in (good, bad) for part in token.split("."))


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {KEY}",
        f"authorization='{KEY}'",
        f"x-api-key: {KEY}",
        f'{{"api_key": "{KEY}"}}',
        f"https://user:{KEY}@host/path",
        f"postgresql://edge:{KEY[8:]}@db/ledger",
        f"Message(role='user', content='{PROMPT}')",
        f'{{"messages": [{{"role": "user", "content": "{PROMPT}"}}]}}',
        f"content='{PROMPT[:20]}",  # cut off before the quote ends
        f"future: <Task finished exception=ValueError('{PROMPT}')>",
        f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----",
    ],
)
def test_secret_like_text_and_quoted_prompts_are_cut_from_logs(text) -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "seen: %s; done", (text,), None)
    assert RedactingFilter().filter(record)
    assert leaks(record.getMessage()) == [] and record.getMessage().startswith("seen: ")


async def test_key_without_a_form_that_an_upstream_repeats_as_its_error_is_cut_from_the_log(
    tmp_path, monkeypatch, upstream
) -> None:
    key = "sk-lamp-and-shade"  # a proxy gives keys of its own making
    monkeypatch.setenv("UPSTREAM_KEY", key)

    def repeating(code: int):
        async def reply(request: web.Request) -> web.StreamResponse:
            body = {"error": {"code": request.headers["Authorization"].split()[1], "message": f"no such key: {key}"}}
            return web.Response(status=code, text=json.dumps(body), content_type="application/json")

        return reply

    settings = settings_for(upstream, upstream={"api_key_env": "UPSTREAM_KEY"})
    async with coordinator_process(tmp_path, settings) as child:
        client = GrpcCoordinatorClient(child.address, policy=ClientPolicy(max_retries=0))
        for code in (200, 400):
            upstream.reply = repeating(code)
            await failure(client.complete(call(f"k{code}"), 20.0))
        await client.aclose()
        log = await child.stop()
    assert log.count("gave no answer") == 2 and key not in log


def test_ordinary_log_lines_stay_unchanged() -> None:
    for line in (
        "2 calls outlived their lease and are charged as in doubt",
        "upstream default gave no answer (http_401): check the key in $UPSTREAM_KEY",
        "device lamp: epoch 3, 12 tokens, content of the journal",
        "GET http://127.0.0.1:8000/v1/chat/completions",
    ):
        assert redacted(line) == line


def test_the_secrets_module_reads_references_and_repeats_no_secret(tmp_path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    assert read_secret(f"file:{file}", {}) == KEY
    assert read_secret("K", {"K": f" {KEY} "}) == KEY
    for mode in (0o604, 0o622, 0o666, 0o610):
        file.chmod(mode)
        with pytest.raises(ConfigError, match="others can read or change it") as caught:
            read_secret(f"file:{file}", {})
        assert leaks(str(caught.value)) == []
    file.chmod(0o640)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640 and read_secret(f"file:{file}", {}) == KEY
    for name in ("NOT_SET", f"file:{tmp_path}/absent", f"file:{tmp_path}"):
        with pytest.raises(ConfigError, match=r"not set|cannot be read|regular"):
            read_secret(name, {})
    for plain in (KEY, "hunter2", "env:", "file:", f"env:{KEY}", "vault:x"):
        with pytest.raises(ValueError, match="env:NAME or file:/PATH") as refused:
            parse_secret_ref(plain)
        assert leaks(str(refused.value)) == []


PLAIN = {
    "as the model": f"upstreams: {{default: {{model: {KEY}}}}}",
    "as the variable's name": f"upstreams: {{default: {{api_key_env: {KEY}}}}}",
    "as the reference": f"upstreams: {{default: {{api_key: {KEY}}}}}",
    "in the address": f"upstreams: {{default: {{provider: openai_compatible, base_url: 'https://user:{KEY}@host/v1'}}}}",
    "as a number's value": f"service: {{max_rpcs: {KEY}}}",
    "a private key": f"tls: {{cert: c, key: '-----BEGIN PRIVATE KEY----- {KEY}', require_client_cert: false}}",
}


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN)
def test_secret_in_the_configuration_is_refused_in_one_line_without_repeating_it(tmp_path, capsys, text) -> None:
    (tmp_path / "c.yaml").write_text(text)
    for shown in (("check",), ("show",), ("show", "--json")):
        assert main(["config", *shown, "--config", str(tmp_path / "c.yaml")]) == 1
        out, err = capsys.readouterr()
        assert err.startswith("error: ") and err.count("\n") == 1 and leaks(out, err) == []


async def test_upstream_key_is_read_from_a_private_file_and_sent(tmp_path, upstream) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    seen: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return await good_reply(request)

    upstream.reply = note
    async with coordinator_process(tmp_path, settings_for(upstream, upstream={"api_key": f"file:{file}"})) as child:
        client = GrpcCoordinatorClient(child.address)
        await client.complete(call(), 20.0)
        await client.aclose()
    assert seen == [f"Bearer {KEY}"]
    file.chmod(0o644)
    here = ("--config", str(tmp_path / "coordinator.yaml"), "--state", str(tmp_path / "s"))
    code, _, stderr = await command("serve", *here, "--listen", f"unix:{tmp_path}/c.sock")
    assert code == 1 and "others can read" in stderr and stderr.count("\n") == 1 and leaks(stderr) == []


async def test_certificates_and_tokens_made_by_commands_work_for_a_call(tmp_path, upstream) -> None:
    """The operator's way: authority, device certificate and token by command, `serve` with TLS, SIGHUP, revocation by command."""
    pki, state = str(tmp_path / "pki"), str(tmp_path / "state")
    assert (await command("pki", "init", pki, "--name", "127.0.0.1"))[0] == 0
    assert (await command("pki", "device", "lamp", "--dir", pki, "--state", state))[0] == 0
    again = await command("pki", "init", pki)
    assert again[0] == 1 and "not overwritten" in again[2] and again[2].count("\n") == 1
    assert (await command("token", "issue", "lamp", "--state", state, "--out", f"{tmp_path}/token", "--task", "math"))[0] == 0
    tls = {"cert": f"{pki}/server.crt", "key": f"{pki}/server.key", "client_ca": f"{pki}/ca.crt"}
    settings = settings_for(upstream, tls=tls)
    async with coordinator_process(tmp_path, settings, "--listen", "127.0.0.1:0", "--json") as child:
        address = json.loads(child.serving_line)["addresses"][1]
        child.process.send_signal(signal.SIGHUP)
        files = SecureFleetFiles(tmp_path)
        async with device(address, files.tls, files.token) as lamp:
            assert (await lamp.complete(call(), 10.0)).text == "WHAT IS 2+2?"
            code, stdout, _ = await command("token", "revoke", "lamp", "--state", state)
            assert code == 0 and stdout.startswith("device lamp: everything issued before now is refused; its epoch is 1\n")
            assert "was revoked" in await failure(lamp.get_budget("math"))
        listed = json.loads((await command("token", "list", "--json", "--state", state))[1])
        assert [(row["name"], row["epoch"]) for row in listed["holders"]] == [("lamp", 1)]
    assert upstream.keys == ["lamp|k1|1"]


class SecureFleetFiles:
    """The files written by the commands, as a device uses them."""

    def __init__(self, folder) -> None:
        from edge.rpc.credentials import ClientTls, TokenFile

        pki = folder / "pki"
        self.tls = ClientTls(pki / "ca.crt", pki / "device-lamp.crt", pki / "device-lamp.key")
        self.token = TokenFile(folder / "token", SystemClock())
