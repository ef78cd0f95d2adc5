"""`outbox`, `privacy check` and `--never-send` on an idle folder: output and errors."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from edge.app.settings import build_registry
from edge.cli.settings import Settings
from edge.cloud.egress import EgressClient
from edge.cloud.sent import Keep, SentLog
from edge.config.agent import resolve_agent_config
from edge.core.errors import ConfigError
from edge.privacy.registry import PrivacyRegistry
from edge.rpc import codec
from edge.rpc.client import StepUnits
from edge.state.folder import StateFolder
from edge.state.rows import Report
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient
from tests.unit.conftest import EdgeAgent
from tests.worlds.coordinator import call


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    with StateFolder(tmp_path) as state:
        client = EgressClient(ScriptedCoordinatorClient(), PrivacyRegistry(), SentLog(state.database, ManualClock(), Keep()))
        await client.register("1.0", ["math"])
        await client.complete(call("k1", "write to jo@x.org", prompt_id="a1"), 5.0)
        state.put_request("a1", 0.0, {"reason": "the model asked for help", "call_state": "completed"})
        state._queue(Report("math", 4, 8, 8, 0.3, StepUnits(64, 12)))
        state.database.commit()
    return tmp_path


def test_outbox_lists_sent_entries_newest_first_with_the_answers_reason(folder: Path, edge_agent: EdgeAgent) -> None:
    code, out, err = edge_agent("outbox", "--state", str(folder))
    first, second = out.splitlines()
    assert code == 0 and "answering" in first and "registration" in second
    assert "the model asked for help" in first and "1 email" in first and "1 step report" in err


def test_entry_is_shown_with_its_exact_bytes_and_without_the_address(folder: Path, edge_agent: EdgeAgent) -> None:
    code, out, _ = edge_agent("outbox", "show", "2", "--json", "--state", str(folder))
    shown = json.loads(out)
    sent = codec.encode_call(call("k1", "write to [EMAIL_1]", prompt_id="a1")).SerializeToString()
    assert code == 0 and base64.b64decode(shown["payload_base64"]) == sent and shown["bytes"] == len(sent)
    assert shown["payload"]["messages"][0]["content"] == "write to [EMAIL_1]" and "jo@x.org" not in out


def test_outbox_filters_entries_and_lists_pending_reports(folder: Path, edge_agent: EdgeAgent) -> None:
    for words, sent in ((["--kind", "answering"], 1), (["--limit", "1"], 1), (["--since", "1d"], 0), ([], 2)):
        assert len(edge_agent("outbox", *words, "--json", "--state", str(folder)).json["sent"]) == sent
    assert "12 of 64" in edge_agent("outbox", "--waiting", "--state", str(folder)).out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--since", "soon"], 2, "no such time"),
        (["--since", "2999-01-01"], 2, "lies in the future"),
        (["--kind", "gossip"], 2, "no such kind"),
        (["show", "99"], 1, "nothing with the number 99"),
    ],
)
def test_invalid_input_is_one_line(folder: Path, edge_agent: EdgeAgent, words: list[str], code: int, message: str) -> None:
    edge_agent("outbox", *words, "--state", str(folder)).refused(code, message)


def test_missing_or_damaged_folder_is_refused(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    edge_agent("outbox", "--state", str(tmp_path / "none")).refused(1, str(tmp_path / "none"), "--state")
    assert not (tmp_path / "none").exists()
    (tmp_path / "agent.sqlite").write_bytes(b"no database" * 100)
    edge_agent("outbox", "--state", str(tmp_path)).refused(1, "cannot be read")


def test_privacy_check_shows_what_would_be_sent(edge_agent: EdgeAgent) -> None:
    code, out, err = edge_agent("privacy", "check", "write to jo@x.org of Falcon", "--set", "privacy.terms=[Falcon]")
    assert (code, out) == (0, "write to [EMAIL_1] of [TERM_1]\n") and "1 email, 1 term" in err
    sets = ["--set", "privacy.kinds=[ip,email]", "--set", "privacy.region=DE"]
    shown = edge_agent("privacy", "check", "x", "--json", *sets).json
    assert (shown["kinds"], shown["region"]) == (["email", "ip"], "DE")
    code, out, err = edge_agent("privacy", "check", "The  Vault", "--never-send", "the vault")
    assert (code, out) == (3, "") and "never-send rule 1" in err


@pytest.mark.parametrize("rule", ["x", "like:*a*b*c*"])
def test_a_bad_rule_is_refused_when_it_is_given(edge_agent: EdgeAgent, rule: str) -> None:
    edge_agent("privacy", "check", "text", "--never-send", rule).refused(2, "rule", "--never-send")


def test_never_send_adds_to_the_configured_rules(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("privacy: {never_send: [first]}")
    config = Settings(tmp_path / "c.yaml", never_send=["second"]).config()
    assert config.privacy.never_send == ("first", "second")


def test_terms_are_read_from_a_file_and_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "terms.txt").write_text("# people\nAnneliese  # sister\n\n")
    config = resolve_agent_config(None, [f"privacy.terms_file={tmp_path}/terms.txt"]).config
    assert build_registry(config).redacted(["to anneliese"]).texts == ("to [TERM_1]",)
    (tmp_path / "terms.txt").write_text("fine\nx\n")
    with pytest.raises(ConfigError, match=r"terms.txt:2: .*too short"):
        build_registry(config)
    with pytest.raises(ConfigError, match="no country"):
        build_registry(resolve_agent_config(None, ["privacy.region=QQ"]).config)
