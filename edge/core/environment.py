"""What this machine says before any configuration is read: where the agent's state is, and whether a cloud may be asked at all."""

from __future__ import annotations

import os
from pathlib import Path

NO_CLOUD = "EDGE_AGENT_NO_CLOUD"
"""Set to anything but 0, it switches the cloud off."""


def state_folder_at(named: str | Path | None) -> Path:
    """The state folder that a setting names, or the platform's."""
    if named is not None:
        return Path(named).expanduser()
    from platformdirs import user_data_path

    return user_data_path("edge-agent", appauthor=False)


def why_no_cloud(mode: str | None) -> str:
    """Why the cloud may not be asked at all in this mode (None: the agent's own), or ""."""
    if os.environ.get(NO_CLOUD, "") not in ("", "0"):
        return f"the cloud is switched off by {NO_CLOUD}"
    return "mode local-only" if mode == "local-only" else ""
