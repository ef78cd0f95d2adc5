"""What the model on this device writes of an answer, and whether it asks for help."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from edge.answering.draft import AnswerDraft, AnswerSettings
from edge.budget.dial import HelpDial, Setting
from edge.core.clock import Clock
from edge.core.concurrency import closing
from edge.core.forms import PlainForm, ResponseForm
from edge.core.types import AnswerKind, FinishReason, Message, Sampling, ToolConversation
from edge.dagrpo.format import asks_help, is_well_formed
from edge.dagrpo.prompts import HELP_PHRASE, local_messages, with_system
from edge.inference.backend import InferenceBackend

UNLIMITED_STEPS = 64
"""Step limit when none is configured; free conversation has none of its own."""


class LocalText:
    """The model's part of answers."""

    def __init__(self, backend: InferenceBackend, clock: Clock, settings: AnswerSettings) -> None:
        self._backend = backend
        self._clock = clock
        self._settings = settings

    async def pieces(
        self,
        draft: AnswerDraft,
        sampling: Sampling,
        prefix: str = "",
        *,
        form_note: str = "",
        tools: ToolConversation | None = None,
    ) -> AsyncGenerator[str, None]:
        """Stream what the model writes after `prefix`, and add it to the draft. `form_note` describes the form that the answer needs."""
        messages = tools or self.messages(draft, form_note)
        began = self._clock.monotonic()
        draft.tokens.begin(len(draft.text))
        async with closing(self._backend.stream(messages, sampling, abs(draft.request.seed or 0), prefix)) as deltas:
            async for delta in deltas:
                draft.tokens.add(delta.tokens)
                if delta.response is not None:
                    draft.local_s += self._clock.monotonic() - began
                    draft.responses.append(delta.response)
                    if not draft.prompt_tokens:
                        draft.prompt_tokens, draft.prompt_cached = delta.prompt_tokens, delta.cached_tokens
                if delta.text:
                    draft.local_text += delta.text
                    yield delta.text

    def messages(self, draft: AnswerDraft, form_note: str = "") -> Sequence[Message]:
        """What the model reads: the conversation itself where the answer is a plain turn."""
        asked, form = draft.request.messages, draft.sampling.form
        if isinstance(form, PlainForm):
            return with_system(asked, after=form_note)
        if form is not None and self._settings.prompt_form != "compact":
            asked = (*asked[:-1], Message("user", f"{asked[-1].content}\n{AnswerKind.MATH.instruction}"))
        return local_messages(asked, self._settings.prompt_form, form_note=form_note)

    def asks(self, draft: AnswerDraft) -> bool:
        """Whether the last response asks for help."""
        if not draft.responses:
            return False
        last = draft.responses[-1]
        if draft.overridden == "to ask":
            return last.finish is FinishReason.EOS
        return asks_help(replace(last, text=draft.local_text), self._settings.max_steps or UNLIMITED_STEPS)

    def usable(self, draft: AnswerDraft) -> bool:
        """Whether the last response is an answer."""
        if not draft.responses:
            return False
        last = draft.responses[-1]
        whole = replace(last, text=draft.local_text)
        return last.finish is FinishReason.STOP or is_well_formed(whole, self._settings.max_steps or UNLIMITED_STEPS)


class HelpHoldBack:
    """Lets text pass, except what may still become a help request: what follows `</think>`, or in the plain form the turn's beginning."""

    def __init__(self, form: ResponseForm | None) -> None:
        self._decided_after = "" if isinstance(form, PlainForm) else "</think>"
        self._text = ""
        self.sent = 0
        """Characters let pass so far."""

    def feed(self, piece: str) -> str:
        """Take the next piece; returns what may be shown now."""
        self._text += piece
        found = self._text.find(self._decided_after)
        end = found + len(self._decided_after)
        held = found >= 0 and may_become_request(self._text[end:])
        return self._release(end if held else len(self._text))

    def rest(self) -> str:
        """All that is held; for a response that turned out not to ask."""
        return self._release(len(self._text))

    def _release(self, end: int) -> str:
        start, self.sent = self.sent, max(self.sent, end)
        return self._text[start : self.sent]


def may_become_request(tail: str) -> bool:
    """Text where the decision is taken that is a beginning of a help request, or one already."""
    bare = tail.strip()
    if "<answer>".startswith(bare):
        return True
    words = bare.removeprefix("<answer>").strip().lower()
    phrase = HELP_PHRASE.rstrip(".").lower()
    return phrase.startswith(words) or words.startswith(phrase)


def update_dial(dial: HelpDial, draft: AnswerDraft, setting: Setting | None) -> None:
    """The dial counts a local answer; without a setting asking was impossible."""
    response = draft.responses[-1] if draft.responses else None
    if response is None:
        return
    if setting is None:
        dial.seen(response.help_log_odds, response.adapter_version, draft.form)
    else:
        dial.answered(setting, draft.asked, response.help_log_odds, response.adapter_version)
