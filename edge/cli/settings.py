"""The options that several commands share, the configuration that they make, and what of it is worth a line before work begins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Option

from edge.cli import completion
from edge.core.columns import Columns
from edge.core.environment import state_folder_at
from edge.core.errors import StateError, UsageError
from edge.core.formatting import shown
from edge.core.limits import LARGEST_SEED
from edge.core.shared_options import keys_of_options, with_options

if TYPE_CHECKING:
    from edge.config.device_profile import Pick
    from edge.config.loader import Flag, Resolved
    from edge.config.schema import AgentConfig

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Settings:
    """What was given of the shared options; None (or False) where an option was not.

    A field is one option: how the command line reads it, and the configuration key that it sets. Those without a key are put together in
    `resolve`. `phase_steps`: the steps of each phase.
    """

    config_file: Annotated[Path | None, Option("--config", help="YAML configuration file.", metavar="FILE")] = None
    sets: Annotated[
        list[str] | None, Option("--set", help="Set one value, e.g. learning.group_size=8. Repeatable.", metavar="K=V")
    ] = None
    model: Annotated[
        str | None,
        Option(
            "--model",
            help="GGUF file, or the name of a bundled or pulled model.",
            metavar="NAME|PATH",
            autocompletion=completion.models,
        ),
        "model.path",
    ] = None
    coordinator: Annotated[
        str | None,
        Option(
            "--coordinator", help="Coordinator to ask; without one, an embedded one is started.", metavar="HOST:PORT|unix:PATH"
        ),
        "coordinator.address",
    ] = None
    state: Annotated[
        Path | None, Option("--state", help="State folder (default: the platform's).", metavar="DIR"), "state_folder"
    ] = None
    mode: Annotated[
        str | None,
        Option("--mode", help="auto, prefer-local, local-only or cloud-only.", metavar="MODE", autocompletion=completion.modes),
        "mode",
    ] = None
    tasks: Annotated[
        list[str] | None,
        Option(
            "--tasks",
            help="A source (edge-agent tasks list), or a .jsonl or .csv file. Repeatable: one phase each.",
            metavar="SOURCE",
            autocompletion=completion.sources,
        ),
    ] = None
    question: Annotated[
        str | None,
        Option(
            "--question", help="Column of the files that has the texts (default: question); others are ignored.", metavar="COLUMN"
        ),
    ] = None
    answer: Annotated[
        str | None,
        Option("--answer", help="Column with the answers; where few differ, they are the options.", metavar="COLUMN"),
    ] = None
    ask: Annotated[str | None, Option("--ask", help="Question that is put to each text of the files.", metavar="TEXT")] = None
    target_rate: Annotated[
        str | None,
        Option("--target-rate", help="τ: share of responses that may ask for help, as 30% or 0.3.", metavar="TAU"),
    ] = None
    seed: Annotated[
        int | None, Option("--seed", min=0, max=LARGEST_SEED, help="Seed of every random choice.", metavar="N"), "learning.seed"
    ] = None
    port: Annotated[int | None, Option("--port", min=0, max=65535, help="Port on 127.0.0.1 (0: any free one)."), "serve.port"] = (
        None
    )
    unsafe_programs: Annotated[
        bool,
        Option("--unsafe-programs", help="Run programs written by a model without isolation where there is none."),
        "programs.unsafe",
    ] = False
    device_profile: Annotated[
        Path | None,
        Option("--device-profile", help="Device profile, as `doctor --write-profile` writes it.", metavar="FILE"),
        "device_profile",
    ] = None
    never_send: Annotated[
        list[str] | None,
        Option(
            "--never-send", help="Text, or like:PATTERN, that no request may hold; added to the configured rules.", metavar="TEXT"
        ),
    ] = None
    phase_steps: int | None = None

    def resolve(self, pick: Callable[[AgentConfig], Pick] | None = None) -> Resolved[AgentConfig]:
        """The configuration; `pick` finds a device profile where none is named. Raises ConfigError for a bad file, OptionError for a bad
        option; both are one line.
        """
        from edge.config.agent import resolve_agent_config
        from edge.config.loader import Flag

        file, sets = self.config_file, self.sets or ()
        if file is not None and not file.expanduser().exists():
            raise UsageError(f"--config {shown(str(file))}: there is no such file", hint="edge-agent config init writes one")
        flags = [
            Flag(key, str(value) if isinstance(value, Path) else value, f"--{name.replace('_', '-')}")
            for name, key in _KEYS.items()
            if (value := getattr(self, name)) is not None and value is not False
        ]
        named = resolve_agent_config(file, sets, [flag for flag in flags if flag.key == "device_profile"])
        below = named.config
        if self.model is None and "model.path" not in named.origins:
            flags += self._model_of_the_folder(below)
        phase = {
            "target_rate": (self.target_rate, "--target-rate"),
            "steps": (self.phase_steps, "--steps"),
            "question": (self.question, "--question"),
            "answer": (self.answer, "--answer"),
            "ask": (self.ask, "--ask"),
        }
        given = {key: (value, name) for key, (value, name) in phase.items() if value is not None}
        if self.tasks:
            flags.append(Flag("phases", [{"source": source} for source in self.tasks], "--tasks"))
        numbered = [(number, key) for number in range(len(self.tasks or below.phases)) for key in given]
        flags += [Flag(f"phases.{number}.{key}", *given[key]) for number, key in numbered]
        if self.never_send:
            flags.append(Flag("privacy.never_send", [*below.privacy.never_send, *self.never_send], "--never-send"))
        return resolve_agent_config(file, sets, flags, pick)

    def _model_of_the_folder(self, config: AgentConfig) -> Iterator[Flag]:
        """The model that the state folder was used with, where nothing names another."""
        from edge.config.loader import Flag
        from edge.state.reader import MODEL, kept_meta

        folder = state_folder_at(self.state or config.state_folder)
        with suppress(StateError):  # whatever needs the folder says what is wrong with it
            if model := kept_meta(folder, MODEL):
                yield Flag("model.path", model, f"the state folder {folder}")

    @property
    def columns(self) -> Columns | None:
        """The columns of task files, where an option names any."""
        return Columns.given(self.question, self.answer, self.ask)

    def columns_of(self, sources: Iterable[str], config: AgentConfig) -> dict[str, Columns | None]:
        """The columns that are read of these sources: those of the options, else those of a phase with this source."""
        return {name: self.columns or config.columns.get(name) for name in sources}

    def config(self) -> AgentConfig:
        """The configuration without its origins."""
        return self.resolve().config

    @property
    def is_plain(self) -> bool:
        """Whether nothing but a state folder and a mode is given. All else is its default then, and a question is with a running agent
        before the schema of the configuration would be loaded."""
        return self.mode in (None, *completion.MODES) and replace(self, state=None, mode=None) == Settings()

    def state_folder(self) -> Path:
        """The state folder."""
        return state_folder_at(self.state if self.is_plain else self.config().state_folder)


_KEYS = keys_of_options(Settings)


def takes(names: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command the shared options of these names, as in `takes("model state")`, and --config and --set."""
    return with_options(Settings, (*names.split(), "config_file", "sets"))


