"""Third-party programs that tests run against; a test is skipped where one cannot be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import environments


def environment(name: str, requirements: Path, *, sees_ours: bool = False) -> Path:
    """See `tools.environments`."""
    try:
        return environments.environment(name, requirements, sees_ours=sees_ours)
    except environments.CannotInstall as error:
        pytest.skip(f"{error}, so nothing was tested with it: {error.hint}")
