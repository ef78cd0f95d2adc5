"""Asking the cloud for a person: the call, its deadline, and what is written down before and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from edge.answering.draft import AnswerDraft, AnswerSettings, Pieces
from edge.budget.access import CloudAccess
from edge.cloud.client import WatchedClient
from edge.cloud.group_calls import for_who_demanded_the_cloud, what_is_used_up
from edge.cloud.hints import with_hint
from edge.cloud.unconfirmed import UNSETTLED
from edge.core.clock import Clock
from edge.core.concurrency import closing
from edge.core.errors import (
    BudgetExhausted,
    CoordinatorError,
    InvalidRequest,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
    Unpriced,
    Withheld,
)
from edge.core.types import Message
from edge.rpc.client import CallProgress, CloudCall
from edge.rpc.openai_fields import CANNOT_FOLLOW
from edge.state.answer_record import AnswerDelta, AnswerRecord

NO_FORMS_S = 3600.0
"""How long an upstream that refused a form is not asked for one again; it may be exchanged for another."""
OFFLINE_DEADLINE_S = 2.0
"""How long a person waits for a coordinator that was away at the last attempt."""
_NOT_CHARGED = (RateLimited, Unpriced, InvalidRequest, PermissionDenied, Unauthenticated, Withheld)
"""Refusals of the call itself; after any other failure the coordinator is asked what became of it."""


class CloudQuestions:
    """Asks the coordinator on behalf of answers; one call an answer."""

    def __init__(
        self,
        client: WatchedClient,
        access: CloudAccess,
        record_of: Callable[[AnswerDraft], AnswerRecord],
        clock: Clock,
        run_id: str,
        settings: AnswerSettings,
    ) -> None:
        """`record_of` a draft: what would be known of the answer if it ended now."""
        self._client = client
        self._access = access
        self._record_of = record_of
        self._clock = clock
        self._run_id = run_id
        self._settings = settings
        self._no_forms: tuple[InvalidRequest, float] | None = None

    def why_no_form(self) -> InvalidRequest | None:
        """The refusal of a cloud LLM that follows no form of an answer, as it lately was; None where nothing is known."""
        refusal, until = self._no_forms or (None, 0.0)
        return refusal if self._clock.monotonic() < until else None

    async def pieces(self, draft: AnswerDraft) -> Pieces:
        """Stream the cloud's answer into the draft. Raises CoordinatorError; Withheld when the cloud was switched off meanwhile."""
        if off := self._access.switch.reason:
            raise Withheld(off)
        if draft.request.form is not None and (refusal := self.why_no_form()) is not None:
            raise InvalidRequest(*refusal.args, hint=refusal.hint)
        draft.tokens.begin()
        draft.call_key, draft.call_state = f"{self._run_id}-{draft.id}", UNSETTLED
        call, deadline_s = self._call(draft), self._settings.cloud_deadline_s
        if not self._client.online:
            deadline_s = min(OFFLINE_DEADLINE_S, deadline_s)
        with self._in_the_askers_words(), self._settling(draft):
            async with closing(self._client.stream_complete(call, deadline_s)) as deltas:
                async for delta in deltas:
                    if delta.completion is not None:
                        draft.completion, draft.source = delta.completion, "cloud"
                        draft.call_state = CallProgress.COMPLETED.value
                    if delta.text:
                        draft.cloud_text += delta.text
                        yield AnswerDelta(delta.text, "cloud")

    def _call(self, draft: AnswerDraft) -> CloudCall:
        settings = self._settings
        asked = conversation_for_the_cloud(draft.request.messages, settings.cloud_prompt_form)
        return CloudCall(
            call_key=draft.call_key,
            task=draft.task,
            step=-1,
            prompt_id=draft.id,
            help_units=1,
            messages=with_hint(asked, draft.local_text, settings.hint_chars, settings.hint_cut),
            max_output_tokens=min(draft.request.max_tokens or settings.max_output_tokens, settings.max_output_tokens),
            model_alias=settings.model_alias,
            temperature=settings.temperature_of(draft.request),
            openai_json=draft.request.beyond.openai_json,
        )

    @contextmanager
    def _in_the_askers_words(self) -> Iterator[None]:
        """Reword errors for the person asking, who does not know the coordinator's name for the model, and add what to do next."""
        try:
            yield
        except CoordinatorError as error:
            error.args = (str(error).replace(f"model {self._settings.model_alias!r}", "the cloud LLM"),)
            error.hint = self._settings.cloud.what_next(error)
            if isinstance(error, InvalidRequest) and CANNOT_FOLLOW in str(error):
                self._no_forms = error, self._clock.monotonic() + NO_FORMS_S
            raise

    @contextmanager
    def _settling(self, draft: AnswerDraft) -> Iterator[None]:
        """Around a call: noted on disk before it is sent, and what is known of its end afterwards."""
        access, began = self._access, self._clock.monotonic()
        try:
            access.unconfirmed.begin(replace(self._record_of(draft), reason="cut off while the cloud was asked"))
        except Withheld:
            draft.call_key = draft.call_state = ""
            raise
        try:
            yield
            access.quotas.answered(draft.task)
        except BudgetExhausted as error:
            draft.call_state = "refused"
            access.unconfirmed.forget(draft.call_key)
            access.quotas.refused(draft.task, what_is_used_up(error))
            raise for_who_demanded_the_cloud(error, own_coordinator=self._settings.cloud.own) from error
        except _NOT_CHARGED:
            draft.call_state = CallProgress.FAILED.value
            access.unconfirmed.forget(draft.call_key)
            raise
        except CoordinatorError as error:
            with suppress(Withheld):  # what was noted first stays
                access.unconfirmed.begin(replace(self._record_of(draft), reason=f"the cloud gave no answer: {error}"))
            raise
        finally:
            draft.cloud_s = self._clock.monotonic() - began


def conversation_for_the_cloud(messages: Sequence[Message], prompt_form: str) -> tuple[Message, ...]:
    """What the cloud LLM reads: the last question alone for "compact" ones, else the conversation as it came."""
    return (messages[-1],) if prompt_form == "compact" else tuple(messages)


def why_not(error: CoordinatorError) -> str:
    """Why there is an answer of this device instead, in one line."""
    if isinstance(error, BudgetExhausted):
        return f"the budget is used up ({what_is_used_up(error)}); answered on this device"
    if isinstance(error, InvalidRequest):
        return f"the coordinator cannot take it ({error}); answered on this device"
    if isinstance(error, Withheld):
        return f"nothing was sent ({error}); answered on this device"
    if error.reason == "UPSTREAM_REJECTED":
        return f"{error}; answered on this device"
    return f"the cloud cannot be reached ({error}); answered on this device"
