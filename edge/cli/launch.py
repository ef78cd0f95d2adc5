"""`edge-agent launch NAME`: a program of others with the running agent as its model. Nothing is installed, and no file of theirs is
written: everything goes through its environment."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from edge.cli.output import print_line
from edge.cli.remote import RemoteAgent, running_agent
from edge.cli.settings import Settings, takes
from edge.core.errors import EdgeError, UsageError
from edge.core.formatting import shown
from edge.serve.ports import MODELS

_KEY = "<key>"
_ANY_KEY = "edge"
"""What stands for a key where the agent asks for none: programs insist on one."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of others: how it is started, and the environment variables that point it at an agent.

    In the values <url>, <model> and <key> stand for those of the agent. `prompt_tokens`: about how long its shortest prompts are, tools
    included. `note`: what else a person should know.
    """

    command: tuple[str, ...]
    variables: Mapping[str, str]
    prompt_tokens: int
    note: str = ""


PROGRAMS: Mapping[str, Program] = {
    "claude": Program(
        ("claude",),
        {
            "ANTHROPIC_BASE_URL": "<url>",
            "ANTHROPIC_AUTH_TOKEN": _KEY,
            "ANTHROPIC_API_KEY": "",  # a key for Anthropic's own service would be sent along
            "ANTHROPIC_MODEL": "<model>",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "<model>",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "<model>",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "<model>",
        },
        20_000,
    ),
    "opencode": Program(
        ("opencode",),
        {
            "OPENCODE_CONFIG_CONTENT": '{"model": "edge/<model>", "small_model": "edge/<model>", "provider": {"edge": {'
            '"npm": "@ai-sdk/openai-compatible", "name": "edge-agent", "models": {"<model>": {}}, '
            '"options": {"baseURL": "<url>/v1", "apiKey": "<key>"}}}}'
        },
        8_000,
    ),
    "aider": Program(
        ("aider",),
        {"OPENAI_API_BASE": "<url>/v1", "OPENAI_API_KEY": _KEY, "AIDER_MODEL": "openai/<model>"},
        2_000,
    ),
    "open-webui": Program(
        ("open-webui", "serve"),
        {"OPENAI_API_BASE_URL": "<url>/v1", "OPENAI_API_KEY": _KEY},
        0,
        "Open WebUI keeps what it got at its first start; later the address is changed in its settings, under Connections",
    ),
}


@takes("state mode")
def command(
    name: Annotated[str, Argument(help=f"One of {', '.join(PROGRAMS)}.", metavar="NAME")],
    arguments: Annotated[list[str] | None, Argument(help="Words for the program, after --.", metavar="[-- ARGUMENTS]")] = None,
    start: Annotated[bool, Option("--exec", help="Start the program with them, where it is installed.")] = False,
    *,
    settings: Settings,
) -> None:
    """Print the environment variables that have a program use the running agent, or start it with them.

    `eval "$(edge-agent launch claude)"` sets them in a shell. With --mode the program asks for that mode's model.
    """
    program = PROGRAMS.get(name)
    if program is None:
        raise UsageError(f"{shown(name)!r} cannot be launched", hint=f"give one of {', '.join(PROGRAMS)}")
    agent, context_tokens = asyncio.run(_found(settings))
    model = next(model for model, mode in MODELS.items() if mode == settings.mode)
    values = {
        variable: value.replace("<url>", agent.url).replace("<model>", model) for variable, value in program.variables.items()
    }
    if settings.mode != "cloud-only" and context_tokens is not None and context_tokens < program.prompt_tokens:
        print_line(
            f"the model on this device reads {context_tokens} tokens, and {name} sends about {program.prompt_tokens} and more: "
            "take another model, or --mode cloud-only"
        )
    if program.note:
        print_line(program.note)
    words = [*program.command, *(arguments or ())]
    if not start:
        for variable, value in values.items():
            print(f"export {variable}={_in_shell(value, agent.token_file)}")
        print_line(f"then: {shlex.join(words)}")
        return
    path = shutil.which(words[0])
    if path is None:
        raise EdgeError(f"{words[0]} is not installed here", hint="install it, or take the lines without --exec")
    sys.stdout.flush()
    environment = {variable: value.replace(_KEY, agent.token or _ANY_KEY) for variable, value in values.items()}
    os.execve(path, words, {**os.environ, **environment})  # noqa: S606 - the program that was named, without a shell


def _in_shell(value: str, token_file: str) -> str:
    """A value as a shell reads it; the token is not shown, the shell reads it from its file."""
    before, found, after = value.partition(_KEY)
    if not found or not token_file:
        return shlex.quote(value.replace(_KEY, _ANY_KEY))
    quoted = [shlex.quote(part) if part else "" for part in (before, after)]
    return f'"$(cat {shlex.quote(token_file)})"'.join(quoted)


async def _found(settings: Settings) -> tuple[RemoteAgent, int | None]:
    """The agent that runs on the state folder, and how many tokens its model reads. Raises EdgeError where none does."""
    async with running_agent(settings.state_folder()) as remote:
        if remote is None:
            raise EdgeError("no agent is running on this state folder", hint="start one with edge-agent run")
        models = await remote.ask("/v1/models")
        return remote, models["data"][0]["edge"]["context_length"]
