"""The endpoint of `edge-agent run`. Knows which settings open it to whom; knows nothing of routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge.app import state_folder
from edge.cli.remote import announced
from edge.config.schema import AgentConfig, ServeConfig
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.serve.guard import DEFAULT_LIMITS, LOOPBACK_NAMES
from edge.serve.server import is_loopback, is_wildcard, serving
from edge.serve.token import read_token

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.console import Console


def token_of(serve: ServeConfig) -> str:
    """The token that clients must show, "" where none is needed. Raises UsageError for an open address without one."""
    if serve.token_file is not None:
        return read_token(Path(serve.token_file).expanduser())
    if not is_loopback(serve.host):
        raise UsageError(
            f"serve.host {serve.host} can be reached by other machines, which must show a token",
            hint="make one with edge-agent serve-token and set serve.token_file, or leave serve.host at 127.0.0.1",
        )
    return ""


def names_of(serve: ServeConfig) -> tuple[str, ...]:
    """The host names that are answered to. Raises UsageError where other machines have none to ask under."""
    if is_wildcard(serve.host) and not serve.names:
        raise UsageError(
            f"serve.host {serve.host} has no name that other machines could ask under",
            hint="set serve.names to this machine's name or address, e.g. --set 'serve.names=[my-laptop.local]'",
        )
    own = () if is_wildcard(serve.host) else (serve.host,)
    return (*LOOPBACK_NAMES, *own, *serve.names)


def _socket_of(serve: ServeConfig) -> Path | None:
    return None if serve.socket is None else Path(serve.socket).expanduser()


def check_listening(config: AgentConfig) -> None:
    """Raises what `listening` would, before a model is loaded."""
    token_of(config.serve)
    names_of(config.serve)


@asynccontextmanager
async def listening(agent: Agent, config: AgentConfig, console: Console) -> AsyncIterator[None]:
    """Serve the agent while the block runs, where other commands find it."""
    from edge.serve.agent_answers import AgentAnswers
    from edge.serve.agent_control import RunningAgent
    from edge.serve.endpoint import build_app

    serve, model = config.serve, agent.status().model
    app = build_app(
        AgentAnswers(agent),
        RunningAgent(agent),
        SystemClock(),
        names=names_of(serve),
        token=token_of(serve),
        origins=serve.allow_origins,
        limits=replace(DEFAULT_LIMITS, posts=serve.max_requests),
        loaded_model=model.name,
        context_tokens=model.context_tokens,
        texts=agent.texts,
    )
    async with serving(app, serve.host, serve.port, socket_path=_socket_of(serve)) as url:
        with announced(state_folder(config), url, serve.token_file):
            console.say(f"chat at {url}/ · OpenAI-compatible at {url}/v1 · Ctrl-C stops")
            if not is_loopback(serve.host):
                console.say("other machines reach it over plain HTTP, token and questions included: for a network that you trust")
            yield
