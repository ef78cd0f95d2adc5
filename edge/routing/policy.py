"""Who decides that a response asks for help: the role, and the learned decision, in which the response itself asks."""

from __future__ import annotations

from typing import Protocol

from edge.core.types import LocalResponse, TaskItem
from edge.dagrpo.format import check_format


class OffloadPolicy(Protocol):
    """Decides per response. `self_offload` reads the response's own request; baselines decide by other means."""

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """True when the cloud is to be asked for this response."""
        ...


class SelfOffload:
    """Wants the cloud exactly when the response validly asks for help."""

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """True when the local response is well formed and asks."""
        return check_format(response.text, item.max_steps).asks_help
