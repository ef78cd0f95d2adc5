"""Answering one person: local, then the cloud where the model asks and the budget allows, then local again where it fails."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

from edge.answering.ask_cloud import CloudQuestions, conversation_for_the_cloud, why_not
from edge.answering.draft import AnswerDraft, AnswerRecorder, AnswerSettings, Pieces
from edge.answering.held_answers import ASK_ELSEWHERE, HeldAnswers, named
from edge.answering.local_text import HelpHoldBack, LocalText, update_dial
from edge.budget.access import CloudAccess
from edge.core.clock import Clock
from edge.core.concurrency import ServingPrecedence, closing
from edge.core.errors import CloudOff, ContextOverflow, CoordinatorError, Unsupported, UsageError
from edge.core.types import Message, Mode, Sampling
from edge.dagrpo.composition import local_part
from edge.dagrpo.format import help_trigger_span
from edge.dagrpo.prompts import TextQuestion
from edge.inference.backend import InferenceBackend
from edge.rpc.client import question_chars
from edge.state.answer_record import AnswerDelta, AnswerRecord, AnswerRequest, TaskStanding

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
        asked: Mapping[str, TextQuestion] | None = None,
    ) -> None:
        """`asked`: what is asked about each text of a label."""
        self._backend = backend
        self._precedence = precedence
        self._access = access
        self._clock = clock
        self._settings = settings
        self._new_id = new_id
        self._asker = asker
        self._recorder = recorder
        self.asked = asked or {}
        self._local = LocalText(backend, clock, settings)
        self._held = HeldAnswers(backend, self._local, access, asker, recorder)

    @property
    def answers(self) -> int:
        """How many were given."""
        return self._recorder.answers

    async def stream(self, request: AnswerRequest) -> AsyncGenerator[AnswerDelta, None]:
        """Answer a conversation whose last message is the user's. Raises CoordinatorError only in mode cloud-only."""
        if not request.messages or request.messages[-1].role != "user" or not request.messages[-1].content.strip():
            raise UsageError("the last message must be the user's and not empty")
        draft = self._draft(self._as_learned(request))
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

    def standing(self, task: str | None = None) -> TaskStanding:
        """What holds before the next answer of a task (None: the one people's questions use)."""
        label = task or self._settings.task
        quota = self._access.quotas.now(label, self._backend.adapter_version)
        return TaskStanding(
            task=label,
            adapter_version=self._backend.adapter_version,
            dual=quota.dual,
            target_rate=quota.target_rate,
            calls_left=quota.calls_left,
            tokens_left=quota.tokens_left,
            spend_left_uusd=quota.spend_left_uusd,
        )

    def prompt_tokens(self, request: AnswerRequest) -> int:
        """How many tokens the local model would read before it answers, tools that only the cloud can call included."""
        beyond = [request.beyond.openai_json] if request.beyond.wants else []
        wanted = request.tools if beyond else None
        tools = wanted.conversation if wanted is not None and self._backend.tokenizer.calls == wanted.written else None
        messages = self._local.messages(self._draft(self._as_learned(request)))
        read = len(self._backend.served_ids(tools or messages))
        return read + sum(len(self._backend.text_tokens(text)) for text in ([] if tools else beyond))

    def _as_learned(self, request: AnswerRequest) -> AnswerRequest:
        """A text of a label about whose texts something is asked, by itself and in the words that were learned; any other request as it is.

        The label is the request's, or that of the question that stands before or after the text.
        """
        text, settings = request.messages[-1].content, self._settings
        label = request.task or next((task for task, question in self.asked.items() if question.is_put_to(text)), settings.task)
        question = self.asked.get(label)
        if question is None:
            return request
        prompt = question.prompt(text, settings.prompt_form, plain=settings.guided)
        return replace(request, messages=(Message("user", prompt),), task=label, options=question.options)

    def _draft(self, request: AnswerRequest) -> AnswerDraft:
        settings = self._settings
        task = request.task or settings.task
        sampling = Sampling(
            temperature=settings.temperature_of(request) or 0.0,
            max_tokens=min(request.max_tokens or settings.max_tokens, settings.max_tokens),
            max_steps=settings.max_steps,
            certainty=settings.certainty,
            form=settings.form_of(request),
        )
        return AnswerDraft(
            request=request,
            id=request.id or self._new_id(),
            task=task,
            mode="local-only" if request.no_cloud else agreed_mode(request.mode, settings.mode),
            sampling=request.wishes.granted(sampling),
            began_at=self._clock.now(),
            began=self._clock.monotonic(),
            question_chars=question_chars(conversation_for_the_cloud(request.messages, settings.cloud_prompt_form)),
        )

    async def _answered(self, draft: AnswerDraft) -> Pieces:
        """By the model on this device where it can; a conversation that is too long for it is the cloud's."""
        too_long: ContextOverflow | None = None
        try:
            async with closing(self._by_mode(draft)) as pieces:
                async for piece in pieces:
                    yield piece
        except ContextOverflow as error:
            if draft.responses:  # the conversation itself had room
                raise
            too_long = error
        if too_long is not None:
            async with closing(self._beyond_the_slm(draft, too_long)) as pieces:
                async for piece in pieces:
                    yield piece

    def _by_mode(self, draft: AnswerDraft) -> Pieces:
        request = draft.request
        if request.beyond.wants:
            tools = request.tools if draft.mode != "cloud-only" else None
            local = tools is not None and self._backend.tokenizer.calls == tools.written
            return self._held.with_tools(draft) if local else self._beyond_the_slm(draft)
        if request.form is not None:
            return self._held.in_form(draft, request.form)
        if draft.mode == "cloud-only":
            return self._from_the_cloud(draft)
        if draft.mode == "auto" and not self._access.switch.reason:
            return self._as_the_model_decides(draft)
        return self._without_asking(draft)

    async def _from_the_cloud(self, draft: AnswerDraft) -> Pieces:
        if off := self._access.switch.reason:
            raise CloudOff(off)
        draft.reason = "mode cloud-only"
        async with closing(self._asker.pieces(draft)) as pieces:
            async for piece in pieces:
                yield piece

    async def _as_the_model_decides(self, draft: AnswerDraft) -> Pieces:
        """Mode auto: the model answers, or asks for help. The budget dial acts here: its bias shifts the log-odds of asking."""
        hold, dial = HelpHoldBack(draft.sampling.form), self._access.dials.of(draft.task)
        setting, draft.might_ask = dial.setting(self._backend.adapter_version, draft.form), True
        draft.sampling = replace(draft.sampling, help_bias=setting.bias)
        async with closing(self._local.pieces(draft, draft.sampling)) as texts:
            async for text in texts:
                yield AnswerDelta(hold.feed(text))
        draft.asked = self._local.asks(draft)
        update_dial(dial, draft, setting)
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

    async def _locally_after_all(self, draft: AnswerDraft, failure: str) -> Pieces:
        """Go on where the request for help stood, with the help phrase impossible."""
        draft.source, draft.reason, draft.cloud_text = "local-fallback", f"the model asked for help, but {failure}", ""
        prefix = local_part(draft.local_text)
        draft.local_text = prefix
        async with closing(self._local.pieces(draft, replace(draft.sampling, suppress_help=True), prefix)) as texts:
            async for text in texts:
                yield AnswerDelta(text, "local-fallback")

    async def _beyond_the_slm(self, draft: AnswerDraft, too_long: ContextOverflow | None = None) -> Pieces:
        """What only the cloud can do: calls of tools, or the reading of a conversation that is too long here. Raises Unsupported or
        `too_long` where it is not asked here, CoordinatorError where it fails."""
        name = " and ".join(draft.request.beyond.wants)
        why = self._access.switch.reason or draft.request.no_cloud or ("mode local-only" if draft.mode == "local-only" else "")
        if too_long is not None and (why or self._settings.cloud_prompt_form == "compact"):  # which reads the last question alone
            raise too_long
        if why:
            raise Unsupported(
                f"{name}: the model on this device cannot call these, and the cloud is not asked here ({why})",
                parameter=name,
                hint=ASK_ELSEWHERE,
            )
        draft.reason = f"{name}: only the cloud follows this" if too_long is None else f"{too_long}: only the cloud reads it"
        draft.might_ask = False
        with named(name) if name else nullcontext():
            if draft.request.form is not None:
                yield AnswerDelta(await self._held.from_the_cloud(draft, draft.request.form), "cloud", verbatim=True)
                return
            async with closing(self._asker.pieces(draft)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _without_asking(self, draft: AnswerDraft) -> Pieces:
        """Mode local-only, prefer-local or the kill switch: help suppressed; prefer-local asks when the local answer is unusable."""
        off = self._access.switch.reason
        draft.reason = off or draft.request.no_cloud or f"mode {draft.mode}"
        async with closing(self._local.pieces(draft, replace(draft.sampling, suppress_help=True))) as texts:
            async for text in texts:
                yield AnswerDelta(text)
        update_dial(self._access.dials.of(draft.task), draft, None)
        if draft.mode != "prefer-local" or off or self._local.usable(draft):
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


def agreed_mode(asked: Mode | None, own: Mode) -> Mode:
    """The mode of one answer. The more restrictive side wins, except that cloud-only is a demand that only a switch-off refuses."""
    if asked is None or asked == "cloud-only":
        return asked or own
    return min(asked, own, key=_MOST_RESTRICTIVE_FIRST.index)
