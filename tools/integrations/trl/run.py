"""One run of DA-GRPO on TRL, from configuration to summary. The only place that names TRL's and the desk's concrete classes."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from edge.config.loader import Resolved
from edge.core.clock import Clock, SystemClock
from edge.core.errors import EdgeError, UsageError
from edge.core.events import EventSink, FanOutSink
from edge.core.install import install_extra
from edge.core.types import AdapterRef, TaskItem
from edge.evaluation.judging import RolloutSettings
from tools.integrations.loop_thread import LoopThread
from tools.integrations.scoring import scorer_of
from tools.integrations.trl.bundled import bundled_name, folder_name, write_hf_folder
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.desk import BlockingDesk, Desk, DeskRoles, StepDesk
from tools.integrations.trl.folder import HeldFolder, open_state
from tools.integrations.trl.plans import Curriculum, columns, curriculum, messages
from tools.integrations.trl.processes import AccelerateProcesses, Processes
from tools.integrations.trl.trainer import wait_s

_NEEDED = ("trl", "accelerate", "datasets", "transformers", "peft")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every process has before training: the model's folder or name, its tokenizer, how it is asked, the steps."""

    model: str
    tokenizer: Any
    prompt_form: str
    plan: Curriculum


def require_trl() -> None:
    """Raises UsageError where TRL is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{missing[0]} is not installed", hint=install_extra("trl"))


def run(resolved: Resolved[TrlConfig], stream: TextIO | None = None, *, fresh: bool = False) -> dict[str, Any]:
    """Train, or go on where a run in the same folder stopped; returns the summary ({} in processes other than the main one).

    With `fresh`, what an earlier run left in the folder is removed once all that this one needs is read, built and open; a start that fails
    before leaves it as it was. `stream` (None: stderr) gets the lines that a person reads.

    Raises UsageError, ConfigError, TaskFileError, ModelFileError, StateError, CoordinatorError; each in one line.
    """
    require_trl()
    from transformers.utils.logging import disable_progress_bar

    config, processes = resolved.config, AccelerateProcesses(wait_s(resolved.config))
    disable_progress_bar()
    _require_options(config, processes)
    with ExitStack() as stack:
        main = _MainProcess(resolved, stream or sys.stderr, stack)
        processes.from_main(lambda: main.hold(fresh))
        prepared = prepare(config, processes)
        trainer = _trainer(config, prepared, processes, main.desk)
        checkpoint = processes.from_main(lambda: main.begin(prepared))
        return main.watch(lambda: _train(trainer, config, checkpoint))


def _require_options(config: TrlConfig, processes: Processes) -> None:
    """Raises UsageError for what TRL's arguments refuse, while nothing is touched."""
    from tools.integrations.trl.building import grpo_config
    from tools.integrations.trl.trainer import keep_quiet

    keep_quiet()
    grpo_config(config, processes.count)


def prepare(config: TrlConfig, processes: Processes) -> Prepared:
    """Model folder, tokenizer and steps. Raises ModelFileError, TaskFileError, UsageError."""
    from transformers import AutoTokenizer

    from tools.integrations.trl.sources import open_mixed

    model = processes.from_main(lambda: _model_folder(config))
    form = config.agent.model.prompt_form
    if form == "auto":
        form = "compact" if bundled_name(config.model) else "full"
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model {config.model} cannot be read: {_first_line(error)}", hint="give a folder, or a hub name"
        ) from error
    plan = curriculum(config.agent, open_mixed, _fits(tokenizer, form, config.trainer.prompt_tokens))
    return Prepared(model, tokenizer, form, plan)


def _trainer(config: TrlConfig, prepared: Prepared, processes: Processes, desk: StepDesk) -> Any:
    """TRL's trainer over the desk. Raises UsageError."""
    from tools.integrations.trl.building import build_trainer

    return build_trainer(config, prepared.model, prepared.tokenizer, _data_set(prepared), processes, desk)


def _train(trainer: Any, config: TrlConfig, checkpoint: str | None) -> None:
    """To the end of the run; every process takes part in saving what was trained."""
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(str(_trained(config)))


def _trained(config: TrlConfig) -> Path:
    return Path(config.out).expanduser() / "trained"


def _model_folder(config: TrlConfig) -> str:
    name = bundled_name(config.model)
    if name is None:
        return config.model
    from edge.app import model_file

    gguf = model_file(name)
    return str(write_hf_folder(gguf, Path(config.out).expanduser() / folder_name(gguf)))


