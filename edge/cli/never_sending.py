"""`--never-send` where an agent with settings of its own runs already. Knows the caller's rules; knows nothing of who answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edge.core.errors import UsageError
from edge.privacy.never_send import NeverSend
from edge.serve.ports import Question
from edge.serve.reasoning import Reading

if TYPE_CHECKING:
    from edge.cli.asking import Reader


class NeverSending:
    """A running agent that is asked to stay local where the conversation breaks one of the caller's rules."""

    def __init__(self, agent: Reader, rules: Sequence[str]) -> None:
        self._agent = agent
        self._rules = NeverSend(rules)

    def read(self, question: Question) -> Reading:
        """Stream one answer. Raises UsageError when the cloud is demanded for what must not be sent."""
        if self._rules.broken([message.content for message in question.messages]):
            if question.mode == "cloud-only":
                raise UsageError("mode cloud-only is not possible: --never-send forbids it")
            question = replace(question, mode="local-only")
        return self._agent.read(question)
