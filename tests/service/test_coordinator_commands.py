"""The `edge-coordinator` command: one-line errors, exit codes, JSON. Runs in this process; serving is tested with real processes."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from coordinator.cli import main
from coordinator.config import BudgetsConfig
from coordinator.ledger.accounts import AmountLimits, BudgetRow, BudgetTerms, OpenStepRequest, share_key
from coordinator.ledger.budgets import SCOPES, BudgetBook, limits_in_ledger, window_label
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, exclusive_lock
from edge.core.clock import SystemClock
from edge.dagrpo.dual import ProportionalIntegral
from tests.worlds.ledger_requests import close_request, open_request, reserve_request


def outcome(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("budget", "set", "galaxy", "--calls", "1"),
        ("budget", "set", "device"),
        ("budget", "set", "device", "--calls", "-1"),
        ("budget", "set", "device", "--window", "year"),
        ("serve", "--listen", "nonsense"),
        ("drain", "--grace-s", "-1"),
        ("ledger", "verify", "--state", " "),
        ("pki", "init", ""),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    code, out, err = outcome(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


NO_DAY = "from_day: 2026-02-30\n      in_uusd_per_mtok: 1\n      out_uusd_per_mtok: 1"
PRICES = "{in_uusd_per_mtok: 1, out_uusd_per_mtok: 1}"
TAKEN = "listen: ['0.0.0.0:7443']\nservice: {allow_insecure: true}\nconsole_listen: 127.0.0.1:7443\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgets: {}\nlisten: ['127.0.0.1:99999']\n", ":2: listen: cannot read the address"),
        (TAKEN, ":3: console_listen: 127.0.0.1:7443 is taken by listen"),
        ("budgets: {}\nlisten: ['0.0.0.0:7443']\n", ":2: listen: refusing to listen unencrypted on 0.0.0.0:7443; set tls"),
        ("metrics_listen: 'unix:/tmp/x'\n", ":1: metrics_listen: programs that speak HTTP cannot connect"),
        ("listen: []\naliases:\n  a: [{upstream: default}]\n  b: [{upstream: nix}]\n", ":4: alias b names upstream nix"),
        ("listen: []\nupstreams:\n  a:\n    provider: nix\n", ":4: upstreams.a.provider: unknown provider 'nix'"),
        ("upstreams:\n  default:\n    provider: openai_compatible\n", "needs base_url"),
        ("upstreams:\n  d: {provider: openai_compatible, base_url: 'http://example.org/v1'}\n", "allow_plaintext: true"),
        ("upstreams:\n  d: {api_key_env: 'env:FOO'}\n", "upstreams.d api_key_env is no name of an environment variable"),
        (f"upstreams:\n  a:\n    prices:\n    - {NO_DAY}\n", ":4: upstreams.a.prices.0.from_day cannot be read: day"),
        ("aliases: {smart: []}", "at least one upstream"),
        ("aliases: {smart: [{upstream: default}, {upstream: default}]}", "each only once"),
        ("aliases: {smart: [{upstream: default, weight: 0}]}", "greater than 0"),
        ("upstreams: {a: {provider: anthropic}}", "needs api_key or api_key_env"),
        (f"upstreams: {{a: {{price_in_uusd_per_mtok: 1, prices: [{PRICES}]}}}}", "give one of them"),
        ("upstreams: {a: {provider: openai_compatible, base_url: 'http://h/v1', price_in_uusd_per_mtok: 1}}", "give both"),
        (f"upstreams: {{a: {{prices: [{PRICES}, {PRICES}]}}}}", "two prices from the same day"),
        ("upstreams: {a: {prices: [{in_uusd_per_mtok: 1}]}}", "out_uusd_per_mtok"),
        (f"upstreams: {{a: {{prices: [{PRICES.replace('{', '{from: 2026-01-01, ')}]}}}}", "from"),
        ("storage: {backend: postgres}\n", "needs either dsn or dsn_env"),
        ("storage: {backend: postgres, dsn: 'postgresql://e:secret@h/d'}\n", "dsn_env"),
        ("storage: {backend: mysql}\n", "storage.backend"),
    ],
)
def test_invalid_configuration_is_one_line_with_file_and_line(capsys, tmp_path, text, message) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    code, out, err = outcome(capsys, "config", "check", "--config", file)
    assert (code, out) == (1, "") and err.count("\n") == 1 and str(file) in err and message in err and "secret" not in err


def test_all_that_is_wrong_with_a_configuration_is_reported_by_line_and_without_secrets(capsys, tmp_path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("storge: {}\nlisten: 3\nstorage: {backend: postgres, dsn: 'postgresql://e:secret@h/d'}\n")
    code, out, err = outcome(capsys, "config", "check", file)
    assert (code, out) == (1, "") and "secret" not in err
    assert [line.partition(":")[2].split(":")[1] for line in err.splitlines()] == ["1", "2", "3"]
    code, out, err = outcome(capsys, "config", "check", file, "--json")
    assert (code, err, json.loads(out)["ok"]) == (1, "", False) and "secret" not in out
    assert [problem["line"] for problem in json.loads(out)["problems"]] == [1, 2, 3]
    file.write_text("upstreams: {}\nlisten: ['0.0.0.0:1']\n")
    code, out, err = outcome(capsys, "config", "check", file, "--json")
    assert (code, err) == (1, "") and [problem["line"] for problem in json.loads(out)["problems"]] == [2]


def test_valid_configuration_passes_with_a_note_on_missing_prices(capsys, tmp_path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "upstreams:\n  big:\n    provider: openai_compatible\n    base_url: https://api.example.org/v1\n    model: m\n"
    )
    code, out, err = outcome(capsys, "config", "check", "--config", file)
    assert code == 0 and "ok" in out and "big has no price" in out and err == ""
    code, out, _ = outcome(capsys, "config", "check", "--config", file, "--json")
    assert json.loads(out)["unpriced"] == ["big"]


@pytest.mark.parametrize(
    "arguments", [("budget", "show"), ("ledger", "verify"), ("ledger", "export"), ("ledger", "backup", "/no/f")]
)
def test_missing_ledger_is_one_line(capsys, tmp_path, arguments) -> None:
    code, out, err = outcome(capsys, *arguments, "--state", tmp_path)
    assert (code, out) == (1, "") and "no ledger" in err and err.count("\n") == 1


async def _small_ledger(state) -> None:
    store = await SqliteLedgerStore.open(state / "ledger.sqlite3", 1_700_000_000.0)
    await store.open_step(OpenStepRequest("d", "math", 0, 4, 4, 0.5, ProportionalIntegral(0.1), 0.5, 2.0, 1_700_000_000.0))
    await store.aclose()


@pytest.fixture
async def state(tmp_path):
    """A state folder with a ledger in which one step is open."""
    await _small_ledger(tmp_path)
    return tmp_path


def test_a_backup_is_a_new_private_file_or_nothing(capsys, state, tmp_path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert outcome(capsys, "ledger", "backup", folder / "copy", "--state", state)[0] == 0
    assert (folder / "copy").stat().st_mode & 0o777 == 0o600
    kept = (folder / "copy").read_bytes()
    for path, why in ((folder / "copy", "exists already"), (folder / "none" / "copy", "cannot be written: No such file")):
        code, out, err = outcome(capsys, "ledger", "backup", path, "--state", state)
        assert (code, out) == (1, "") and why in err and err.count("\n") == 1
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("copy", kept)]


def test_export_continues_after_an_entry_and_can_be_compressed(capsys, state, tmp_path) -> None:
    _, whole, _ = outcome(capsys, "ledger", "export", "--state", state)
    first, rest = tmp_path / "first.jsonl.gz", tmp_path / "rest.jsonl.gz"
    code, out, _ = outcome(capsys, "ledger", "export", "--state", state, "--output", first)
    assert code == 0 and "entries after 0 written" in out
    outcome(capsys, "ledger", "export", "--state", state, "--after", 2, "--output", rest)
    assert gzip.decompress(first.read_bytes()).decode() == whole
    assert gzip.decompress(rest.read_bytes()).decode() == "".join(whole.splitlines(keepends=True)[2:])


def test_every_report_on_ledger_and_tokens_is_one_json_object_for_scripts(capsys, state, tmp_path) -> None:
    def reported(*arguments: object) -> dict[str, object]:
        code, out, err = outcome(capsys, *arguments, "--state", state, "--json")
        assert (code, err, out.count("\n")) == (0, "", 1), arguments
        return dict(json.loads(out))

    journal, token = tmp_path / "journal.jsonl", tmp_path / "token"
    assert reported("ledger", "export", "--after", 1, "--output", journal)["entries"] == len(journal.read_text().splitlines())
    assert reported("ledger", "verify")["ok"] and reported("ledger", "backup", tmp_path / "copy")["ok"]
    assert reported("token", "issue", "lamp", "--task", "math", "--out", token)["file"] == str(token)
    issued = reported("token", "issue", "eve", "--role", "admin")
    assert (issued["role"], issued["name"], str(issued["token"]).count(".")) == ("admin", "eve", 2)
    signing = reported("token", "rotate")["kid"]
    assert reported("token", "revoke", "lamp")["epoch"] == 1
    listed = reported("token", "list")
    assert [key["kid"] for key in listed["keys"] if key["ends_at"] is None] == [signing]


def test_export_to_stdout_is_json_lines_with_and_without_the_option(capsys, state) -> None:
    plain, asked = (outcome(capsys, "ledger", "export", "--state", state, *more) for more in ((), ("--json",)))
    assert plain == asked and all(json.loads(line)["seq"] for line in plain[1].splitlines())


def test_export_never_replaces_a_file_and_leaves_none_when_it_fails(capsys, state, tmp_path) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    for target in (there, tmp_path / "no folder" / "x.jsonl"):
        code, _, err = outcome(capsys, "ledger", "export", "--state", state, "--output", target)
        assert code == 1 and err.count("\n") == 1
    assert there.read_text() == "mine" and not list(tmp_path.rglob("*.draft"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_export_into_a_full_place_is_one_line(state) -> None:
    command = [sys.executable, "-m", "coordinator", "ledger", "export", "--state", str(state)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "the output cannot be written" in done.stderr


def test_limits_come_from_the_ledger_where_no_configuration_is_given(capsys, state, tmp_path) -> None:
    async def spend() -> None:
        store = await SqliteLedgerStore.open(state / "ledger.sqlite3", 1_700_000_000.0)
        await store.reserve(reserve_request(budgets=[BudgetTerms("device[device:d]@2026-10", AmountLimits(calls=12))]))
        await store.aclose()

    asyncio.run(spend())
    code, out, _ = outcome(capsys, "budget", "show", "--state", state)
    assert code == 0 and "limit of device: 12 calls (month)" in out and "limit of fleet: as configured" in out
    file = tmp_path / "c.yaml"
    file.write_text("budgets:\n  fleet: {calls_limit: 3}\n")
    _, out, _ = outcome(capsys, "budget", "show", "--state", state, "--config", file)
    assert "limit of fleet: 3 calls (total)" in out and "limit of device: no limit" in out


def test_spending_is_shown_beside_the_limit_of_the_next_call(capsys, tmp_path) -> None:
    now = SystemClock().now()
    month = f"device[device:d]@{window_label('month', now)}"
    budgets = [BudgetTerms(key, AmountLimits(calls=12)) for key in ("fleet", month, "device[device:d]@2020-01")]

    async def spend() -> None:
        store = await SqliteLedgerStore.open(tmp_path / "ledger.sqlite3", now)
        await store.reserve(reserve_request(budgets=budgets))
        await store.aclose()

    asyncio.run(spend())
    for scope in ("fleet", "device"):
        window = "total" if scope == "fleet" else "month"
        outcome(capsys, "budget", "set", scope, "--calls", "3", "--window", window, "--state", tmp_path)
    file = tmp_path / "c.yaml"
    file.write_text("budgets:\n  fleet: {calls_limit: 9}\n")
    for configured in ((), ("--config", file)):
        _, out, _ = outcome(capsys, "budget", "show", "--state", tmp_path, *configured)
        assert "used by fleet: calls 1 of 3" in out and f"used by {month}: calls 1 of 3" in out
        assert "2020-01" not in out


def test_damaged_ledger_is_reported_with_advice(capsys, tmp_path) -> None:
    (tmp_path / "ledger.sqlite3").write_bytes(b"not a database" * 500)
    for arguments in (("ledger", "verify"), ("budget", "set", "fleet", "--calls", "1")):
        code, out, err = outcome(capsys, *arguments, "--state", tmp_path)
        assert (code, out, err.count("\n")) == (1, "", 1) and "restore a copy" in err


def test_serving_can_require_a_verified_ledger(capsys, state) -> None:
    connection = sqlite3.connect(state / "ledger.sqlite3")
    connection.execute("UPDATE task_state SET next_step = next_step + 1")
    connection.commit()
    connection.close()
    code, out, err = outcome(capsys, "serve", "--verify", "--listen", f"unix:{state}/s.sock", "--state", state)
    assert (code, out, err.count("\n")) == (1, "", 1) and "does not verify, so it is not served" in err


def test_the_ledger_and_its_lock_are_private(state) -> None:
    assert {file.stat().st_mode & 0o777 for file in state.glob("ledger.sqlite3*")} == {0o600}


def test_set_limits_accumulate_and_override_the_file_until_reset(capsys, tmp_path) -> None:
    outcome(capsys, "budget", "set", "device", "--calls", "5", "--state", tmp_path)
    code, out, _ = outcome(capsys, "budget", "set", "device", "--spend-uusd", "900", "--window", "day", "--state", tmp_path)
    assert (code, out) == (0, "device: 5 calls, 0.0009 USD (day)\n")
    file = tmp_path / "c.yaml"
    file.write_text("budgets:\n  device: {tokens_limit: 7, calls_limit: 9}\n  fleet: {calls_limit: 3}\n")
    here = ("--state", tmp_path, "--config", file)
    _, out, _ = outcome(capsys, "budget", "show", *here)
    assert "limit of device: 5 calls, 7 tokens, 0.0009 USD (day); by `budget set`: calls, spend, window\n" in out
    assert "limit of fleet: 3 calls (total)\n" in out
    code, out, _ = outcome(capsys, "budget", "set", "device", "--calls", "none", *here, "--json")
    assert json.loads(out)["device"]["calls_limit"] is None
    code, out, _ = outcome(capsys, "budget", "set", "device", "--calls", "config", "--window", "config", *here)
    assert (code, out) == (0, "device: 9 calls, 7 tokens, 0.0009 USD (total)\n")
    shown = json.loads(outcome(capsys, "budget", "show", *here, "--json")[1])
    assert shown["set"] == {"device": ["spend_limit_uusd"]}
    assert outcome(capsys, "ledger", "verify", *here)[0] == 0


def test_limits_are_not_set_on_a_ledger_in_use_or_in_memory(capsys, tmp_path) -> None:
    with exclusive_lock(tmp_path / "ledger.sqlite3"):
        code, _, err = outcome(capsys, "budget", "set", "device", "--calls", "5", "--state", tmp_path)
    assert code == 1 and "in use by another process" in err and err.count("\n") == 1
    file = tmp_path / "c.yaml"
    file.write_text("storage: {backend: memory}\n")
    code, _, err = outcome(capsys, "budget", "set", "device", "--calls", "5", "--state", tmp_path, "--config", file)
    assert code == 1 and "in memory" in err and err.count("\n") == 1


def test_windows_are_calendar_periods_in_utc() -> None:
    end_of_year = 1_704_067_199.0
    assert [window_label(name, end_of_year) for name in ("total", "month", "week", "day", "hour")] == [
        "",
        "2023-12",
        "2023-W52",
        "2023-12-31",
        "2023-12-31T23",
    ]
    assert window_label("month", end_of_year + 1) == "2024-01"
    assert window_label("week", end_of_year + 1) == "2024-W01"


@pytest.mark.parametrize("window", ["total", "month", "week", "day", "hour"])
def test_limits_in_a_ledger_show_their_window(window) -> None:
    limits = BudgetsConfig.model_validate({scope: {"window": window, "calls_limit": 2} for scope in SCOPES})
    terms = BudgetBook(limits).terms("d", "math", 1_700_000_000.0, "ann")
    rows = [BudgetRow(each.key, each.limits, each.limits) for each in terms]
    fleet = next(row.key for row in rows if row.key.startswith("fleet") and not row.key.startswith("fleet_task"))
    shares = [BudgetRow(share_key(fleet, "d"), AmountLimits(), AmountLimits())]
    assert limits_in_ledger(rows + shares) == limits


def test_shared_duals_are_shown_with_their_tasks(tmp_path, capsys) -> None:
    async def write() -> None:
        store = await SqliteLedgerStore.open(tmp_path / "ledger.sqlite3", 1_700_000_000.0)
        for device in ("d1", "d2"):
            await store.open_step(open_request(device=device, shared_dual="fleet[task:math]"))
        await store.close_step(close_request(device="d2", help_units=128))
        await store.aclose()

    asyncio.run(write())
    assert main(["budget", "show", "--state", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "shared λ of fleet[task:math]: 0.5070 after 1 step" in out
    assert "d1 math: λ 0.5070" in out
    assert main(["budget", "show", "--state", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["updates"]) for row in shown["shared_duals"]] == [("fleet[task:math]", 1)]
    assert shown["tasks"][0]["dual"] == shown["shared_duals"][0]["dual"]


@pytest.mark.parametrize("role", ["device", "admin"])
def test_revoke_prints_the_command_for_a_new_valid_certificate(capsys, tmp_path, role) -> None:
    pki, state = tmp_path / "pki", ("--state", tmp_path)
    outcome(capsys, "pki", "init", pki)
    outcome(capsys, "pki", role, "eve", "--dir", pki, *state)
    code, out, _ = outcome(capsys, "token", "revoke", "eve", "--role", role, *state)
    again = out.splitlines()[-1].partition("edge-coordinator ")[2]
    assert (code, again) == (0, f"pki {role} eve --epoch 1 --dir DIR --force")
    assert outcome(capsys, *again.replace("DIR", str(pki)).split())[0] == 0 and epoch_in(pki / f"{role}-eve.crt") == 1
    row = json.loads(outcome(capsys, "token", "revoke", "eve", "--role", role, "--json", *state)[1])
    assert (row["epoch"], row["certificate_anew"]) == (2, f"edge-coordinator pki {role} eve --epoch 2 --dir DIR --force")


def test_certificate_shows_its_epoch_and_whether_it_is_a_guess(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "platform"))
    monkeypatch.setenv("HOME", str(tmp_path / "platform"))
    pki, state = tmp_path / "pki", tmp_path / "state"
    outcome(capsys, "pki", "init", pki)
    outcome(capsys, "token", "revoke", "lamp", "--role", "device", "--state", state)
    make = ("pki", "device", "lamp", "--dir", pki, "--force")
    assert "epoch 0 is a guess" in outcome(capsys, *make)[2]
    (tmp_path / "coordinator.yaml").write_text(f"listen: []\nauth: {{folder: {state}/auth}}\n")
    for named in (("--state", state), ("--config", tmp_path / "coordinator.yaml")):
        row = json.loads(outcome(capsys, *make, *named, "--json")[1])
        assert (row["epoch"], row["epoch_is_a_guess"], epoch_in(pki / "device-lamp.crt")) == (1, False, 1)
    assert json.loads(outcome(capsys, *make, "--json")[1])["epoch_is_a_guess"]


def epoch_in(certificate) -> int:
    uris = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return int(uris.value.get_values_for_type(x509.UniformResourceIdentifier)[0].rpartition("epoch=")[2])