def _data_set(prepared: Prepared) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(columns(prepared.plan.items, prepared.prompt_form))


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
    """What only the main process does: holds the folder, opens the desk, watches training. Other processes have one that does nothing."""

    def __init__(self, resolved: Resolved[TrlConfig], stream: TextIO, stack: ExitStack) -> None:
        """What is opened is closed with the stack."""
        self.desk = BlockingDesk()
        self._resolved, self._stream, self._stack = resolved, stream, stack
        self._folder: HeldFolder | None = None
        self._main: MainDesk | None = None

    def hold(self, fresh: bool) -> None:
        """See HeldFolder."""
        self._folder = self._stack.enter_context(HeldFolder(self._resolved, fresh=fresh))

    def begin(self, prepared: Prepared) -> str | None:
        """Open the desk in the folder that is held; returns the checkpoint to go on from."""
        assert self._folder is not None
        own = Path(prepared.model).name if bundled_name(self._resolved.config.model) else ""
        with self._folder.beginning(own) as start:
            self._stream.writelines(f"{line}\n" for line in start.told)
            self._main = self._stack.enter_context(_main_desk(self._resolved, prepared, self._stream))
        self.desk.give(self._main.desk, self._main.loop)
        return None if start.checkpoint is None else str(start.checkpoint)

    def watch(self, train: Callable[[], None]) -> dict[str, Any]:
        """Train; returns the summary, {} in other processes."""
        if self._main is not None:
            return self._main.train(train)
        train()
        return {}


class MainDesk:
    """The main process's desk with all that stands behind it: state folder, coordinator, run folder."""

    def __init__(self, loop: LoopThread, desk: Desk, folder: Any, state: Any, clock: Clock, config: TrlConfig) -> None:
        self.loop, self.desk, self._folder, self._state, self._clock, self._config = loop, desk, folder, state, clock, config

    def train(self, train: Callable[[], None]) -> dict[str, Any]:
        """Train to the end and write the summary; what steps were made is summed up, too, when training is interrupted."""
        began = self._clock.monotonic()
        self.loop.run(self.desk.begin(self._config.model))
        try:
            train()
        except BaseException:
            if self._state.position().steps_done:
                with contextlib.suppress(EdgeError):
                    self._finish("stopped", self._clock.monotonic() - began, None)
            raise
        return self._finish("done", self._clock.monotonic() - began, self._agents_adapter())

    def _finish(self, reason: Any, seconds: float, adapter: AdapterRef | None) -> dict[str, Any]:
        finished = self.loop.run(self.desk.finish(reason, seconds, 0 if adapter is None else adapter.version))
        summary: dict[str, Any] = self._folder.finish(self._state.steps(), finished, adapter)
        return summary

    def _agents_adapter(self) -> AdapterRef | None:
        """What was trained in the form that llama.cpp and the agent read, where it is an adapter of a bundled model."""
        name, folder = bundled_name(self._config.model), _trained(self._config)
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle, and nobody's need
        if name is None or self._config.trainer.tuning != "lora":
            return None
        from edge.app import model_file
        from edge.core.types import GGUF_ADAPTER
        from edge.inference.adapters import write_gguf_adapter

        write_gguf_adapter(folder, model_file(name), folder / GGUF_ADAPTER)
        return AdapterRef(self._config.steps, str(folder))


@contextlib.contextmanager
def _main_desk(resolved: Resolved[TrlConfig], prepared: Prepared, stream: TextIO) -> Iterator[MainDesk]:
    """Everything open that only the main process has, and closed again."""
    from edge.console import PlainConsole, Progress, what_lines_say
    from edge.learning.run_folder import RunFolder

    config, clock = resolved.config, SystemClock()
    out = Path(config.out).expanduser()
    folder = RunFolder(out, resolved.to_yaml())
    sink = FanOutSink([folder, PlainConsole(stream, clock, Progress(), legend=what_lines_say())])
    with contextlib.closing(folder), open_state(out) as state, LoopThread() as loop:
        stack = AsyncExitStack()
        try:
            desk = loop.run(_open_desk(config, prepared, state, sink, clock, stack))
            yield MainDesk(loop, desk, folder, state, clock, config)
        finally:
            loop.run(stack.aclose())


async def _open_desk(
    config: TrlConfig, prepared: Prepared, state: Any, sink: EventSink, clock: Clock, stack: AsyncExitStack
) -> Desk:
    """The desk over a real coordinator, made on the loop that it lives on."""
    from edge.app import (
        build_embedded,
        build_registry,
        coordinator_address,
        egress_client,
    )
    from edge.cloud.client import WatchedClient
    from edge.learning.step_reporter import StepReporter

    agent = config.agent
    registry = build_registry(agent)
    embedded = build_embedded(agent, state, sink, clock)
    if embedded is not None:
        stack.push_async_callback(embedded.aclose)
        await embedded.start()
    plain = egress_client(agent, registry, coordinator_address(agent, state.folder), state, clock)
    stack.push_async_callback(plain.aclose)
    client = WatchedClient(plain, sink, clock)
    scorer = scorer_of(agent, client, clock, _rollout_settings(config, prepared, state.run_id, registry))
    reporter = StepReporter(client, state, sink, clock, agent.learning.dual_init)
    phases = [phase.steps or 0 for phase in agent.phases]
    return Desk(DeskRoles(state, reporter, scorer, sink, clock), prepared.plan.steps, phases)


def _rollout_settings(config: TrlConfig, prepared: Prepared, run_id: str, registry: Any) -> RolloutSettings:
    from edge.app import agent_settings, with_hint_cut

    settings = with_hint_cut(agent_settings(config.agent, run_id), registry).rollout
    return replace(settings, prompt_form=prepared.prompt_form)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
