"""Evaluating an adapter on held-out items at temperature 0. Knows the four accuracies and what each means; knows nothing of training.

kept_accuracy: right among answers that did not ask, with its coverage. forced_local_accuracy: right on all items when asking is
impossible. joint_accuracy: right after composition with the cloud. Every accuracy travels with the realised assist rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.agent.cloud import CloudDesk
from edge.agent.gathering import all_of
from edge.agent.rollout import RolloutSettings, call_key, cloud_messages, composed_text, is_well_formed, judge
from edge.core.types import FinishReason, LocalResponse, Sampling, TaskItem
from edge.dagrpo.metrics import wilson_interval
from edge.dagrpo.prompts import HELP_PHRASE, prompt_messages
from edge.inference.backend import InferenceBackend
from edge.routing.policy import OffloadPolicy
from edge.rpc.client import CloudCall, CloudCompletion
from edge.verifiers.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares in [0, 1] over `items`; None where nothing was counted. `cloud_failures`: asked, but refused or failed."""

    items: int
    assist_rate: float
    coverage: float
    kept_accuracy: float | None
    forced_local_accuracy: float
    joint_accuracy: float | None
    format_ok: float
    cloud_failures: int


@dataclass(frozen=True, slots=True)
class LevelScores:
    """The scores of one difficulty level."""

    level: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class EvalReport:
    """One evaluation. Intervals are 95 % Wilson intervals; spend in micro-USD."""

    source: str
    task: str
    model: str
    adapter_version: int
    scores: Scores
    kept_interval: tuple[float, float] | None
    forced_local_interval: tuple[float, float]
    joint_interval: tuple[float, float] | None
    by_level: tuple[LevelScores, ...]
    with_cloud: bool
    cloud_calls: int
    cloud_tokens: int
    spend_uusd: int
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Judged:
    """One item's answers: by its own decision, forced local, and after composition (None without a cloud answer)."""

    item: TaskItem
    asked: bool
    format_ok: bool
    own_correct: bool
    forced_correct: bool
    joint_correct: bool | None
    completion: CloudCompletion | None


class Evaluation:
    """Evaluates whatever adapter the backend uses. Without a cloud desk the joint accuracy is not known."""

    def __init__(
        self,
        backend: InferenceBackend,
        verifier: Verifier,
        policy: OffloadPolicy,
        settings: RolloutSettings,
        cloud: CloudDesk | None,
    ) -> None:
        self._backend = backend
        self._verifier = verifier
        self._policy = policy
        self._settings = settings
        self._cloud = cloud

    async def run(
        self,
        source: str,
        items: Sequence[TaskItem],
        tag: str,
        on_item: Callable[[int], None] = lambda done: None,
    ) -> EvalReport:
        """Evaluate all items at once (the engine batches them). `tag` tells this evaluation's cloud calls from others'."""
        done = 0

        async def one(item: TaskItem) -> _Judged:
            nonlocal done
            judged = await self._judge(item, tag)
            done += 1
            on_item(done)
            return judged

        return self._report(source, await all_of(one(item) for item in items))

    async def _judge(self, item: TaskItem, tag: str) -> _Judged:
        response = await self._sample(item, suppress_help=False)
        format_ok = is_well_formed(item, response)
        asked = response.finish is FinishReason.EOS and self._policy.wants_cloud(item, response)
        own_correct = format_ok and not asked and await judge(self._verifier, item, response.text)
        forced_correct = own_correct
        if HELP_PHRASE.rstrip(".").lower() in response.text.lower():
            forced = await self._sample(item, suppress_help=True)
            forced_correct = is_well_formed(item, forced) and await judge(self._verifier, item, forced.text)
        if not asked or self._cloud is None:
            return _Judged(item, asked, format_ok, own_correct, forced_correct, own_correct if not asked else None, None)
        outcome = await self._cloud.ask(self._call(item, tag))
        text = outcome.completion.text if outcome.completion else None
        joint = text is not None and await judge(self._verifier, item, composed_text(response.text, text))
        return _Judged(item, asked, format_ok, own_correct, forced_correct, joint, outcome.completion)

    async def _sample(self, item: TaskItem, suppress_help: bool) -> LocalResponse:
        settings = self._settings
        sampling = Sampling(0.0, settings.max_tokens, max_steps=item.max_steps, suppress_help=suppress_help)
        group = await self._backend.sample_group(prompt_messages(item, settings.prompt_form), sampling, [0])
        return group.responses[0]

    def _call(self, item: TaskItem, tag: str) -> CloudCall:
        settings = self._settings
        return CloudCall(
            call_key=call_key(settings.run_id, f"eval {tag}", 0, 0, item.id),
            task=item.task,
            step=-1,
            prompt_id=f"eval:{tag}:{item.id}",
            help_units=1,
            messages=cloud_messages(item, settings.cloud_prompt_form),
            max_output_tokens=settings.max_output_tokens,
            model_alias=settings.model_alias,
        )

    def _report(self, source: str, judged: Sequence[_Judged]) -> EvalReport:
        completions = [one.completion for one in judged if one.completion is not None and not one.completion.cached]
        scores = _scores(judged, self._cloud is not None)
        kept = [one for one in judged if not one.asked]
        levels = sorted({one.item.level for one in judged})
        joint_right = sum(bool(one.joint_correct) for one in judged)
        return EvalReport(
            source=source,
            task=judged[0].item.task if judged else "",
            model=self._backend.model.name,
            adapter_version=self._backend.adapter_version,
            scores=scores,
            kept_interval=wilson_interval(sum(one.own_correct for one in kept), len(kept)) if kept else None,
            forced_local_interval=wilson_interval(sum(one.forced_correct for one in judged), len(judged)),
            joint_interval=wilson_interval(joint_right, len(judged)) if scores.joint_accuracy is not None else None,
            by_level=tuple(
                LevelScores(level, _scores([one for one in judged if one.item.level == level], self._cloud is not None))
                for level in levels
            ),
            with_cloud=self._cloud is not None,
            cloud_calls=len(completions),
            cloud_tokens=sum(one.usage.input_tokens + one.usage.output_tokens for one in completions),
            spend_uusd=sum(one.charged_uusd for one in completions),
        )


def _scores(judged: Sequence[_Judged], with_cloud: bool) -> Scores:
    count = max(1, len(judged))
    kept = [one for one in judged if not one.asked]
    knows_joint = with_cloud or all(one.joint_correct is not None for one in judged)
    return Scores(
        items=len(judged),
        assist_rate=1.0 - len(kept) / count if judged else 0.0,
        coverage=len(kept) / count,
        kept_accuracy=sum(one.own_correct for one in kept) / len(kept) if kept else None,
        forced_local_accuracy=sum(one.forced_correct for one in judged) / count,
        joint_accuracy=sum(bool(one.joint_correct) for one in judged) / count if knows_joint else None,
        format_ok=sum(one.format_ok for one in judged) / count,
        cloud_failures=sum(one.asked and one.completion is None for one in judged) if with_cloud else 0,
    )


def with_seconds(report: EvalReport, seconds: float) -> EvalReport:
    """The report with how long it took."""
    return replace(report, seconds=seconds)
