"""An answer while it grows, and the settings under which it does."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from edge.cloud.hints import Cut
from edge.config.schema import Mode
from edge.core.errors import Unsupported
from edge.core.types import BeyondText, DialOverride, LocalResponse, Sampling, ScoredToken
from edge.privacy.registry import private_cut
from edge.rpc.client import CloudCompletion
from edge.state.answer_record import AnswerDelta, AnswerRequest
from edge.state.events import Source


class AnswerTokens:
    """Tokens that wait for their text. Offsets count from the beginning of the answer."""

    def __init__(self) -> None:
        self._waiting: deque[ScoredToken] = deque()
        self._base = 0

    def begin(self, base: int = 0) -> None:
        """A text begins at this offset; what waits belongs to text that was taken back."""
        self._waiting.clear()
        self._base = base

    def add(self, tokens: Sequence[ScoredToken]) -> None:
        """The next tokens, with offsets in the text that `begin` announced."""
        for token in tokens:
            self._waiting.append(replace(token, start=self._base + token.start, end=self._base + token.end))

    def until(self, said: int) -> tuple[ScoredToken, ...]:
        """The tokens that end in the first `said` characters, each once."""
        out = []
        while self._waiting and self._waiting[0].end <= said:
            out.append(self._waiting.popleft())
        return tuple(out)


Pieces = AsyncGenerator[AnswerDelta, None]
"""An answer as it is streamed."""


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How people are answered. `switched_off`: why the cloud may not be asked as long as this process runs ("" when it may). `hint_chars`:
    how much of the local response goes along when it is. `own_coordinator`: the embedded one, held to this configuration."""

    mode: Mode
    task: str
    temperature: float
    max_tokens: int
    max_steps: int | None
    prompt_form: str
    cloud_prompt_form: str
    max_output_tokens: int
    cloud_deadline_s: float
    model_alias: str = "default"
    switched_off: str = ""
    hint_chars: int = 0
    hint_cut: Cut = private_cut
    own_coordinator: bool = False


@dataclass(slots=True)
class Draft:
    """One answer while it grows."""

    request: AnswerRequest
    id: str
    task: str
    mode: Mode
    sampling: Sampling
    began_at: float
    began: float
    text: str = ""
    local_text: str = ""
    cloud_text: str = ""
    source: Source = "local"
    reason: str = "answered on this device"
    responses: list[LocalResponse] = field(default_factory=list)
    prompt_tokens: int = 0
    completion: CloudCompletion | None = None
    tokens: AnswerTokens = field(default_factory=AnswerTokens)
    asked: bool = False
    call_key: str = ""
    call_state: str = ""
    local_s: float = 0.0
    cloud_s: float | None = None
    first_token_s: float | None = None
    might_ask: bool = False

    @property
    def overridden(self) -> DialOverride:
        """The decision that the budget dial forced in the last local response, "" where it forced none."""
        return self.responses[-1].overridden if self.responses else ""


UNFOLLOWED = "could not be followed"
_FINISHES = frozenset({"stop", "length", "tool_calls", "content_filter"})


def refusal_of(beyond: BeyondText, why: str) -> Unsupported:
    """The error for a demand that no local answer meets, where the cloud is not asked (`why`, in a few words)."""
    name = beyond.required or beyond.wants[0]
    return Unsupported(
        f"{name}: only the cloud can do this, and it is not asked here ({why})",
        parameter=name,
        hint="leave it out, or ask where the cloud may be asked (model edge or edge-cloud)",
    )


def finish_of(openai_json: str) -> str:
    """Why a cloud completion ended, in OpenAI's words; "" where it is missing or another word."""
    reason = json.loads(openai_json).get("finish_reason") if openai_json else None
    return reason if isinstance(reason, str) and reason in _FINISHES else ""
