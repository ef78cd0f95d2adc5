"""Loading the agent's own configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edge.config.device_profile import NONE, NOT_PICKED, Pick
from edge.config.loader import Flag, Problem, Resolved, problems, refusal, resolve
from edge.config.schema import AgentConfig
from edge.core.errors import ConfigError

KEYS_COMMAND = "edge-agent config keys"


def resolve_agent_config(
    file: Path | None = None,
    sets: Sequence[str] = (),
    flags: Sequence[Flag] = (),
    pick: Callable[[AgentConfig], Pick] | None = None,
) -> Resolved[AgentConfig]:
    """Defaults < device profile < file < --set < flags. A device profile is a YAML file of the same schema, named by any other layer, or
    found by `pick` where none names one.

    Raises ConfigError with one line; OptionError for the value of an option.
    """
    files = [file] if file is not None else []

    def resolved_with(layers: Sequence[Path], *picked: Flag) -> Resolved[AgentConfig]:
        return resolve(AgentConfig, files=layers, sets=sets, flags=[*flags, *picked], keys_command=KEYS_COMMAND)

    resolved = resolved_with(files)
    named = resolved.config.device_profile
    if named == NONE:
        return resolved
    if named is not None:
        profile = Path(named)
        if not profile.is_file():
            raise refusal(f"{resolved.origins['device_profile']}: device profile {profile} is not a file")
        return resolved_with([profile, *files])
    found = Pick() if pick is None else pick(resolved.config)
    if not found.why:
        return resolved
    # The picked profile is the weakest layer, and why it was picked the origin of its name; it is left out where the whole does not hold.
    try:
        if found.profile is None:
            return resolved_with(files, Flag("device_profile", None, found.why))
        return resolved_with([found.profile, *files], Flag("device_profile", str(found.profile), found.why))
    except ConfigError as error:
        return resolved_with(files, Flag("device_profile", None, f"{NOT_PICKED}: {error}"))


def agent_config_problems(file: Path, sets: Sequence[str] = ()) -> list[Problem]:
    """All that is wrong with a configuration file and what is set on top of it; of a device profile, where all else is right."""
    found = problems(AgentConfig, files=[file], sets=sets)
    if found:
        return found
    profile = resolve(AgentConfig, files=[file], sets=sets).config.device_profile
    named = profile and profile != NONE and Path(profile).is_file()
    return problems(AgentConfig, files=[Path(profile), file], sets=sets) if profile and named else []
