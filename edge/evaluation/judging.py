"""Judging one response: format, composition with the cloud's completion, correctness; what learning and evaluation have in common."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from edge.cloud.hints import Cut
from edge.core.types import AnswerKind, FinishReason, LocalResponse, Message, TaskItem
from edge.dagrpo.composition import compose
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import compact_question, user_prompt
from edge.privacy.cutting import private_cut
from edge.verifiers.verifier import PartialVerifier, Verifier

_JUDGED_ON_A_THREAD = (AnswerKind.PROGRAM, AnswerKind.MATH, AnswerKind.FEEDBACK)
UNFINISHED = (FinishReason.LENGTH, FinishReason.STEP_LIMIT, FinishReason.CANCELLED)
"""How a response ends that is cut short: a format violation (decisions 4, 17)."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What every rollout of a run has in common. `prompt_form` is the SLM's, `cloud_prompt_form` the cloud LLM's.

    `skip_unanimous_calls`: the cloud is not called for a group in which all responses ask. All of them would get the same completion and
    cost, so every Â is 0 whatever it is. `may_ask`: without it a request for help breaks the format. `hint_chars`: how much of the
    first response that asks goes along in the call (0: nothing). `price_levels`: each prompt of a rollout tells one of these prices of
    help, drawn from the seed (none: no prompt does). `price`: the price that every prompt of an evaluation tells (None: none).
    `cloud_samples`: the cloud's completion joins its group where the SLM may learn from it.
    """

    run_id: str
    seed: int
    group_size: int
    temperature: float
    max_tokens: int
    prompt_form: str
    cloud_prompt_form: str
    max_output_tokens: int
    model_alias: str = "default"
    skip_unanimous_calls: bool = False
    may_ask: bool = True
    hint_chars: int = 0
    hint_cut: Cut = private_cut
    price_levels: tuple[float, ...] = ()
    price: float | None = None
    cloud_samples: bool = False


def is_well_formed(item: TaskItem, response: LocalResponse) -> bool:
    """The local part's structure holds; truncated responses do not (decisions 3, 4, 17)."""
    return response.finish not in UNFINISHED and check_format(response.text, item.max_steps).ok


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


def cloud_messages(item: TaskItem, prompt_form: str) -> tuple[Message, ...]:
    """What the cloud LLM reads: the bare question for the bundled one, else the worded user prompt. Never the help phrase."""
    return (Message("user", compact_question(item) if prompt_form == "compact" else user_prompt(item)),)


def call_key(run_id: str, task: str, task_step: int, prompt: int, item_id: str) -> str:
    """A deterministic call key of 32 hex digits."""
    text = "\x1f".join((run_id, task, str(task_step), str(prompt), item_id))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
