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
    resolved = resolve(AgentConfig, files=files, sets=sets, flags=flags, keys_command=KEYS_COMMAND)
    named = resolved.config.device_profile
    if named == NONE:
        return resolved
    if named is None:
        return resolved if pick is None else _with_picked(resolved, files, sets, flags, pick(resolved.config))
    profile = Path(named)
    if not profile.is_file():
        raise refusal(f"{resolved.origins['device_profile']}: device profile {profile} is not a file")
    return resolve(AgentConfig, files=[profile, *files], sets=sets, flags=flags, keys_command=KEYS_COMMAND)


def _with_picked(
    resolved: Resolved[AgentConfig], files: Sequence[Path], sets: Sequence[str], flags: Sequence[Flag], found: Pick
) -> Resolved[AgentConfig]:
    """With the picked profile as the weakest layer, and why as the origin of its name; without it where the whole does not hold then."""
    named = Flag("device_profile", None if found.profile is None else str(found.profile), found.why)
    layers = [*([] if found.profile is None else [found.profile]), *files]
    if not found.why:
        return resolved
    try:
        return resolve(AgentConfig, files=layers, sets=sets, flags=[*flags, named], keys_command=KEYS_COMMAND)
    except ConfigError as error:
        refused = Flag("device_profile", None, f"{NOT_PICKED}: {error}")
        return resolve(AgentConfig, files=files, sets=sets, flags=[*flags, refused], keys_command=KEYS_COMMAND)


def agent_config_problems(file: Path, sets: Sequence[str] = ()) -> list[Problem]:
    """All that is wrong with a configuration file and what is set on top of it; of a device profile, where all else is right."""
    found = problems(AgentConfig, files=[file], sets=sets)
    if found:
        return found
    profile = resolve(AgentConfig, files=[file], sets=sets).config.device_profile
    named = profile and profile != NONE and Path(profile).is_file()
    return problems(AgentConfig, files=[Path(profile), file], sets=sets) if profile and named else []
