"""The endpoint's token: made once, private to this user, required wherever other machines can connect."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from edge.cli.run import names_of, token_of
from edge.config.schema import ServeConfig
from edge.core.errors import ConfigError, UsageError
from edge.serve.token_file import make_token, read_token
from tests.unit.conftest import EdgeAgent


def test_token_is_new_each_time_and_readable_by_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "token"
    first, second = make_token(path), make_token(path)
    assert (read_token(path), first != second, path.stat().st_mode & 0o777) == (second, True, 0o600)
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]


@pytest.mark.parametrize(
    ("text", "mode"), [("short", 0o600), ("has blanks in the middle", 0o600), ("", 0o600), ("a" * 32, 0o644)]
)
def test_file_that_is_not_this_users_token_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        read_token(path)
    assert caught.value.hint
    assert "a" * 32 not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        read_token(tmp_path / "none")
    assert "serve-token" in caught.value.hint


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.4", "::", "example.org"])
def test_other_machines_need_a_token_and_this_one_may_ask_for_one(tmp_path: Path, host: str) -> None:
    assert token_of(ServeConfig()) == ""
    with pytest.raises(UsageError, match="must show a token"):
        token_of(ServeConfig(host=host))
    token = make_token(tmp_path / "token")
    for one in (host, "127.0.0.1"):
        assert token_of(ServeConfig(host=one, token_file=str(tmp_path / "token"))) == token


def test_wildcard_address_needs_names_and_others_are_their_own() -> None:
    with pytest.raises(UsageError, match="no name"):
        names_of(ServeConfig(host="0.0.0.0"))
    assert names_of(ServeConfig(host="0.0.0.0", names=("me.local",)))[-1] == "me.local"
    assert "0.0.0.0" not in names_of(ServeConfig(host="0.0.0.0", names=("me.local",)))
    assert "192.168.0.4" in names_of(ServeConfig(host="192.168.0.4"))


@pytest.mark.parametrize(
    "origin", ["*", "null", "notes.example", "https://notes.example/", "https://*.example", "file:///x", "https://a b"]
)
def test_only_whole_origins_and_host_names_can_be_named(origin: str) -> None:
    with pytest.raises(ValidationError, match="no origin"):
        ServeConfig(allow_origins=(origin,))
    ServeConfig(allow_origins=("https://notes.example", "http://localhost:3000", "http://[::1]:80"))
    for name in ("http://me", "", "me,you"):
        with pytest.raises(ValidationError, match="no host name"):
            ServeConfig(names=(name,))


def test_serve_token_prints_the_same_token_until_a_new_one_is_wanted(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    tokens = []
    for more in ([], [], ["--new"]):
        code, out, err = edge_agent("serve-token", "--state", str(tmp_path), *more)
        tokens.append(out.strip())
        assert code == 0 and "serve.token_file=" in err and tokens[-1] not in err
    assert tokens[0] == tokens[1] != tokens[2] == read_token(tmp_path / "serve-token")


def test_an_open_address_without_a_token_is_refused_before_a_model_is_loaded(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    words = ("run", "--no-learn", "--state", str(tmp_path), "--set", "serve.host=0.0.0.0")
    edge_agent(*words).refused(2, "edge-agent serve-token")
    assert list(tmp_path.iterdir()) == []
