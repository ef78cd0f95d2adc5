"""Writing a device profile: a configuration file that says what a device measures and which batch suits it.

Knows its layout; knows nothing of measuring. It is read as any other layer (`--device-profile FILE`, or `device_profile` in a file).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from edge.config.schema import AgentConfig, DeviceConfig
from edge.core.errors import UsageError
from edge.core.files import write_atomically

_HEADING = """\
# Device profile, as edge-agent doctor --measure found it: what the device reaches, and the batch that suits it.
# Use it with --device-profile FILE. Fields: devices/README.md.
"""


def profile_text(device: DeviceConfig, settings: Mapping[str, Mapping[str, Any]], doubt: str = "") -> str:
    """The file: what was measured, and sections of settings; `doubt` says why the numbers may be wrong.

    Raises ValidationError when the settings are none.
    """
    measured = device.model_dump(mode="json", exclude_defaults=True)
    AgentConfig.model_validate({"device": measured, **settings})
    remark = "".join(f"# {line}\n" for line in doubt.splitlines())
    return _HEADING + remark + yaml.safe_dump({"device": measured, **settings}, sort_keys=False, allow_unicode=True)


def check_writable(path: Path) -> None:
    """Raise UsageError where no file can be written, which is tried in its folder."""
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            writable = not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise UsageError(f"{path}: cannot be written", hint="give a file in a folder that is there")


def write_profile(path: Path, text: str) -> None:
    """Put the file in place, whole or not at all. Raises UsageError."""
    check_writable(path)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
