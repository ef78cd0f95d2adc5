"""`edge-agent run`: serve and learn until Ctrl-C, or for some steps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.exits import INTERRUPTED
from edge.cli.options import (
    Config,
    Coordinator,
    DeviceProfile,
    Json,
    Mode,
    Model,
    NeverSend,
    Seed,
    Sets,
    State,
    Steps,
    TargetRate,
    Tasks,
    UnsafePrograms,
)
from edge.cli.settings import Settings
from edge.cli.starting import privacy_line, starting_lines
from edge.cli.stopping import stop_on_signals
from edge.core.clock import SystemClock
from edge.core.errors import AdapterError, StateError, UsageError
from edge.core.events import FanOutSink

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.config.schema import AgentConfig, ServeConfig
    from edge.console import Console


def command(
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    tasks: Tasks = None,
    target_rate: TargetRate = None,
    steps: Steps = None,
    mode: Mode = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1 (0: any free one).")] = None,
    no_learn: Annotated[bool, typer.Option("--no-learn", help="Serve only.")] = False,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Learn only.")] = False,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    device_profile: DeviceProfile = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Serve and learn until Ctrl-C, or for --steps steps."""
    settings = Settings(
        config,
        sets,
        model,
        coordinator,
        state,
        mode,
        tasks,
        target_rate,
        seed,
        port=port,
        unsafe_programs=unsafe_programs,
        device_profile=device_profile,
        never_send=never_send,
    )
    return run(settings, RunOptions(steps=steps, learn=not no_learn, serve=not no_serve, json=json))


_LOOK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What this run does: how many steps (None: no end), and which of its two jobs."""

    steps: int | None
    learn: bool
    serve: bool
    json: bool


def run(settings: Settings, options: RunOptions) -> int:
    """Serve and learn; 0 when it ended as asked."""
    from edge.app import own_profile

    if not (options.learn or options.serve):
        raise UsageError("--no-learn and --no-serve together leave nothing to do")
    resolved = settings.resolve(own_profile)
    learns = options.learn and resolved.config.learning.enabled
    check_run(resolved.config, learns=learns, serves=options.serve)
    lines = [*starting_lines(resolved, learns=learns), *filter(None, [privacy_line(resolved.config)])]
    try:
        asyncio.run(_run(resolved.config, options, lines))
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0


def check_run(config: AgentConfig, *, learns: bool, serves: bool) -> None:
    """Raises what `run` would before a model is loaded."""
    from edge.app import check_inputs, check_serving

    if learns:
        check_inputs(config)
    else:
        check_serving(config)
    if serves:
        token_of(config.serve)
        names_of(config.serve)


async def _run(config: AgentConfig, options: RunOptions, lines: Sequence[str]) -> None:
    from edge.app import build_agent, state_folder
    from edge.console import open_console
    from edge.learning.figures import SHOWN_STEPS, LiveFigures

    with open_console(SystemClock(), json_lines=options.json, max_steps=options.steps) as console:
        for line in lines:
            console.say(line)
        console.say("starting: loading the model" + ("" if config.coordinator.address else " and the embedded coordinator"))
        figures = LiveFigures(state_folder(config) / "figures", console.say)
        agent, stop = build_agent(config, FanOutSink([console.sink, figures]), lives_here=True), asyncio.Event()
        with stop_on_signals(lambda: _begin_stop(agent, stop, console)):
            endpoint = listening(agent, config, console) if options.serve else nullcontext()
            async with agent, figures.open(agent.steps(SHOWN_STEPS)), endpoint:
                console.becomes(_busy_with(options, learns=options.learn and config.learning.enabled))
                await _work(agent, config, options, stop, console.say)


def _busy_with(options: RunOptions, *, learns: bool) -> str:
    """What goes on once the agent has started, before learning tells of itself."""
    preparing = "preparing to learn" if learns else ""
    return " and ".join(filter(None, ("answering" if options.serve else "", preparing)))


def _begin_stop(agent: Agent, stop: asyncio.Event, console: Console) -> None:
    console.say("stopping after the work in progress; Ctrl-C again stops at once")
    agent.request_stop()
    stop.set()


async def _work(agent: Agent, config: AgentConfig, options: RunOptions, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Learn while serving; with a number of steps, end when they are done."""
    if options.learn and config.learning.enabled and not stop.is_set():
        if options.steps is not None or not options.serve:
            await agent.learn(options.steps)
            return
        await learn_while_serving(agent, stop, say)
    await stop.wait()


async def learn_while_serving(agent: Agent, stop: asyncio.Event, say: Callable[[str], None], pause_s: float = 60.0) -> None:
    """Learn until a stop. A state folder that takes no step, as on a full disk, or whose checkpoints went away, ends no answers: it is
    tried again after a pause."""
    told = ""
    while not stop.is_set():
        try:
            await agent.learn()
            await _learn_what_comes(agent, stop)
        except (AdapterError, StateError, sqlite3.Error) as error:
            if told != str(error):
                told = str(error)
                say(f"learning cannot go on: {error}; answers do, and learning is tried again every {pause_s:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()


async def _learn_what_comes(agent: Agent, stop: asyncio.Event) -> None:
    """All phases are done: learn again whenever one's own use has something new, until a stop."""
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await stop.wait()
        if not stop.is_set():
            await agent.learning.apply_feedback()
        if not stop.is_set() and await agent.learning.more_to_learn():
            await agent.learn()


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


def _socket_of(serve: ServeConfig) -> Path | None:
    return None if serve.socket is None else Path(serve.socket).expanduser()


@asynccontextmanager
async def listening(agent: Agent, config: AgentConfig, console: Console) -> AsyncIterator[None]:
    """Serve the agent while the block runs, where other commands find it."""
    from edge.app import state_folder
    from edge.cli.remote import announced
    from edge.rpc.address import is_loopback
    from edge.serve.access import DEFAULT_LIMITS
    from edge.serve.endpoint import build_app
    from edge.serve.running_agent import AgentAnswers, RunningAgent
    from edge.serve.server import serving

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
