"""Answering one person: local, then the cloud where the model asks and the budget allows, then local again where it fails."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from edge.answering.ask_cloud import CloudQuestions, conversation_for_the_cloud, why_not
from edge.answering.draft import UNFOLLOWED, AnswerRecorder, AnswerSettings, Draft, Pieces
from edge.budget.access import CloudAccess
from edge.budget.dial import HelpDial, Setting
from edge.config.schema import Mode
from edge.core.clock import Clock
from edge.core.concurrency import ServingPrecedence, closing
from edge.core.errors import CloudOff, CoordinatorError, Unsupported, UsageError
from edge.core.types import FinishReason, Sampling, ScoredToken, TextDelta
from edge.dagrpo.composition import local_part
from edge.dagrpo.format import check_format, help_trigger_span
from edge.dagrpo.prompts import HELP_PHRASE, local_messages
from edge.inference.backend import InferenceBackend, RawPrompt, RawText, TokenizerInfo
from edge.rpc.client import question_chars
from edge.state.answer_record import AnswerDelta, AnswerRecord, AnswerRequest, Standing


class HelpHoldBack:
    """Lets text pass, except what follows `</think>` while it may still become a help request."""

    def __init__(self) -> None:
        self._text = ""
        self.sent = 0
        """Characters let pass so far."""

    def feed(self, piece: str) -> str:
        """Take the next piece; returns what may be shown now."""
        self._text += piece
        closing = self._text.find("</think>")
        end = closing + len("</think>")
        held = closing >= 0 and may_become_request(self._text[end:])
        return self._release(end if held else len(self._text))

    def rest(self) -> str:
        """All that is held; for a response that turned out not to ask."""
        return self._release(len(self._text))

    def _release(self, end: int) -> str:
        start, self.sent = self.sent, max(self.sent, end)
        return self._text[start : self.sent]


def may_become_request(tail: str) -> bool:
    """Text after `</think>` that is a beginning of a help request, or one already."""
    bare = tail.strip()
    if "<answer>".startswith(bare):
        return True
    words = bare.removeprefix("<answer>").strip().lower()
    phrase = HELP_PHRASE.rstrip(".").lower()
    return phrase.startswith(words) or words.startswith(phrase)


UNLIMITED_STEPS = 64
"""Step limit when none is configured; free conversation has none of its own."""
_MOST_RESTRICTIVE_FIRST: tuple[Mode, ...] = ("local-only", "prefer-local", "auto", "cloud-only")


class Answerer:
    """Streams answers; any number at once."""

    def __init__(
        self,
        backend: InferenceBackend,
        precedence: ServingPrecedence,
        access: CloudAccess,
        asker: CloudQuestions,
        recorder: AnswerRecorder,
        clock: Clock,
        settings: AnswerSettings,
        new_id: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._backend = backend
        self._precedence = precedence
        self._access = access
        self._clock = clock
        self._settings = settings
        self._new_id = new_id
        self._asker = asker
        self._recorder = recorder

    @property
    def answers(self) -> int:
        """How many were given."""
        return self._recorder.answers

    async def stream(self, request: AnswerRequest) -> AsyncGenerator[AnswerDelta, None]:
        """Answer a conversation whose last message is the user's. Raises CoordinatorError only in mode cloud-only."""
        if not request.messages or request.messages[-1].role != "user" or not request.messages[-1].content.strip():
            raise UsageError("the last message must be the user's and not empty")
        draft = self._draft(request)
        with self._precedence.serving(), self._access.unconfirmed.waited_for(lambda: draft.call_key):
            async with closing(self._answered(draft)) as pieces:
                async for piece in pieces:
                    if piece.text and draft.first_token_s is None:
                        draft.first_token_s = self._clock.monotonic() - draft.began
                    draft.text += piece.text
                    tokens = draft.tokens.until(len(draft.text))
                    yield replace(piece, tokens=tokens) if tokens else piece
            record = self._recorder.keep(draft)
        yield AnswerDelta("", record.source, record)

    async def answer(self, request: AnswerRequest) -> AnswerRecord:
        """The whole answer at once."""
        async with closing(self.stream(request)) as pieces:
            async for piece in pieces:
                if piece.record is not None:
                    return piece.record
        raise AssertionError("a stream ends with a record")

    def standing(self, task: str | None = None) -> Standing:
        """What holds before the next answer of a task (None: the one people's questions use)."""
        label = task or self._settings.task
        quota = self._access.quotas.now(label, self._backend.adapter_version)
        return Standing(
            task=label,
            adapter_version=self._backend.adapter_version,
            dual=quota.dual,
            target_rate=quota.target_rate,
            calls_left=quota.calls_left,
            tokens_left=quota.tokens_left,
            spend_left_uusd=quota.spend_left_uusd,
        )

    def _draft(self, request: AnswerRequest) -> Draft:
        settings = self._settings
        task = request.task or settings.task
        sampling = Sampling(
            temperature=settings.temperature if request.temperature is None else request.temperature,
            max_tokens=min(request.max_tokens or settings.max_tokens, settings.max_tokens),
            max_steps=settings.max_steps,
        )
        return Draft(
            request=request,
            id=request.id or self._new_id(),
            task=task,
            mode="local-only" if request.no_cloud else agreed_mode(request.mode, settings.mode),
            sampling=request.wishes.granted(sampling),
            began_at=self._clock.now(),
            began=self._clock.monotonic(),
            question_chars=question_chars(conversation_for_the_cloud(request.messages, settings.cloud_prompt_form)),
        )

    def _answered(self, draft: Draft) -> Pieces:
        if draft.request.beyond.wants:
            return self._beyond_the_slm(draft)
        if draft.mode == "cloud-only":
            return self._from_the_cloud(draft)
        if draft.mode == "auto" and not self._access.switch.reason:
            return self._as_the_model_decides(draft)
        return self._without_asking(draft)

    async def _from_the_cloud(self, draft: Draft) -> Pieces:
        if off := self._access.switch.reason:
            raise CloudOff(off)
        draft.reason = "mode cloud-only"
        async with closing(self._asker.pieces(draft)) as pieces:
            async for piece in pieces:
                yield piece

    async def _as_the_model_decides(self, draft: Draft) -> Pieces:
        """Mode auto: the model answers, or asks for help. The budget dial acts here: its bias shifts the log-odds of asking."""
        hold, dial = HelpHoldBack(), self._access.dials.of(draft.task)
        setting, draft.might_ask = dial.setting(self._backend.adapter_version), True
        draft.sampling = replace(draft.sampling, help_bias=setting.bias)
        async with closing(self._local_pieces(draft, draft.sampling)) as texts:
            async for text in texts:
                yield AnswerDelta(hold.feed(text))
        draft.asked = self._asks(draft)
        _update_dial(dial, draft, setting)
        if not draft.asked:
            if draft.overridden == "not to ask":
                draft.reason = "the model wished to ask; the budget dial kept it on this device"
            yield AnswerDelta(hold.rest())
            return
        start, end = help_trigger_span(draft.local_text) or (hold.sent, hold.sent)
        yield AnswerDelta(draft.local_text[hold.sent : start])
        failure = ""
        try:
            async with closing(self._asker.pieces(draft)) as pieces:
                async for piece in pieces:
                    yield piece
            draft.reason = "the budget dial had the model ask for help" if draft.overridden else "the model asked for help"
            yield AnswerDelta(draft.local_text[end:], "cloud")
        except CoordinatorError as error:
            failure = why_not(error)
        if failure:
            async with closing(self._locally_after_all(draft, failure)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _locally_after_all(self, draft: Draft, failure: str) -> Pieces:
        """Go on where the request for help stood, with the help phrase impossible."""
        draft.source, draft.reason, draft.cloud_text = "local-fallback", f"the model asked for help, but {failure}", ""
        prefix = local_part(draft.local_text)
        draft.local_text = prefix
        async with closing(self._local_pieces(draft, replace(draft.sampling, suppress_help=True), prefix)) as texts:
            async for text in texts:
                yield AnswerDelta(text, "local-fallback")

    async def _beyond_the_slm(self, draft: Draft) -> Pieces:
        """Tools and the like, which only the cloud follows: it is asked immediately where that is allowed. What must be followed has no
        local answer. Raises Unsupported where the cloud is not asked here, and CoordinatorError where it fails."""
        beyond = draft.request.beyond
        wanted, demanded = " and ".join(beyond.wants), bool(beyond.required) or draft.mode == "cloud-only"
        why = self._access.switch.reason or draft.request.no_cloud or ("mode local-only" if draft.mode == "local-only" else "")
        if why and demanded:
            name = beyond.required or beyond.wants[0]
            raise Unsupported(
                f"{name}: only the cloud can do this, and it is not asked here ({why})",
                parameter=name,
                hint="leave it out, or ask where the cloud may be asked (model edge or edge-cloud)",
            )
        if not why:
            try:
                async with closing(self._asker.pieces(draft)) as pieces:
                    async for piece in pieces:
                        yield piece
                draft.reason = f"{wanted}: only the cloud follows this"
                return
            except CoordinatorError as error:
                if demanded:
                    raise
                why, draft.source, draft.cloud_text = why_not(error), "local-fallback", ""
        draft.reason = f"{why}; {wanted} {UNFOLLOWED}"
        async with closing(self._local_pieces(draft, replace(draft.sampling, suppress_help=True))) as texts:
            async for text in texts:
                yield AnswerDelta(text, draft.source)

    async def _without_asking(self, draft: Draft) -> Pieces:
        """Mode local-only, prefer-local or the kill switch: help suppressed; prefer-local asks when the local answer is unusable."""
        off = self._access.switch.reason
        draft.reason = off or draft.request.no_cloud or f"mode {draft.mode}"
        async with closing(self._local_pieces(draft, replace(draft.sampling, suppress_help=True))) as texts:
            async for text in texts:
                yield AnswerDelta(text)
        _update_dial(self._access.dials.of(draft.task), draft, None)
        if draft.mode != "prefer-local" or off or self._usable(draft):
            return
        draft.asked = True
        try:
            yield AnswerDelta("\n")
            async with closing(self._asker.pieces(draft)) as pieces:
                async for piece in pieces:
                    yield piece
            draft.reason = "mode prefer-local: the local answer was unusable"
        except CoordinatorError as error:
            draft.source, draft.reason = "local-fallback", f"the local answer is unusable, but {why_not(error)}"

    async def _local_pieces(self, draft: Draft, sampling: Sampling, prefix: str = "") -> AsyncGenerator[str, None]:
        messages, began = local_messages(draft.request.messages, self._settings.prompt_form), self._clock.monotonic()
        draft.tokens.begin(len(draft.text))
        async with closing(self._backend.stream(messages, sampling, abs(draft.request.seed or 0), prefix)) as deltas:
            async for delta in deltas:
                draft.tokens.add(delta.tokens)
                if delta.response is not None:
                    draft.local_s += self._clock.monotonic() - began
                    draft.responses.append(delta.response)
                    draft.prompt_tokens = draft.prompt_tokens or delta.prompt_tokens
                if delta.text:
                    draft.local_text += delta.text
                    yield delta.text

    def _asks(self, draft: Draft) -> bool:
        last = draft.responses[-1] if draft.responses else None
        if last is None or last.finish is not FinishReason.EOS:
            return False
        if draft.overridden == "to ask":
            return True
        return check_format(draft.local_text, self._settings.max_steps or UNLIMITED_STEPS).asks_help

    def _usable(self, draft: Draft) -> bool:
        if draft.responses and draft.responses[-1].finish is FinishReason.STOP:
            return True
        return check_format(draft.local_text, self._settings.max_steps or UNLIMITED_STEPS).ok


def _update_dial(dial: HelpDial, draft: Draft, setting: Setting | None) -> None:
    """The dial learns from a local answer; without a setting asking was impossible."""
    response = draft.responses[-1] if draft.responses else None
    if response is None:
        return
    if setting is None:
        dial.seen(response.help_log_odds, response.adapter_version)
    else:
        dial.answered(setting, draft.asked, response.help_log_odds, response.adapter_version)


def agreed_mode(asked: Mode | None, own: Mode) -> Mode:
    """The mode of one answer. The more restrictive side wins, except that cloud-only is a demand that only a switch-off refuses."""
    if asked is None or asked == "cloud-only":
        return asked or own
    return min(asked, own, key=_MOST_RESTRICTIVE_FIRST.index)


class ServedTexts:
    """`RawText` of the agent's model, at the precedence of people: learning waits for it.

    A raw text is no question to the agent: nothing is decided, nothing leaves the machine, nothing is learned from it or recorded.
    """

    def __init__(self, texts: RawText, gate: ServingPrecedence) -> None:
        self._texts = texts
        self._gate = gate

    async def continue_text(self, prompt: RawPrompt, sampling: Sampling, seed: int) -> AsyncGenerator[TextDelta, None]:
        """Stream the continuation of a raw prompt; see `RawText`."""
        with self._gate.serving():
            async with closing(self._texts.continue_text(prompt, sampling, seed)) as deltas:
                async for delta in deltas:
                    yield delta

    async def read(self, prompt: RawPrompt, top_logprobs: int = 0) -> tuple[ScoredToken, ...]:
        """How likely the tokens of a text are; see `RawText`."""
        with self._gate.serving():
            return await self._texts.read(prompt, top_logprobs)

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a text."""
        return self._texts.text_tokens(text)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text that ids stand for. Raises UsageError."""
        return self._texts.text_of(token_ids)

    @property
    def tokenizer(self) -> TokenizerInfo:
        """What a client that prepares prompts itself has to know."""
        return self._texts.tokenizer
