"""One run of DA-GRPO on TRL, from configuration to summary. The only place that names TRL's and the desk's concrete classes."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from edge.config.loader import Resolved
from edge.core.clock import Clock, SystemClock
from edge.core.errors import EdgeError, UsageError
from edge.core.events import EventSink, FanOutSink
from edge.core.install import install_extra
from edge.core.types import AdapterRef, TaskItem
from tools.integrations.loop_thread import LoopThread
from tools.integrations.scoring import scorer_of
from tools.integrations.trl.bundled import bundled_name, folder_name, write_hf_folder
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.desk import Desk
from tools.integrations.trl.folder import HeldFolder, open_state
from tools.integrations.trl.plans import columns, curriculum, messages
from tools.integrations.trl.processes import Processes
from tools.integrations.trl.trainer import build_trainer, first_line, grpo_config, keep_quiet, wait_s

if TYPE_CHECKING:
    from edge.learning.curriculum import StepPlan
    from edge.learning.run_folder import RunFolder
    from edge.state.events import StopReason
    from edge.state.folder import StateFolder
    from tools.integrations.trl.rewards import SharedSteps

_NEEDED = ("trl", "accelerate", "datasets", "transformers", "peft")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every process has before training: the model's folder or name, its tokenizer, the prompt format, the steps."""

    model: str
    tokenizer: Any
    prompt_form: str
    steps: tuple[StepPlan, ...]


