"""`edge-agent run`: serve and learn until Ctrl-C, or for some steps."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.app import build_agent, check_inputs, check_serving, own_profile, state_folder
from edge.cli.exits import INTERRUPTED
from edge.cli.listening import check_listening, listening
from edge.cli.starting import privacy_line, starting_lines
from edge.cli.stopping import stop_on_signals
from edge.config.schema import AgentConfig
from edge.console import Console, open_console
from edge.core.clock import SystemClock
from edge.core.errors import AdapterError, StateError, UsageError
from edge.core.events import FanOutSink
from edge.learning.figures import SHOWN_STEPS, Gallery

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.cli.settings import Settings

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
    if learns:
        check_inputs(config)
    else:
        check_serving(config)
    if serves:
        check_listening(config)


async def _run(config: AgentConfig, options: RunOptions, lines: Sequence[str]) -> None:
    with open_console(SystemClock(), json_lines=options.json, max_steps=options.steps) as console:
        for line in lines:
            console.say(line)
        console.say("starting: loading the model" + ("" if config.coordinator.address else " and the embedded coordinator"))
        gallery = Gallery(state_folder(config) / "figures", console.say)
        agent, stop = build_agent(config, FanOutSink([console.sink, gallery]), lives_here=True), asyncio.Event()
        with stop_on_signals(lambda: _begin_stop(agent, stop, console)):
            endpoint = listening(agent, config, console) if options.serve else nullcontext()
            async with agent, gallery.open(agent.steps(SHOWN_STEPS)), endpoint:
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
            await agent.learning.heed_verdicts()
        if not stop.is_set() and await agent.learning.more_to_learn():
            await agent.learn()
