"""Whether the parent process is still there. Knows process ids; knows nothing of why it matters.

An embedded coordinator must not outlive its agent, not even one that was killed with -9 and could not say goodbye.
"""

from __future__ import annotations

import asyncio
import os

POLL_S = 0.3


async def parent_gone(parent_pid: int, poll_s: float = POLL_S) -> None:
    """Return once this process is no longer the child of `parent_pid` (a dead parent's children are adopted by another process)."""
    while os.getppid() == parent_pid:  # noqa: ASYNC110 - nothing tells a process that its parent died
        await asyncio.sleep(poll_s)