_WORDS = {
    "engine.max_rows": "{} rows",
    "learning.prompts_per_step": "{} prompts per step",
    "learning.memory.micro_batch_tokens": "micro-batches of {} tokens",
    "learning.memory.gradient_checkpointing": "gradient checkpointing {}",
}


def task_file_lines(sources: Mapping[str, Columns | None], config: AgentConfig, *, measured: bool = False) -> Iterator[str]:
    """What a person should know of their own task files among the sources, each with its columns, one line each; `measured`: they are
    evaluated, not learned."""
    from edge.app.settings import local_prompt_form
    from edge.tasks.descriptions import file_lines
    from edge.tasks.registry import own_file

    for file in filter(None, map(own_file, sources, sources.values())):
        yield from file_lines(file)
        talks = sum(bool(item.context) for item in (*file.train_items, *file.test_items))
        if talks and local_prompt_form(config) == "compact":
            yield f"{file.name}: this model reads the last question alone, without the conversation before it, which {talks} have"
        if measured and file.to_measure() is not file:
            yield f"{file.name}: no question is held out, so all are asked; what was learned from them counts, too"


def starting_lines(resolved: Resolved[AgentConfig], *, learns: bool) -> Iterator[str]:
    """What a person should know of the settings before a command begins to work, one line each."""
    if learns:
        yield from task_file_lines(resolved.config.columns, resolved.config)
    from edge.app.measuring import measured_hints
    from edge.app.settings import model_file
    from edge.config.device_profile import KNOWN, MEASURED, NOT_PICKED

    config = resolved.config
    if line := layers_line(config):
        yield line
    if chars := config.coordinator.hint_chars:
        measured = measured_hints(config)
        if measured is None or measured["verdict"] != "pays":
            found = "was not measured here" if measured is None else f"was measured: {measured['verdict']}"
            yield f"hints of {chars} characters go to the cloud LLM; whether they pay {found} (edge-agent hints measure)"
    profile, picked = config.device_profile, resolved.origins.get("device_profile", "")
    brought = ", ".join(
        _setting_text(key, value)
        for key, value, origin in resolved.rows()
        if origin.startswith(f"{profile}:") and not key.startswith("device.")
    )
    if picked.startswith(NOT_PICKED):
        yield f"device profile {picked}; edge-agent doctor --keep-profile measures this machine"
    elif picked in (KNOWN, MEASURED):
        yield f"device profile {profile} ({picked}; device_profile: none does without): {brought or 'no settings'}"
    elif learns and brought:
        yield f"device profile: {brought}"
    if learns:
        from edge.sizing import row_tokens

        longest, context = config.learning.max_tokens, row_tokens(config, model_file(config.model.path))
        if longest >= context:
            yield (
                f"learning.max_tokens is {longest}, but prompt and response share {context} tokens (learning.context_tokens): "
                "responses end where the context does"
            )


