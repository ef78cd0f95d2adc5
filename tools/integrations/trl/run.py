"""One run of DA-GRPO on TRL, from configuration to summary. The only place that names concrete classes."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from edge.app.coordinator import build_embedded, coordinator_address, egress_client
from edge.app.settings import agent_settings, build_registry, model_file, with_hint_cut
from edge.cloud.client import OPERATORS_PRICE_KEYS, OWN_PRICE_KEYS, WatchedClient
from edge.config.loader import Resolved
from edge.console import PlainConsole, Progress, what_lines_say
from edge.core.clock import Clock, SystemClock
from edge.core.errors import EdgeError, UsageError
from edge.core.events import EventSink, FanOutSink
from edge.core.install import install_extra
from edge.core.types import GGUF_ADAPTER, AdapterRef, TaskItem
from edge.learning.curriculum import StepPlan
from edge.learning.run_folder import RunFolder
from edge.learning.step_reporter import StepReporter
from edge.state.events import StopReason
from edge.state.folder import StateFolder
from tools.integrations.loop_thread import LoopThread
from tools.integrations.scoring import scorer_of
from tools.integrations.sources import open_mixed
from tools.integrations.trl.bundled import bundled_name, folder_name, write_hf_folder
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.folder import HeldFolder, open_state
from tools.integrations.trl.plans import columns, messages, step_plans
from tools.integrations.trl.processes import TrainingProcesses
from tools.integrations.trl.steps import TrlSteps
from tools.integrations.trl.trainer import build_trainer, first_line, grpo_config, keep_quiet, wait_s

_NEEDED = ("trl", "accelerate", "datasets", "transformers", "peft")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every process has before training: the model's folder or name, its tokenizer, the prompt format, the steps."""

    model: str
    tokenizer: Any
    prompt_form: str
    steps: tuple[StepPlan, ...]


