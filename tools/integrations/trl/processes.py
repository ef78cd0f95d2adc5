"""The processes of one training run.

TRL calls reward functions in every process on its own share of the responses, and a group may be split across two processes. So everything
is gathered in the main process, which alone asks the cloud and reports, and the scores are sent back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

from edge.core.errors import EdgeError, UsageError

T = TypeVar("T")


class MainFailed(EdgeError):
    """Raised in the other processes when the main one failed; only the main one prints the reason."""


class TrainingProcesses:
    """The processes that `accelerate launch` or torchrun started, or this one alone. Each of them calls all methods in the same order."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s`: how long one waits for another before it gives up. It is needed here: TRL's own arguments come after the processes are
        connected. Raises UsageError where a launcher started several that cannot be connected."""
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env

        cpu = parse_flag_from_env("ACCELERATE_USE_CPU")
        self._state = PartialState(cpu=cpu, timeout=timedelta(seconds=wait_s))
        _require_connected(int(os.environ.get("WORLD_SIZE") or 1), self.count)

    @property
    def is_main(self) -> bool:
        """Whether this is the first of all."""
        return bool(self._state.is_main_process)

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._state.num_processes)

    @property
    def index(self) -> int:
        """Which one this is."""
        return int(self._state.process_index)

    def gather(self, own: Sequence[T]) -> list[T]:
        """The values of all, in the order of processes."""
        from accelerate.utils import gather_object

        return cast(list[T], gather_object(list(own)))

    def from_main(self, make: Callable[[], T]) -> T:
        """The result of `make` in the main process; the others wait for it. Its exception is raised in every process."""
        from accelerate.utils import broadcast_object_list

        failure: Exception | None = None
        outcome: list[Any] = [None, ""]
        if self.is_main:
            try:
                outcome[0] = make()
            except Exception as error:
                failure, outcome[1] = error, str(error) or type(error).__name__
        if self.count > 1:
            broadcast_object_list(outcome, from_process=0)
        if failure is not None:
            raise failure
        if outcome[1]:
            raise MainFailed(f"the main process failed: {outcome[1]}")
        return cast(T, outcome[0])


def _require_connected(started: int, connected: int) -> None:
    """Without a GPU accelerate connects processes only on request; each would take itself for the only one."""
    if connected < started:
        raise UsageError(
            f"{started} processes were started but are not connected: this machine has no GPU",
            hint="set ACCELERATE_USE_CPU=true, see tools/integrations/README.md",
        )
