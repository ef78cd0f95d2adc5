"""Writing a device profile: a configuration file that says what a device measures and which batch suits it.

Knows its layout; knows nothing of measuring. It is read as any other layer (`--device-profile FILE`, or `device_profile` in a file).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from edge.config.schema import AgentConfig, DeviceConfig
from edge.core.errors import UsageError

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
    handle, draft = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(draft).chmod(0o666 & ~umask)
        Path(draft).replace(path)
    except OSError as error:
        Path(draft).unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