def _setting_text(key: str, value: Any) -> str:
    text = _WORDS[key].format(value) if key in _WORDS else f"{key} = {value}"
    return text.replace("prompts", "prompt").replace("rows", "row") if value == 1 else text


def layers_line(config: AgentConfig) -> str:
    """That layers cannot go to a graphics processor though the configuration sends some there, or ""."""
    from edge.app.engines import choose_engine
    from edge.app.settings import model_file

    layers = config.engine.gpu_layers
    if not layers or not choose_engine(config, model_file(config.model.path)).splits_layers:
        return ""
    from edge.inference.gguf_model import llama_offloads

    if llama_offloads():
        return ""
    return f"engine.gpu_layers is {layers}, but this llama.cpp is built for the processor alone: all layers stay on it"


def starting_line(config: AgentConfig) -> str:
    """What is opened, and what a bundled cloud is."""
    from edge.app.settings import cloud_name

    practice = f" ({name})" if (name := cloud_name(config)) else ""
    coordinator = "" if config.coordinator.address else f" and the embedded coordinator{practice}"
    return f"starting: loading {Path(config.model.path).name}{coordinator}"


def not_in_json(json: bool) -> Callable[[str], None]:
    """Writes lines of progress before there is a console; none where events are written as JSON."""
    return (lambda line: None) if json else lambda line: print(line, file=sys.stderr, flush=True)


def privacy_line(config: AgentConfig) -> str:
    """What happens to private data before a request is sent to a cloud LLM, or "" where none leaves this device."""
    from edge.app.settings import switched_off

    coordinator, privacy = config.coordinator, config.privacy
    if switched_off(config) or (coordinator.address is None and coordinator.embedded.upstream == "bundled"):
        return ""
    if not privacy.enabled:
        return "what is private goes to the cloud LLM as it is (privacy.enabled is false); edge-agent outbox shows what left"
    terms = ["your terms"] if privacy.terms or privacy.terms_file else []
    found = ", ".join([*privacy.kinds, *terms]) or "nothing: privacy.kinds and privacy.terms are empty"
    return f"private data is replaced before a request leaves for the cloud LLM ({found}); edge-agent outbox shows what left"
