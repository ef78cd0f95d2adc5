"""An answer while it grows, and the settings under which it does. Knows what is gathered on the way; knows nothing of who adds to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from edge.agent.events import Source
from edge.agent.hints import Cut
from edge.agent.record import AnswerDelta, AnswerRequest
from edge.agent.token_line import TokenLine
from edge.config.schema import Mode
from edge.core.types import LocalResponse, Sampling, Sway
from edge.privacy.cutting import private_cut
from edge.rpc.client import CloudCompletion

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
    line: TokenLine = field(default_factory=TokenLine)
    asked: bool = False
    call_key: str = ""
    call_state: str = ""
    local_s: float = 0.0
    cloud_s: float | None = None
    first_token_s: float | None = None
    might_ask: bool = False

    @property
    def swayed(self) -> Sway:
        """What the budget dial has made of the last local response's decision."""
        return self.responses[-1].swayed if self.responses else ""
