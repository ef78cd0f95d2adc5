"""`edge-agent run`: serve and learn until Ctrl-C, or for some steps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from edge.cli.exits import stop_on_signals
from edge.cli.options import Json
from edge.cli.settings import Settings, not_in_json, privacy_line, starting_line, starting_lines, takes
from edge.core.clock import SystemClock
from edge.core.errors import AdapterError, Collapsed, CoordinatorError, StateError, UsageError
from edge.core.events import FanOutSink
from edge.core.interrupts import INTERRUPTED
from edge.core.limits import MOST_STEPS

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.config.schema import AgentConfig, ServeConfig
    from edge.console import Console

_WAIT_S = 5.0
"""How long all phases done wait before own use is asked for something new."""


@takes("model coordinator state tasks question answer ask target_rate mode port seed unsafe_programs device_profile never_send")
def command(
    *,
    settings: Settings,
    steps: Annotated[
        int | None, Option("--steps", min=1, max=MOST_STEPS, metavar="N", help="Learning steps; without it, go on until Ctrl-C.")
    ] = None,
    no_learn: Annotated[bool, Option("--no-learn", help="Serve only.")] = False,
    no_serve: Annotated[bool, Option("--no-serve", help="Learn only.")] = False,
    json: Json = False,
) -> int:
    """Serve and learn until Ctrl-C, or for --steps steps."""
    from edge.app.agents import why_learning_is_off
    from edge.app.settings import own_profile
    from edge.app.step_size import fitted_steps

    if no_learn and no_serve:
        raise UsageError("--no-learn and --no-serve together leave nothing to do")
    resolved = settings.resolve(own_profile)
    learns, serves = not no_learn and resolved.config.learning.enabled, not no_serve
    off = why_learning_is_off(resolved.config) if learns and serves and steps is None else ""
    learns = learns and not off
    check_run(resolved.config, learns=learns, serves=serves)
    resolved, size_lines = fitted_steps(resolved, not_in_json(json), lives_here=True) if learns else (resolved, [])
    lines = [*starting_lines(resolved, learns=learns), *size_lines, *filter(None, [privacy_line(resolved.config)])]
    if off:
        lines.append(f"learning is off for this model, it only answers: {off}")
    try:
        asyncio.run(_run(resolved.config, lines, steps, learns=learns, serves=serves, json_lines=json))
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0


def check_run(config: AgentConfig, *, learns: bool, serves: bool) -> None:
    """Raises what `run` would before a model is loaded."""
    from edge.app.agents import check_inputs, check_serving

    if learns:
        check_inputs(config)
    else:
        check_serving(config)
    if serves:
        token_of(config.serve)
        names_of(config.serve)


async def _run(
    config: AgentConfig, lines: Sequence[str], steps: int | None, *, learns: bool, serves: bool, json_lines: bool
) -> None:
    """Serve and learn until a stop; with a number of steps, or where nothing is served, end when learning is done."""
    from edge.app.agents import build_agent
    from edge.app.settings import state_folder
    from edge.console import open_console
    from edge.learning.figures import SHOWN_STEPS, LiveFigures

    with open_console(SystemClock(), json_lines=json_lines, max_steps=steps) as console:
        for line in lines:
            console.say(line)
        console.say(starting_line(config))
        figures = LiveFigures(state_folder(config) / "figures", console.say)
        agent, stop = build_agent(config, FanOutSink([console.sink, figures]), lives_here=True), asyncio.Event()
        if serves:
            check_address(agent, config.serve)

        def begin_stop() -> None:
            console.say("stopping after the work in progress; Ctrl-C again stops immediately")
            agent.request_stop()
            stop.set()

        with stop_on_signals(begin_stop):
            endpoint = listening(agent, config, console) if serves else nullcontext()
            async with agent, figures.open(agent.components.state.steps(SHOWN_STEPS)), endpoint:
                console.becomes(" and ".join(["answering"] * serves + ["preparing to learn"] * learns))
                if learns and not stop.is_set() and (steps is not None or not serves):
                    await agent.learn(steps)
                    return
                if learns and not stop.is_set():
                    await learn_while_serving(agent, stop, console.say)
                await stop.wait()


async def learn_while_serving(agent: Agent, stop: asyncio.Event, say: Callable[[str], None], pause_s: float = 60.0) -> None:
    """Learn until a stop; when all phases are done, again whenever one's own use has something new. What learning cannot get over now ends
    no answers, and is tried again after a pause: a full disk, checkpoints that went away, a task that the coordinator refuses; a collapse,
    which a person may answer by going back to another version."""
    reported = ""
    while not stop.is_set():
        try:
            await agent.learn()
            while not stop.is_set():
                await _wait_for(stop, _WAIT_S)
                if not stop.is_set():
                    await agent.learning.apply_feedback()
                if not stop.is_set() and await agent.learning.more_to_learn():
                    await agent.learn()
        except (AdapterError, Collapsed, CoordinatorError, StateError, sqlite3.Error) as error:
            if reported != str(error):
                reported = str(error)
                hint = getattr(error, "hint", "") or ("make room on the disk" if isinstance(error, sqlite3.Error) else "")
                todo = f"; {hint}" if hint else ""
                say(f"learning cannot go on: {error}{todo}; answers do, and learning is tried again every {pause_s:g} s")
            await _wait_for(stop, pause_s)


async def _wait_for(stop: asyncio.Event, limit_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await stop.wait()


def check_address(agent: Agent, serve: ServeConfig) -> None:
    """Before the agent's model is loaded: raises EdgeError for an address that is taken, with the state folder released."""
    from edge.serve.server import check_port

    try:
        check_port(serve.host, serve.port)
    except BaseException:
        agent.components.state.close()
        raise


