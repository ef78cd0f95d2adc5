"""The learned decision: the response itself asks. Knows the format; knows nothing of budgets."""

from __future__ import annotations

from edge.core.types import LocalResponse, TaskItem
from edge.dagrpo.format import check_format


class SelfOffload:
    """Wants the cloud exactly when the response validly asks for help."""

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """True when the local response is well formed and asks."""
        return check_format(response.text, item.max_steps).asks_help
