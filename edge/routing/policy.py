"""The role of an offload policy: who decides that a response asks for help. Knows texts; knows nothing of λ's origin or of gRPC."""

from __future__ import annotations

from typing import Protocol

from edge.core.types import LocalResponse, TaskItem


class OffloadPolicy(Protocol):
    """Decides per response. `self_offload` reads the response's own request; baselines decide by other means."""

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """True when the cloud is to be asked for this response."""
        ...
