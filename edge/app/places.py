"""Where things are on this machine: the state folder, models and adapters."""

from __future__ import annotations

import json
from pathlib import Path

from edge.config.schema import AgentConfig


def state_folder(config: AgentConfig) -> Path:
    """The state folder this configuration names, or the platform's."""
    if config.state_folder is not None:
        return Path(config.state_folder).expanduser()
    from platformdirs import user_data_path

    return user_data_path("edge-agent", appauthor=False)


def bundled_models() -> Path:
    """The folder of the models that come with the package."""
    from edge.models.catalogue import bundled_folder

    return bundled_folder()


def model_file(name: str) -> Path:
    """The model file, or the MLX folder, that a name or path stands for: bundled, pulled, or by path. Raises ModelFileError."""
    from edge.models.catalogue import find_model

    return find_model(name)


def adapter_version(folder: Path) -> int | None:
    """The version of an adapter by its folder: `step-000012/adapter`, or the one a run has left beside its summary; None: not known."""
    digits = folder.resolve().parent.name.removeprefix("step-")
    if digits.isdecimal():
        return int(digits)
    try:
        version = json.loads((folder.parent / "summary.json").read_text(encoding="utf-8"))["adapter_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) and version > 0 else None


def latest_adapters(config: AgentConfig) -> tuple[Path, ...]:
    """The folders of the adapters in the state folder, newest first; () before the first step."""
    return tuple(
        sorted(
            (state_folder(config) / "checkpoints").glob("step-*/adapter"),
            key=lambda path: adapter_version(path) or 0,
            reverse=True,
        )
    )


def serving_adapters(config: AgentConfig) -> tuple[Path, ...]:
    """The folder of the adapter that serves and of those it was trained from, newest first; () where the bare model serves.

    Raises StateError.
    """
    from edge.state.reader import serving_versions

    folder = state_folder(config)
    folders = (folder / "checkpoints" / f"step-{version:06d}" / "adapter" for version in serving_versions(folder))
    return tuple(folder for folder in folders if folder.is_dir())