def require_trl() -> None:
    """Raises UsageError where TRL is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed", hint=install_extra("trl"))


def run(resolved: Resolved[TrlConfig], stream: TextIO | None = None, *, fresh: bool = False) -> dict[str, Any]:
    """Train, or resume a run in the same folder; returns the summary ({} in processes other than the main one).

    With `fresh`, the files of an earlier run are removed once everything this one needs is read, built and open; an earlier failure leaves
    them unchanged. `stream` (None: stderr) gets the printed lines.

    Raises UsageError, ConfigError, TaskFileError, ModelFileError, StateError, CoordinatorError; each in one line.
    """
    require_trl()
    from datasets import Dataset
    from transformers.utils.logging import disable_progress_bar

    from tools.integrations.trl.rewards import SharedSteps

    config, processes = resolved.config, Processes(wait_s(resolved.config))
    disable_progress_bar()
    keep_quiet()
    grpo_config(config, processes.count)  # refuses what TRL's arguments refuse, while nothing is touched
    with ExitStack() as stack:
        steps = SharedSteps(processes)
        main = _MainProcess(resolved, steps, stream or sys.stderr, stack)
        processes.from_main(lambda: main.hold(fresh))
        prepared = prepare(config, processes)
        items = [item for step in prepared.steps for item in step.items]
        data_set = Dataset.from_dict(columns(items, prepared.prompt_form))
        trainer = build_trainer(config, prepared.model, prepared.tokenizer, data_set, processes.count, steps)
        checkpoint = processes.from_main(lambda: main.begin(prepared))

        def train() -> None:
            trainer.train(resume_from_checkpoint=checkpoint)
            trainer.save_model(str(_trained(config)))  # every process takes part in saving what was trained

        return main.watch(train)


def prepare(config: TrlConfig, processes: Processes) -> Prepared:
    """Model folder, tokenizer and steps. Raises ModelFileError, TaskFileError, UsageError."""
    from transformers import AutoTokenizer

    from tools.integrations.sources import open_mixed

    model = processes.from_main(lambda: _model_folder(config))
    form = config.agent.model.prompt_form
    if form == "auto":
        form = "compact" if bundled_name(config.model) else "full"
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model {config.model} cannot be read: {first_line(error)}", hint="give a folder, or a hub name"
        ) from error
    steps = curriculum(config.agent, open_mixed, _fits(tokenizer, form, config.trainer.prompt_tokens))
    return Prepared(model, tokenizer, form, steps)


def _trained(config: TrlConfig) -> Path:
    return Path(config.out).expanduser() / "trained"


def _model_folder(config: TrlConfig) -> str:
    name = bundled_name(config.model)
    if name is None:
        return config.model
    from edge.app import model_file

    gguf = model_file(name)
    return str(write_hf_folder(gguf, Path(config.out).expanduser() / folder_name(gguf)))


def _fits(tokenizer: Any, form: str, most: int) -> Callable[[TaskItem], bool]:
    def fits(item: TaskItem) -> bool:
        if item.id not in known:  # a data set comes by many times
            prompt = messages(item, form)
            ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
            known[item.id] = len(ids) <= most
        return known[item.id]

    known: dict[str, bool] = {}
    return fits


class _MainProcess:
    """The duties of the main process: locks the folder, opens the desk, watches training. Other processes have one that does nothing."""

    def __init__(self, resolved: Resolved[TrlConfig], steps: SharedSteps, stream: TextIO, stack: ExitStack) -> None:
        """Everything opened is closed with the stack."""
        self._steps = steps
        self._resolved, self._config, self._stream, self._stack = resolved, resolved.config, stream, stack
        self._held: HeldFolder | None = None
        self._open: _Open | None = None

    def hold(self, fresh: bool) -> None:
        """See HeldFolder."""
        self._held = self._stack.enter_context(HeldFolder(self._resolved, fresh=fresh))

    def begin(self, prepared: Prepared) -> str | None:
        """Open the desk in the locked folder; returns the checkpoint to resume from."""
        assert self._held is not None
        own = Path(prepared.model).name if bundled_name(self._config.model) else ""
        with self._held.beginning(own) as start:
            self._stream.writelines(f"{line}\n" for line in start.notices)
            self._open = self._opened(prepared)
        self._steps.give(self._open.desk, self._open.loop)
        return None if start.checkpoint is None else str(start.checkpoint)

    def watch(self, train: Callable[[], None]) -> dict[str, Any]:
        """Train to the end and write the summary, also of the steps that were made when training is interrupted; {} in other processes."""
        if self._open is None:
            train()
            return {}
        state, clock = self._open.state, self._open.clock
        began = clock.monotonic()
        self._open.loop.run(self._open.desk.begin(self._config.model))
        try:
            train()
        except BaseException:
            if state.position().steps_done:
                with contextlib.suppress(EdgeError):
                    _finish(self._open, "stopped", clock.monotonic() - began, None)
            raise
        return _finish(self._open, "done", clock.monotonic() - began, _agents_adapter(self._config))

    def _opened(self, prepared: Prepared) -> _Open:
        from edge.console import PlainConsole, Progress, what_lines_say
        from edge.learning.run_folder import RunFolder

        clock, out = SystemClock(), Path(self._config.out).expanduser()
        with ExitStack() as opening:  # closed immediately where something cannot be opened: then the folder is restored
            folder = opening.enter_context(contextlib.closing(RunFolder(out, self._resolved.to_yaml())))
            sink = FanOutSink([folder, PlainConsole(self._stream, clock, Progress(), legend=what_lines_say())])
            state = opening.enter_context(open_state(out))
            loop = opening.enter_context(LoopThread())
            connections = AsyncExitStack()
            opening.callback(lambda: loop.run(connections.aclose()))
            desk = loop.run(_open_desk(self._config, prepared, state, sink, clock, connections))
            self._stack.push(opening.pop_all())
        return _Open(desk, loop, folder, state, clock)


@dataclass(frozen=True, slots=True)
class _Open:
    """The open desk with its resources."""

    desk: Desk
    loop: LoopThread
    folder: RunFolder
    state: StateFolder
    clock: Clock


def _finish(opened: _Open, reason: StopReason, seconds: float, adapter: AdapterRef | None) -> dict[str, Any]:
    finished = opened.loop.run(opened.desk.finish(reason, seconds, 0 if adapter is None else adapter.version))
    return opened.folder.finish(opened.state.steps(), finished, adapter)


def _agents_adapter(config: TrlConfig) -> AdapterRef | None:
    """The trained adapter in the form of llama.cpp and the agent, where it belongs to a bundled model."""
    name, folder = bundled_name(config.model), _trained(config)
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that is not needed
    if name is None or config.trainer.tuning != "lora":
        return None
    from edge.app import model_file
    from edge.core.types import GGUF_ADAPTER
    from edge.inference.adapters import write_gguf_adapter

    write_gguf_adapter(folder, model_file(name), folder / GGUF_ADAPTER)
    return AdapterRef(config.steps, str(folder))


async def _open_desk(
    config: TrlConfig, prepared: Prepared, state: Any, sink: EventSink, clock: Clock, stack: AsyncExitStack
) -> Desk:
    """The desk over a real coordinator, made on the loop that it lives on."""
    from edge.app import agent_settings, build_embedded, build_registry, coordinator_address, egress_client, with_hint_cut
    from edge.cloud.client import OPERATORS_PRICE_KEYS, OWN_PRICE_KEYS, WatchedClient
    from edge.learning.step_reporter import StepReporter

    agent = config.agent
    registry = build_registry(agent)
    embedded = build_embedded(agent, state, sink, clock)
    if embedded is not None:
        stack.push_async_callback(embedded.aclose)
        await embedded.start()
    plain = egress_client(agent, registry, coordinator_address(agent, state.folder), state, clock)
    stack.push_async_callback(plain.aclose)
    client = WatchedClient(plain, sink, clock, OPERATORS_PRICE_KEYS if embedded is None else OWN_PRICE_KEYS)
    settings = with_hint_cut(agent_settings(agent, state.run_id), registry).rollout
    scorer = scorer_of(agent, client, clock, replace(settings, prompt_form=prepared.prompt_form))
    reporter = StepReporter(client, state, sink, clock, agent.learning.dual_init)
    phases = [phase.steps or 0 for phase in agent.phases]
    return Desk(state, reporter, scorer, sink, clock, prepared.steps, phases)
