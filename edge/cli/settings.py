"""From command-line options to a resolved configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.core.errors import UsageError
from edge.core.formatting import shown

if TYPE_CHECKING:
    from edge.config.device_profile import Pick
    from edge.config.loader import Flag, Resolved
    from edge.config.schema import AgentConfig


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that several commands share; None where an option was not given."""

    file: Path | None = None
    sets: Sequence[str] | None = None
    model: str | None = None
    coordinator: str | None = None
    state: Path | None = None
    mode: str | None = None
    tasks: Sequence[str] | None = None
    target_rate: float | None = None
    seed: int | None = None
    port: int | None = None
    phase_steps: int | None = None
    unsafe_programs: bool = False
    device_profile: Path | None = None
    never_send: Sequence[str] | None = None

    def resolve(self, pick: Callable[[AgentConfig], Pick] | None = None) -> Resolved[AgentConfig]:
        """The configuration; `pick` finds a device profile where none is named. Raises ConfigError for a bad file, OptionError for a bad
        option; both are one line.
        """
        from edge.config.agent import resolve_agent_config
        from edge.config.loader import Flag

        if self.file is not None and not self.file.expanduser().exists():
            raise UsageError(f"--config {shown(str(self.file))}: there is no such file", hint="edge-agent config init writes one")
        profile = [] if self.device_profile is None else [Flag("device_profile", str(self.device_profile), "--device-profile")]
        config = resolve_agent_config(self.file, self.sets or (), profile).config
        flags = list(self._flags(0 if self.tasks else len(config.phases)))
        if self.never_send:
            flags.append(Flag("privacy.never_send", [*config.privacy.never_send, *self.never_send], "--never-send"))
        return resolve_agent_config(self.file, self.sets or (), flags, pick)

    def config(self) -> AgentConfig:
        """The configuration without its origins."""
        return self.resolve().config

    def _flags(self, phases: int) -> Iterator[Flag]:
        from edge.config.loader import Flag

        single: tuple[tuple[str, Any, str], ...] = (
            ("device_profile", None if self.device_profile is None else str(self.device_profile), "--device-profile"),
            ("model.path", self.model, "--model"),
            ("coordinator.address", self.coordinator, "--coordinator"),
            ("state_folder", None if self.state is None else str(self.state), "--state"),
            ("mode", self.mode, "--mode"),
            ("learning.seed", self.seed, "--seed"),
            ("serve.port", self.port, "--port"),
            ("programs.unsafe", self.unsafe_programs or None, "--unsafe-programs"),
        )
        yield from (Flag(key, value, name) for key, value, name in single if value is not None)
        if self.tasks:
            yield Flag("phases", [self._phase(source) for source in self.tasks], "--tasks")
        else:
            yield from self._phase_flags(phases)

    def _phase(self, source: str) -> dict[str, Any]:
        given = {"target_rate": self.target_rate, "steps": self.phase_steps}
        return {"source": source, **{key: value for key, value in given.items() if value is not None}}

    def _phase_flags(self, phases: int) -> Iterator[Flag]:
        from edge.config.loader import Flag

        for index in range(phases):
            if self.target_rate is not None:
                yield Flag(f"phases.{index}.target_rate", self.target_rate, "--target-rate")
            if self.phase_steps is not None:
                yield Flag(f"phases.{index}.steps", self.phase_steps, "--steps")
