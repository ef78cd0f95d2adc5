"""Who decides that a response asks for help: the role, and the learned decision, in which the response itself asks."""

from __future__ import annotations

from typing import Protocol

from edge.core.types import FinishReason, LocalResponse, TaskItem
from edge.dagrpo.format import asks_help


class OffloadPolicy(Protocol):
    """Decides per response. `self_offload` reads the response's own request; baselines decide by other means."""

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """True when the cloud is to be asked for this response."""
        ...


class SelfOffload:
    """Wants the cloud exactly when the response validly asks for help."""

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """True when the local response is well formed and asks."""
        return asks_help(response, item.max_steps)


def asks(policy: OffloadPolicy, item: TaskItem, response: LocalResponse) -> bool:
    """c: whether a response hands its question over. One that did not end by itself asks for nothing, whatever decides."""
    return response.finish is FinishReason.EOS and policy.wants_cloud(item, response)
