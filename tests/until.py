"""Waiting for what another task or process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object]) -> None:
    """Return once this holds. Raises TimeoutError after two minutes, which no machine is too slow for."""
    async with asyncio.timeout(120.0):
        while not holds():
            await asyncio.sleep(0.005)