def run(resolved: Resolved[TrlConfig], stream: TextIO | None = None) -> dict[str, Any]:
    """Train, or resume a run in the same folder; returns the summary ({} in processes other than the main one).

    `stream` (None: stderr) gets the printed lines.

    Raises UsageError, ConfigError, TaskFileError, ModelFileError, StateError, CoordinatorError; each in one line.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed", hint=install_extra("trl"))
    from datasets import Dataset
    from transformers.utils.logging import disable_progress_bar

    from tools.integrations.trl.rewards import SharedSteps

    config, processes = resolved.config, TrainingProcesses(wait_s(resolved.config))
    disable_progress_bar()
    keep_quiet()
    grpo_config(config, processes.count)  # refuses what TRL's arguments refuse, while nothing is touched
    with ExitStack() as stack:
        steps = SharedSteps(processes)
        main = _MainProcess(resolved, stream or sys.stderr, stack)
        processes.from_main(main.hold)
        prepared = prepare(config, processes)
        items = [item for step in prepared.steps for item in step.items]
        data_set = Dataset.from_dict(columns(items, prepared.prompt_form))
        trainer = build_trainer(config, prepared.model, prepared.tokenizer, data_set, processes.count, steps)
        checkpoint = processes.from_main(lambda: main.begin(prepared, steps.give))

        def train() -> None:
            trainer.train(resume_from_checkpoint=checkpoint)
            trainer.save_model(str(_trained(config)))  # every process takes part in saving what was trained

        return main.watch(train)


def prepare(config: TrlConfig, processes: TrainingProcesses) -> Prepared:
    """Model folder, tokenizer and steps. Raises ModelFileError, TaskFileError, UsageError."""
    from transformers import AutoTokenizer

    bundled = bundled_name(config.model)
    model = config.model
    if bundled is not None:
        model = processes.from_main(lambda: _write_bundled(bundled, Path(config.out).expanduser()))
    form = config.agent.model.prompt_form
    if form == "auto":
        form = "compact" if bundled else "full"
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model {config.model} cannot be read: {first_line(error)}", hint="give a folder, or a hub name"
        ) from error
    known: dict[str, bool] = {}  # a data set comes by many times

    def fits(item: TaskItem) -> bool:
        if item.id not in known:
            prompt = messages(item, form)
            ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
            known[item.id] = len(ids) <= config.trainer.prompt_tokens
        return known[item.id]

    return Prepared(model, tokenizer, form, step_plans(config.agent, open_mixed, fits))


def _write_bundled(name: str, out: Path) -> str:
    gguf = model_file(name)
    return str(write_hf_folder(gguf, out / folder_name(gguf)))


def _trained(config: TrlConfig) -> Path:
    return Path(config.out).expanduser() / "trained"


class _MainProcess:
    """The duties of the main process: locks the folder, opens the coordinator, watches training. The others have one that does nothing."""

    def __init__(self, resolved: Resolved[TrlConfig], stream: TextIO, stack: ExitStack) -> None:
        """Everything opened is closed with the stack."""
        self._resolved, self._config, self._stream, self._stack = resolved, resolved.config, stream, stack
        self._clock = SystemClock()
        self._held: HeldFolder | None = None
        self._open: _Open | None = None

    def hold(self) -> None:
        """See HeldFolder."""
        self._held = self._stack.enter_context(HeldFolder(self._resolved))

    def begin(self, prepared: Prepared, give: Callable[[TrlSteps, LoopThread], None]) -> str | None:
        """Open the steps in the locked folder and give them away; returns the checkpoint to resume from."""
        assert self._held is not None
        own = Path(prepared.model).name if bundled_name(self._config.model) else ""
        start = self._held.start(own)
        self._stream.writelines(f"{line}\n" for line in start.notices)
        self._open = self._opened(prepared)
        give(self._open.steps, self._open.loop)
        return None if start.checkpoint is None else str(start.checkpoint)

    def watch(self, train: Callable[[], None]) -> dict[str, Any]:
        """Train to the end and write the summary, also of the steps that were made when training is interrupted; {} in other processes."""
        if self._open is None:
            train()
            return {}
        began = self._clock.monotonic()
        self._open.loop.run(self._open.steps.begin(self._config.model))
        try:
            train()
        except BaseException:
            if self._open.state.position().steps_done:
                with contextlib.suppress(EdgeError):
                    self._open.finish("stopped", self._clock.monotonic() - began, None)
            raise
        return self._open.finish("done", self._clock.monotonic() - began, _agents_adapter(self._config))

    def _opened(self, prepared: Prepared) -> _Open:
        out = Path(self._config.out).expanduser()
        with ExitStack() as opening:  # closed immediately where something cannot be opened
            folder = opening.enter_context(contextlib.closing(RunFolder(out, self._resolved.to_yaml())))
            sink = FanOutSink([folder, PlainConsole(self._stream, self._clock, Progress(), legend=what_lines_say())])
            state = opening.enter_context(open_state(out))
            loop = opening.enter_context(LoopThread())
            connections = AsyncExitStack()
            opening.callback(lambda: loop.run(connections.aclose()))
            steps = loop.run(_open_steps(self._config, prepared, state, sink, self._clock, connections))
            self._stack.push(opening.pop_all())
        return _Open(steps, loop, folder, state)


@dataclass(frozen=True, slots=True)
class _Open:
    """The open steps with their resources."""

    steps: TrlSteps
    loop: LoopThread
    folder: RunFolder
    state: StateFolder

    def finish(self, reason: StopReason, seconds: float, adapter: AdapterRef | None) -> dict[str, Any]:
        """Send what waits and write the summary."""
        finished = self.loop.run(self.steps.finish(reason, seconds, 0 if adapter is None else adapter.version))
        return self.folder.finish(self.state.steps(), finished, adapter)


def _agents_adapter(config: TrlConfig) -> AdapterRef | None:
    """The trained adapter in the form of llama.cpp and the agent, where it belongs to a bundled model."""
    from edge.inference.adapters import write_gguf_adapter

    name, folder = bundled_name(config.model), _trained(config)
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that is not needed
    if name is None or config.trainer.tuning != "lora":
        return None
    write_gguf_adapter(folder, model_file(name), folder / GGUF_ADAPTER)
    return AdapterRef(config.steps, str(folder))


async def _open_steps(
    config: TrlConfig, prepared: Prepared, state: StateFolder, sink: EventSink, clock: Clock, stack: AsyncExitStack
) -> TrlSteps:
    """Steps over a real coordinator, made on the loop that it lives on."""
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
    reporter = StepReporter(client, state, sink, clock, agent.learning.control.dual_init)
    return TrlSteps(state, reporter, scorer, sink, clock, prepared.steps)
