"""Named places where a test may kill this process.

`EDGE_AGENT_FAILPOINT=collected:3` kills the process with SIGKILL when the place `collected` is reached for the third time. Places in
the order of a step: collected, updated, checkpointed, closed, judged, committed.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping

VARIABLE = "EDGE_AGENT_FAILPOINT"


def failpoint_from(environment: Mapping[str, str]) -> Callable[[str], None]:
    """The function to call at each place."""
    wanted, _, times = environment.get(VARIABLE, "").partition(":")
    seen: Counter[str] = Counter()

    def reached(place: str) -> None:
        seen[place] += 1
        if place == wanted and seen[place] == int(times or "1"):
            os.kill(os.getpid(), signal.SIGKILL)

    return reached
