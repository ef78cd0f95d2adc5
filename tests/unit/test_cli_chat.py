"""The parsing of chat lines, and the input history."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import InMemoryHistory

from edge.cli.chat import understood
from edge.cli.prompt import HISTORY_FILE, KEPT_ENTRIES, MOST_HISTORY_BYTES, open_history
from edge.core.errors import UsageError


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("What is 2 + 2?", ("", "What is 2 + 2?")),
        ("//etc/hosts", ("", "/etc/hosts")),
        ("/local  2+2?", ("/local", "2+2?")),
        ("/cloud\none\ntwo", ("/cloud", "one\ntwo")),
        ("/cloud one\ntwo", ("/cloud", "one\ntwo")),
        ("/bad", ("/bad", "")),
        ("half /quit", ("", "half /quit")),
    ],
)
def test_chat_line_is_a_question_or_a_command(line: str, expected: tuple[str, str]) -> None:
    assert understood(line) == expected


@pytest.mark.parametrize("line", ["/", "/local", "/cloud  ", "/Quit", "/etc/hosts is a file"])
def test_unknown_or_incomplete_command_is_wrong_usage(line: str) -> None:
    with pytest.raises(UsageError):
        understood(line)


def test_history_is_made_private_even_if_it_was_not(tmp_path: Path) -> None:
    file = tmp_path / HISTORY_FILE
    file.touch(mode=0o644)
    open_history(tmp_path, stored=True).append_string("one\ntwo")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(open_history(tmp_path, stored=True).load_history_strings()) == ["one\ntwo"]


def test_a_long_history_keeps_its_newest_entries_in_order(tmp_path: Path) -> None:
    history = open_history(tmp_path, stored=True)
    padding = "x" * (MOST_HISTORY_BYTES // KEPT_ENTRIES)
    for number in range(KEPT_ENTRIES + 5):
        history.store_string(f"{number} {padding}")
    newest_first = [entry.split()[0] for entry in open_history(tmp_path, stored=True).load_history_strings()]
    assert newest_first == [str(number) for number in reversed(range(5, KEPT_ENTRIES + 5))]
    assert [file.name for file in tmp_path.iterdir()] == [HISTORY_FILE]


def test_unwritable_history_is_reported_and_kept_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(open_history(tmp_path / "none", stored=True), InMemoryHistory)
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "elsewhere").touch()
    (tmp_path / HISTORY_FILE).symlink_to(tmp_path / "elsewhere")  # a link would lead the questions out of the state folder
    assert isinstance(open_history(tmp_path, stored=True), InMemoryHistory)
    assert not list(open_history(tmp_path, stored=False).load_history_strings())
