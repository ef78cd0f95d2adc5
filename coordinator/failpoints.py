"""Named places where a test may stop the process. Knows names and actions; off unless the environment or a test says otherwise.

`EDGE_COORDINATOR_FAILPOINTS=after_reserve=kill` kills the process (SIGKILL, as a power cut would) when that place is reached for the first
time, `settled=kill@3` at the third. `hooked` is for a test in the same process. Off, a failpoint costs one look at a variable.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from edge.core.errors import ConfigError

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
Hook = Callable[[str], None]
_hook: Hook | None = None


def reach(name: str) -> None:
    """This place was reached."""
    if _hook is not None:
        _hook(name)


def arm(environment: Mapping[str, str]) -> None:
    """Arm what the environment asks for; nothing when it asks for nothing. Raises ConfigError on an unknown name or action."""
    global _hook
    if text := environment.get(VARIABLE, ""):
        _hook = _Killer(_parse(text))


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Call `hook` with the name of each failpoint reached inside of the block."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


class _Killer:
    def __init__(self, left: dict[str, int]) -> None:
        self._left = left

    def __call__(self, name: str) -> None:
        if name in self._left:
            self._left[name] -= 1
            if self._left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _parse(text: str) -> dict[str, int]:
    """`name=kill@N,...` as how often each name may be reached."""
    armed: dict[str, int] = {}
    for part in text.split(","):
        name, _, action = part.strip().partition("=")
        word, _, count = action.partition("@")
        if name not in NAMES or word != "kill" or not (count or "1").isdigit() or int(count or "1") < 1:
            raise ConfigError(f"{VARIABLE}: {part.strip()!r} is not NAME=kill or NAME=kill@N", hint=f"names: {', '.join(NAMES)}")
        armed[name] = int(count or "1")
    return armed
