"""Judging one response (format, composition with the cloud's completion, correctness), as learning and evaluation do it, and what is
known of an item after it was judged.

A verdict is whether the reward counts the answer as right; of a mathematical answer also whether it is exactly the reference's string
and whether it is equivalent to it (None where nobody compared).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.cloud.hints import Cut
from edge.core.answer_key import OwnKey
from edge.core.forms import PlainForm, ReasonedForm, ResponseForm
from edge.core.types import AnswerKind, Message, Sampling, TaskItem
from edge.dagrpo.composition import compose
from edge.dagrpo.prompts import compact_question, prompt_messages, user_prompt
from edge.privacy.registry import private_cut
from edge.verifiers.verifier import PartialVerifier, Verifier


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item to judge. Its weight in sums is relative to the others'. `repeats`: how many further sources hold it."""

    item: TaskItem
    weight: float = 1.0
    repeats: int = 0

    @property
    def key(self) -> str:
        """Distinguishes items by all that is asked of the model: 32 hex digits."""
        item = self.item
        content = [item.id, item.family, item.question, list(item.options), item.answer, item.preamble, item.max_steps]
        if item.form is not None:
            content.append(item.form)
        if item.context:
            content.append([[message.role, message.content] for message in item.context])
        return hashlib.blake2b(json.dumps(content).encode("ascii"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """`right` decides the reward; `exact` and `equivalent` are the two readings of a mathematical answer."""

    right: bool
    exact: bool | None = None
    equivalent: bool | None = None


WRONG = Verdict(False, False, False)


@dataclass(frozen=True, slots=True)
class Bill:
    """What the cloud cost: calls (items that were answered, or charged without an answer), billed tokens, and micro-USD.

    `cached` of the calls were answered out of the coordinator's cache, which costs nothing.
    """

    calls: int = 0
    tokens: int = 0
    spend_uusd: int = 0
    cached: int = 0

    def __add__(self, other: Bill) -> Bill:
        return Bill(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.spend_uusd + other.spend_uusd,
            self.cached + other.cached,
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """One item's answers.

    `own`: the answer that was kept, wrong when it asked. `forced`: with asking made impossible. `joint`: after composition with the
    cloud's answer (None: asked, and no cloud was there to ask). `cloud`: the cloud's answer by itself, where it is known; `bill` what
    it cost. `failure`: why no answer came, or "". `too_long`: the question does not fit into the context, which is a wrong answer.
    `tokens` is the length of the response; `help_log_odds` log p/(1-p) of asking at its decision. `answer`: the final answer of `forced`,
    shortened.
    """

    asked: bool
    format_ok: bool
    own: Verdict
    forced: Verdict
    joint: Verdict | None
    cloud: Verdict | None
    tokens: int
    help_log_odds: float | None
    bill: Bill = Bill()
    failure: str = ""
    too_long: bool = False
    answer: str = ""
    doubt: float | None = None
    """What of `help_log_odds` is the model's doubt in a plain answer (nats); None where that has no part in the decision."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Judged:
        """From what `to_json` made. Raises KeyError, TypeError or ValueError for anything else."""
        fields = {name: None if data[name] is None else Verdict(**data[name]) for name in ("own", "forced", "joint", "cloud")}
        return cls(**{**data, **fields, "bill": Bill(**data["bill"])})


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """A candidate with what became known of it."""

    candidate: Candidate
    judged: Judged

    @property
    def item(self) -> TaskItem:
        """The question."""
        return self.candidate.item

    @property
    def weight(self) -> float:
        """Its weight in sums."""
        return self.candidate.weight


_JUDGED_ON_A_THREAD = (AnswerKind.PROGRAM, AnswerKind.MATH, AnswerKind.FEEDBACK)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What every rollout of a run has in common."""

    run_id: str
    seed: int
    group_size: int
    temperature: float
    max_tokens: int
    prompt_form: str
    """The form of the SLM's prompts."""
    cloud_prompt_form: str
    """The form of the cloud LLM's prompts."""
    max_output_tokens: int
    model_alias: str = "default"
    skip_unanimous_calls: bool = False
    """Do not call the cloud for a group in which all responses ask: all would get the same completion and cost, so every Â is 0."""
    may_ask: bool = True
    """Without it a request for help breaks the format."""
    hint_chars: int = 0
    """How much of the first response that asks is sent along with the call; 0: nothing."""
    hint_cut: Cut = private_cut
    cloud_samples: bool = False
    """The cloud's completion joins its group where the SLM may learn from it."""
    given_options: bool = False
    """Where a plain answer is one of few options, learn the right one by its likelihood, in place of the sampled ones."""
    guided: bool | None = False
    """Responses are held to the form of their question; else they are free, and their format is judged. None: guided where the loaded model
    reads full prompts."""

    step_tokens: int = 0
    """Sampled tokens after which a step takes no further group; 0: no limit."""
    certainty: float = 0.0
    """How much the certainty of a plain answer counts in the decision to ask (Sampling.certainty)."""

    def sampling(self, item: TaskItem, *, help_bias: float = 0.0, suppress_help: bool = False) -> Sampling:
        """How responses to a question are sampled, in learning and in evaluations."""
        return Sampling(
            self.temperature,
            self.tokens_of(item),
            max_steps=item.max_steps,
            help_bias=help_bias,
            suppress_help=suppress_help,
            exact=not suppress_help,
            certainty=self.certainty,
            form=self.form_of(item),
        )

    def tokens_of(self, item: TaskItem) -> int:
        """The limit of a response's tokens. Of a plain answer as many as the longest right answer has characters, and some: that is about
        four times its tokens, for a sentence around it, and what follows is not judged."""
        form, key = self.form_of(item), OwnKey.from_json(item.answer) if item.kind is AnswerKind.FEEDBACK else None
        right = (item.answer,) if item.kind is not AnswerKind.FEEDBACK else key.right if key else ()
        if not isinstance(form, PlainForm) or form.options or not right:
            return self.max_tokens
        return min(self.max_tokens, max(_FEWEST_PLAIN_TOKENS, *map(len, right)))

    def form_of(self, item: TaskItem) -> ResponseForm | None:
        """The form that responses to a question are held to; None: they are free.

        Compact models know the reasoned form alone, and answer a person's own questions freely.
        """
        compact = self.prompt_form == "compact"
        if not self.guided or (compact and item.kind is AnswerKind.FEEDBACK):
            return None
        if (item.form or item.kind.form) == "plain" and not compact:
            return PlainForm(item.options)
        program = item.kind is AnswerKind.PROGRAM
        form = ReasonedForm(item.max_steps, program)
        return replace(form, answer_tokens=min(_PROGRAM_TOKENS if program else form.answer_tokens, self.max_tokens // 2))

    def messages(self, item: TaskItem) -> tuple[Message, ...]:
        """What the SLM reads of a question."""
        return prompt_messages(item, self.prompt_form, plain=isinstance(self.form_of(item), PlainForm))


_PROGRAM_TOKENS, _FEWEST_PLAIN_TOKENS = 160, 24


def composed_text(local: str, cloud: str | None) -> str:
    """C(y^θ, y^c); a policy other than the response's own request replaces the whole response."""
    if cloud is None:
        return local
    composed = compose(local, cloud)
    return cloud if composed == local else composed


async def judge(verifier: Verifier, item: TaskItem, text: str) -> bool:
    """The verifier's verdict; what runs or compares in a process of its own is awaited on a thread, so that serving goes on."""
    if item.kind in _JUDGED_ON_A_THREAD:
        return await asyncio.to_thread(verifier.is_correct, item, text)
    return verifier.is_correct(item, text)


async def is_judged(verifier: Verifier, item: TaskItem, text: str) -> bool:
    """Whether anybody knows if the text is right; in doubt about a person's own question nobody does."""
    if item.kind is not AnswerKind.FEEDBACK or not isinstance(verifier, PartialVerifier):
        return True
    return await asyncio.to_thread(verifier.is_rated, item, text)


CLOUD_TEMPERATURE = 0.0
"""At which learning and evaluations ask the cloud LLM: a step that is made again, and a recording, find the same answer."""


def cloud_messages(item: TaskItem, prompt_form: str) -> tuple[Message, ...]:
    """What the cloud LLM reads: the bare question for the bundled one, else the conversation with the worded user prompt. Never the help
    phrase."""
    if prompt_form == "compact":
        return (Message("user", compact_question(item)),)
    return (*item.context, Message("user", user_prompt(item)))


def call_key(run_id: str, task: str, task_step: int, prompt: int, item_id: str) -> str:
    """A deterministic call key of 32 hex digits."""
    text = "\x1f".join((run_id, task, str(task_step), str(prompt), item_id))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
