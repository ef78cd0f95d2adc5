"""Named places where a test may stop the process. Knows names and actions; off unless the environment or a test says otherwise.

`EDGE_COORDINATOR_FAILPOINTS=after_reserve=kill` kills the process (SIGKILL, as a power cut would) when that place is reached for the first
time, `settled=kill@3` at the third. `hooked` is for a test in the same process. Off, a failpoint costs one look at a variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from edge.core.failpoint import Reached, killer

VARIABLE = "EDGE_COORDINATOR_FAILPOINTS"
NAMES = (
    "before_reserve",  # before T1
    "after_reserve",  # T1 is durable, the upstream was not asked
    "answered",  # the upstream has answered, before T2
    "settled",  # T2 is durable, before the reply
    "before_close_step",  # before T4
    "in_close_step",  # inside of T4
    "closed",  # T4 is durable, before the reply
    "before_commit",  # a batch of the SQLite ledger has run and is not committed
    "after_commit",  # it is committed and nobody knows yet
)
_hook: Reached | None = None


def reach(name: str) -> None:
    """This place was reached."""
    if _hook is not None:
        _hook(name)


def arm(environment: Mapping[str, str]) -> None:
    """Arm what the environment asks for; nothing when it asks for nothing. Raises ConfigError on an unknown name or action."""
    global _hook
    _hook = killer(environment, VARIABLE, NAMES) or _hook


@contextmanager
def hooked(hook: Reached) -> Iterator[None]:
    """Call `hook` with the name of each failpoint reached inside of the block."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before
