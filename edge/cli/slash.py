"""The slash commands of a conversation: which there are, and which one a line means. Knows words; knows nothing of agents or terminals."""

from __future__ import annotations

from dataclasses import dataclass

from edge.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command: its name with the slash, what may follow it, and what it does."""

    name: str
    takes: str
    about: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a line means: a command and what follows it; `command` is "" for a question."""

    command: str
    rest: str


COMMANDS = (
    SlashCommand("/local", "QUESTION", "ask without the cloud"),
    SlashCommand("/cloud", "QUESTION", "ask the cloud"),
    SlashCommand("/why", "[ID]", "where the last answer, or another one, came from"),
    SlashCommand("/good", "[ID]", "the last answer, or another one, was right"),
    SlashCommand("/bad", "[ID] [TEXT]", "it was wrong; TEXT is what would have been right"),
    SlashCommand("/budget", "", "what may still be spent"),
    SlashCommand("/retry", "", "the last question once more; sampled anew where it was answered"),
    SlashCommand("/new", "", "forget the conversation"),
    SlashCommand("/help", "", "these commands and keys"),
    SlashCommand("/quit", "", "leave"),
)
_NAMES = frozenset(command.name for command in COMMANDS)
_KEYS = (
    "Enter sends; Alt-Enter, or \\ at the end of a line, begins a new line; pasted line ends stay",
    "Up, Down and Ctrl-R find what was asked before; Tab completes commands",
    "Ctrl-C stops an answer, or drops the line; Ctrl-D leaves",
    "a question that begins with / is written with two: //etc/hosts is a file",
)


def understood(line: str) -> Said:
    """What the line means. Raises UsageError for a command there is not, or one without the question it needs."""
    if not line.startswith("/") or line.startswith("//"):
        return Said("", line[1:] if line.startswith("//") else line)
    word, _, rest = line.partition("\n" if "\n" in line.split(" ", 1)[0] else " ")
    if word not in _NAMES:
        raise UsageError(f"unknown command {word}", hint="/help lists them; to ask a question that begins with /, write //")
    if word in ("/local", "/cloud") and not rest.strip():
        raise UsageError(f"{word} needs a question", hint=f"write {word} What is 17 * 3?")
    return Said(word, rest.strip())


def help_lines() -> list[str]:
    """Commands and keys, for a person."""
    shown = [(f"{command.name} {command.takes}".rstrip(), command.about) for command in COMMANDS]
    width = max(len(name) for name, _ in shown)
    return [*(f"{name:<{width}}  {about}" for name, about in shown), *_KEYS]
