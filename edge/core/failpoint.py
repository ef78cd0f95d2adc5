"""Named places where a test may kill this process, as a power cut would.

`EDGE_AGENT_FAILPOINT=collected=kill@3` kills the agent with SIGKILL when the place `collected` is reached for the third time,
`updated=kill` at the first; several are separated by commas. The coordinator's places are in coordinator/failpoints.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence

from edge.core.errors import ConfigError

VARIABLE = "EDGE_AGENT_FAILPOINT"
NAMES = ("collected", "updated", "checkpointed", "closed", "judged", "committed")
"""In the order of a step."""
Reached = Callable[[str], None]


def killer(environment: Mapping[str, str], variable: str, names: Sequence[str]) -> Reached | None:
    """What to call at each place, as the variable asks for; None where it asks for nothing. Raises ConfigError on an unknown name or
    action."""
    text = environment.get(variable, "")
    if not text:
        return None
    left: dict[str, int] = {}
    for part in text.split(","):
        name, _, action = part.strip().partition("=")
        word, _, count = action.partition("@")
        if name not in names or word != "kill" or not (count or "1").isdigit() or int(count or "1") < 1:
            raise ConfigError(f"{variable}: {part.strip()!r} is not NAME=kill or NAME=kill@N", hint=f"names: {', '.join(names)}")
        left[name] = int(count or "1")

    def reached(name: str) -> None:
        if name in left:
            left[name] -= 1
            if left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached
