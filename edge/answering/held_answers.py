"""Answers that are held to something: to the form of a JSON schema, or to the tools that may be called.

What the local model writes is held by a grammar while it writes; the cloud's answer is checked when it is there. The model's thoughts, and
the decision to ask for help after them, are free: only what follows is held.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from edge.answering.ask_cloud import CloudQuestions, why_not
from edge.answering.draft import AnswerDraft, AnswerRecorder, Pieces, finish_of
from edge.answering.local_text import HelpHoldBack, LocalText, may_become_request, update_dial
from edge.budget.access import CloudAccess
from edge.budget.dial import Setting
from edge.core.concurrency import closing
from edge.core.errors import CloudOff, CoordinatorError, InvalidRequest, UnfitAnswer, Unsupported
from edge.core.forms import PlainForm
from edge.core.types import AnswerForm, FinishReason, Sampling
from edge.inference.backend import InferenceBackend
from edge.state.answer_record import AnswerDelta

ASK_ELSEWHERE = "leave it out, or ask where the cloud may be asked (model edge or edge-cloud)"


class HeldAnswers:
    """Streams them into drafts."""

    def __init__(
        self, backend: InferenceBackend, local: LocalText, access: CloudAccess, asker: CloudQuestions, recorder: AnswerRecorder
    ) -> None:
        self._backend = backend
        self._local = local
        self._access = access
        self._asker = asker
        self._recorder = recorder

    async def in_form(self, draft: AnswerDraft, form: AnswerForm) -> Pieces:
        """An answer whose content has a form. The model may think first, and ask for help where the mode lets it.

        A form that no grammar holds is the cloud's: Unsupported where it may not be asked. Raises CoordinatorError and UnfitAnswer there,
        and in mode cloud-only.
        """
        off, failure = self._access.switch.reason, ""
        if draft.mode == "cloud-only":
            if off:
                raise CloudOff(off)
            draft.reason = "mode cloud-only"
            with named(form.parameter):
                content = await self.from_the_cloud(draft, form)
            yield AnswerDelta(content, "cloud", verbatim=True)
            return
        kept = off or draft.request.no_cloud or ("mode local-only" if draft.mode == "local-only" else "")
        no_form = self._asker.why_no_form()
        if not form.grammar:
            if kept or no_form is not None:
                why = kept or "it follows no form of an answer"
                message = f"{form.unheld}, and the cloud is not asked here ({why})"
                raise Unsupported(message, parameter=form.parameter, hint=ASK_ELSEWHERE if kept else "leave it out")
            draft.reason = f"{form.parameter}: only the cloud follows this"
            with named(form.parameter):
                content = await self.from_the_cloud(draft, form)
            yield AnswerDelta(content, "cloud", verbatim=True)
            return
        dial = self._access.dials.of(draft.task)
        asks = draft.mode == "auto" and not off and no_form is None
        setting = dial.setting(self._backend.adapter_version, draft.form) if asks else None
        draft.might_ask = setting is not None
        if setting is None:
            unasked = "the cloud LLM follows no form of an answer" if draft.mode == "auto" and no_form is not None else ""
            draft.reason = off or draft.request.no_cloud or unasked or f"mode {draft.mode}"
        else:
            draft.sampling = replace(draft.sampling, help_bias=setting.bias)
        plain = isinstance(draft.sampling.form, PlainForm)
        with named(form.parameter):
            async with closing((self._plainly if plain else self._thoughts)(draft, form, setting)) as texts:
                async for text in texts:
                    yield AnswerDelta(text, verbatim=plain)
        draft.asked = setting is not None and self._local.asks(draft)
        update_dial(dial, draft, setting)
        if draft.asked:
            try:
                content = await self.from_the_cloud(draft, form)
                draft.reason = "the budget dial had the model ask for help" if draft.overridden else "the model asked for help"
            except CoordinatorError as error:
                failure = why_not(error)
            except UnfitAnswer as error:
                failure = f"{error}; answered on this device"
            if not failure:
                yield AnswerDelta(content, "cloud", verbatim=True)
                return
            draft.source, draft.reason, draft.cloud_text = "local-fallback", f"the model asked for help, but {failure}", ""
        elif draft.overridden == "not to ask":
            draft.reason = "the model wished to ask; the budget dial kept it on this device"
        if plain and not draft.asked:
            return
        draft.local_text = prefix = "" if plain else _answer_opening(draft.local_text)
        held = replace(draft.sampling, help_bias=0.0, suppress_help=True, max_steps=None, stops=(), grammar=form.grammar)
        with named(form.parameter):
            async with closing(self._local.pieces(draft, self._rest(draft, held), prefix, form_note=_note(form, plain))) as texts:
                async for text in texts:
                    draft.content += text
                    yield AnswerDelta(text, draft.source, verbatim=True)

    async def with_tools(self, draft: AnswerDraft) -> Pieces:
        """An answer in which the local model may call tools, or must. Its calls are in the draft, not in the text."""
        with named(" and ".join(draft.request.beyond.wants)):
            async with closing(self._with_calls(draft)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _with_calls(self, draft: AnswerDraft) -> Pieces:
        tools = draft.request.tools
        assert tools is not None
        conversation, written = tools.conversation, tools.written
        draft.reason = f"{' and '.join(draft.request.beyond.wants)}: followed on this device"
        sampling = replace(draft.sampling, suppress_help=True, max_steps=None)
        if tools.calls_or_form:
            async with closing(
                self._local.pieces(draft, replace(sampling, stops=(), grammar=tools.calls_or_form), tools=conversation)
            ) as texts:
                either = "".join([text async for text in texts])
            calls = either.removeprefix(mark := written.text_mark)
            if not either.startswith(mark) or (not mark and written.read(calls) is None):
                draft.content = either
                yield AnswerDelta(either, verbatim=True)
                return
        else:
            if not tools.required:
                until_a_call = replace(sampling, stops=written.begins, stops_in_answer=True)
                async with closing(self._local.pieces(draft, until_a_call, tools=conversation)) as texts:
                    async for text in texts:
                        yield AnswerDelta(text)
                if draft.responses[-1].finish is not FinishReason.STOP:
                    return
                if written.whole_turn and draft.local_text.strip():
                    rest = self._rest(draft, replace(sampling, top_logprobs=None))
                    async with closing(self._local.pieces(draft, rest, draft.local_text, tools=conversation)) as texts:
                        async for text in texts:
                            yield AnswerDelta(text)
                    return
            draft.local_text = prefix = draft.local_text + written.mark
            held = self._rest(draft, replace(sampling, stops=(), grammar=tools.calls, top_logprobs=None))
            async with closing(self._local.pieces(draft, held, prefix, tools=conversation)) as texts:
                calls = "".join([text async for text in texts])
        if draft.responses[-1].finish is FinishReason.EOS:
            draft.calls_json = _calls_json(written.read(calls) or (), draft.id)

    async def from_the_cloud(self, draft: AnswerDraft, form: AnswerForm) -> str:
        """The cloud's whole answer, which has the form. Raises CoordinatorError; UnfitAnswer for one that has it not, which is recorded."""
        async with closing(self._asker.pieces(draft)) as pieces:
            async for _ in pieces:
                pass
        beyond_text = draft.completion.openai_json if draft.completion else ""
        ended_otherwise = finish_of(beyond_text) not in ("", "stop") or "refusal" in json.loads(beyond_text or "{}")
        if ended_otherwise or fits(draft.cloud_text, form.schema):
            draft.content = draft.cloud_text
            return draft.cloud_text
        failure = f"the cloud LLM's answer does not match {form.parameter}"
        if draft.mode == "cloud-only" or draft.request.beyond.wants or not form.grammar:
            draft.reason = failure
            self._recorder.keep(draft)
            raise UnfitAnswer(failure, hint="ask again, or without this form")
        raise UnfitAnswer(failure)

    async def _plainly(self, draft: AnswerDraft, form: AnswerForm, setting: Setting | None) -> AsyncGenerator[str, None]:
        """The whole answer, unless the model asks for help before it."""
        hold = HelpHoldBack(draft.sampling.form)
        held = replace(draft.sampling, suppress_help=setting is None, max_steps=None, stops=(), grammar=form.grammar)
        async with closing(self._local.pieces(draft, held, form_note=_note(form, plain=True))) as texts:
            async for text in texts:
                shown = hold.feed(text)
                draft.content += shown
                yield shown
        if not self._local.asks(draft):
            shown = hold.rest()
            draft.content += shown
            yield shown

    async def _thoughts(self, draft: AnswerDraft, form: AnswerForm, setting: Setting | None) -> AsyncGenerator[str, None]:
        """What the model thinks before its answer, in at most half of its tokens; nothing where it does not begin with a thought. After
        the thought, generation goes on only as long as the model may still be asking for help."""
        free = replace(
            draft.sampling,
            stops=("<answer>",),
            stops_in_answer=False,
            suppress_help=setting is None,
            max_tokens=max(1, draft.sampling.max_tokens // 2),
            top_logprobs=None,
        )
        sent = 0
        async with closing(self._local.pieces(draft, free, form_note=_note(form, plain=False))) as texts:
            async for _ in texts:
                text, begins = draft.local_text, draft.local_text.lstrip()
                if not begins.startswith("<think>"):
                    if not "<think>".startswith(begins):
                        return
                    continue
                thought, closed, rest = text.partition("</think>")
                end = len(thought + closed)
                yield text[sent:end]
                sent = max(sent, end)
                if closed and not may_become_request(rest):
                    return

    def _rest(self, draft: AnswerDraft, sampling: Sampling) -> Sampling:
        """The same, with the tokens that are left of the answer's."""
        used = sum(len(response.token_ids) for response in draft.responses)
        return replace(sampling, max_tokens=max(1, sampling.max_tokens - used))


@contextmanager
def named(parameter: str) -> Iterator[None]:
    """An engine or a cloud LLM that cannot follow a parameter refuses it by the name that the client has for it."""
    try:
        yield
    except Unsupported as error:
        if error.parameter != "grammar":
            raise
        raise Unsupported(f"{parameter}: {error}", parameter=parameter, hint=error.hint) from error
    except InvalidRequest as error:
        why = str(error).partition("does not take this request: ")[2] or str(
            error
        )  # without the coordinator's name for its model
        hint = f"leave {parameter} out, or use a cloud LLM that takes it (coordinator.embedded.upstream, or the coordinator's upstream)"
        raise Unsupported(f"{parameter}: the cloud LLM does not take it ({why})", parameter=parameter, hint=hint) from error


def fits(text: str, schema: str) -> bool:
    """Whether a text is JSON that fits a schema ("": any object)."""
    try:
        value = json.loads(text, parse_constant=_no_json)
    except ValueError:
        return False
    return bool(schema_validator(json.loads(schema)).is_valid(value)) if schema else isinstance(value, dict)


def schema_validator(schema: Any) -> Any:
    """What checks values by a schema. Raises ValueError for one that is none, or that refers to elsewhere: nothing is fetched."""
    import jsonschema_rs

    return jsonschema_rs.validator_for(schema, validate_formats=True, retriever=_fetch_nothing)


def _fetch_nothing(address: str) -> NoReturn:
    raise ValueError(f"{address[:80]!r} is elsewhere; a schema must be whole")


def _no_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _answer_opening(text: str) -> str:
    """The turn up to where the answer begins: a thought is closed; what is none is left out."""
    before, opening, rest = text.partition("<think>")
    if not opening or before.strip():
        return ""
    return f"{opening}{rest.partition('</think>')[0].rstrip()}\n</think>\n<answer>"


def _note(form: AnswerForm, plain: bool) -> str:
    wanted = f"JSON that fits this schema: {form.schema}" if form.schema else "one JSON object"
    if plain:
        return f"Answer with {wanted}"
    return f"Here the answer is {wanted}\nPut it between <answer> and </answer>, without \\boxed{{}} and without any other words."


def _calls_json(calls: Sequence[tuple[str, str]], answer_id: str) -> str:
    """Calls, each a name and JSON arguments, as CloudCompletion carries them."""
    listed = [
        {"id": f"call_{answer_id}_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return json.dumps({"finish_reason": "tool_calls", "tool_calls": listed}, ensure_ascii=False)
