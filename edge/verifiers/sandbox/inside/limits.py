"""Resource limits of the process that sets them."""

from __future__ import annotations

import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def set_limits(limits: Mapping[str, int]) -> None:
    """Apply limits by the names of the resource module's constants, e.g. {"RLIMIT_AS": 2**29}. What a platform lacks is left out."""
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            if name != "RLIMIT_AS":  # macOS refuses this one
                raise
