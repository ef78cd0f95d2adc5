"""What a measurement was taken on: processor, cores, memory, versions, and how busy the machine was. Measures no speed."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from edge.core.machine import cpu_name, usable_cores

PACKAGES = ("edge-agent", "torch", "llama-cpp-python", "gguf", "peft", "numpy")
QUIET_LOAD = 0.5
"""A load average of one minute below which nothing else runs here worth speaking of."""


def describe_machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Processor, usable cores, memory in MiB, system, Python and the versions of the packages that matter."""
    import psutil

    return {
        "cpu": cpu_name() or platform.machine(),
        "cores": usable_cores(),
        "physical_cores": psutil.cpu_count(logical=False),
        "memory_mib": psutil.virtual_memory().total >> 20,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in packages},
        "commit": commit(),
    }


def version_of(package: str) -> str:
    """The installed version, "" for a package that is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def commit() -> str:
    """The commit of the checkout, with a + where files differ from it; "" outside a checkout."""
    here = Path(__file__).parent
    told = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def load_1min() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]