def token_of(serve: ServeConfig) -> str:
    """The token that clients must show, "" where none is needed. Raises UsageError for an open address without one."""
    from edge.rpc.address import is_loopback
    from edge.serve.token_file import read_token

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
    from edge.serve.access import LOOPBACK_NAMES
    from edge.serve.server import is_wildcard

    if is_wildcard(serve.host) and not serve.names:
        raise UsageError(
            f"serve.host {serve.host} has no name that other machines could ask under",
            hint="set serve.names to this machine's name or address, e.g. --set 'serve.names=[my-laptop.local]'",
        )
    own = () if is_wildcard(serve.host) else (serve.host,)
    return (*LOOPBACK_NAMES, *own, *serve.names)


@asynccontextmanager
async def listening(agent: Agent, config: AgentConfig, console: Console) -> AsyncIterator[None]:
    """Serve the agent while the block runs, where other commands find it."""
    from edge.app.settings import state_folder
    from edge.cli.remote import announced
    from edge.rpc.address import is_loopback
    from edge.serve.access import DEFAULT_LIMITS
    from edge.serve.endpoint import build_app
    from edge.serve.running_agent import AgentAnswers, RunningAgent
    from edge.serve.server import serving

    serve = config.serve
    app = build_app(
        AgentAnswers(agent),
        RunningAgent(agent),
        SystemClock(),
        names=names_of(serve),
        token=token_of(serve),
        origins=serve.allow_origins,
        limits=replace(DEFAULT_LIMITS, posts=serve.max_requests),
        loaded_model=agent.status().model.name,
        context_tokens=agent.adapter.backend.tokenizer.context_tokens,
        texts=agent.adapter.backend,
        serving=agent.precedence.serving,
    )
    socket = None if serve.socket is None else Path(serve.socket).expanduser()  # noqa: ASYNC240
    async with serving(app, serve.host, serve.port, socket_path=socket) as url:
        with announced(state_folder(config), url, serve.token_file):
            console.say(f"chat at {url}/ · OpenAI-compatible at {url}/v1 · Ctrl-C stops")
            if not is_loopback(serve.host):
                console.say("other machines reach it over plain HTTP, token and questions included: for a network that you trust")
            yield
