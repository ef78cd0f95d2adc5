"""What a run's result depends on besides its scenario and seed: what its device and link files say, and the program itself. Knows how these
are put into one text; knows nothing of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tools.simulate.fleet.profiles import load_device, load_link

_ROOT = Path(__file__).resolve().parents[3]
_PLAYED_BY = ("edge", "coordinator", "tools/simulate")


def ingredients_of(scenario: Mapping[str, Any]) -> str:
    """Equal texts give equal results for this scenario and a seed.

    Raises UsageError, ConfigError for a device or link that cannot be had.
    """
    groups = scenario["groups"]
    hardware = [(load_device(group["device"], group.get("model", "")), load_link(group["link"])) for group in groups]
    return f"{hardware!r} {program()}"


@cache
def program() -> str:
    """A digest of the source of everything that plays a run."""
    digest = hashlib.blake2b(digest_size=8)
    for package in _PLAYED_BY:
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
