"""Loading the agent's own configuration. Knows the order of its layers and where a device profile is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge.config.loader import Flag, Problem, Resolved, problems, refusal, resolve
from edge.config.schema import AgentConfig

KEYS_COMMAND = "edge-agent config keys"


def resolve_agent_config(file: Path | None = None, sets: Sequence[str] = (), flags: Sequence[Flag] = ()) -> Resolved[AgentConfig]:
    """Defaults < device profile < file < --set < flags. A device profile is a YAML file of the same schema, named by any other layer.

    Raises ConfigError with one line; OptionError for what an option says.
    """
    files = [file] if file is not None else []
    resolved = resolve(AgentConfig, files=files, sets=sets, flags=flags, keys_command=KEYS_COMMAND)
    if resolved.config.device_profile is None:
        return resolved
    profile = Path(resolved.config.device_profile)
    if not profile.is_file():
        raise refusal(f"{resolved.origins['device_profile']}: device profile {profile} is not a file")
    return resolve(AgentConfig, files=[profile, *files], sets=sets, flags=flags, keys_command=KEYS_COMMAND)


def agent_config_problems(file: Path, sets: Sequence[str] = ()) -> list[Problem]:
    """All that is wrong with a configuration file and what is set on top of it; of a device profile, where all else is right."""
    found = problems(AgentConfig, files=[file], sets=sets)
    if found:
        return found
    profile = resolve(AgentConfig, files=[file], sets=sets).config.device_profile
    return problems(AgentConfig, files=[Path(profile), file], sets=sets) if profile and Path(profile).is_file() else []
