"""A finished step of learning, as its event."""

from __future__ import annotations

from dataclasses import asdict

from edge.state.events import StepFinished, StepSeconds

ZEROS = (
    "reward_mean reward_std format_ok truncated frac_reward_zero_std loss grad_norm entropy mean_abs_logprob_diff kl "
    "effective_sample_share clipped_share learning_rate at"
)
COUNTS = "masked refused cloud_calls cloud_tokens spend_uusd total_cloud_tokens adapter_version groups_trained"


def step(
    number: int, *, kept: float | None = 0.5, coverage: float = 0.8, seconds: float = 2.0, offline: bool = False
) -> StepFinished:
    zeros = dict.fromkeys(ZEROS.split(), 0.0)
    counts = dict.fromkeys(COUNTS.split(), 0)
    return StepFinished.from_json(
        dict(
            step=number,
            steps_planned=None,
            phase=0,
            phase_step=number,
            source="practice:arith",
            task="arith",
            prompts=4,
            responses=32,
            kept_accuracy=kept,
            coverage=coverage,
            joint_accuracy=0.75,
            assist_rate=1 - coverage,
            target_rate=0.3,
            dual_before=0.5,
            dual_after=0.48,
            total_cloud_calls=7,
            total_spend_uusd=1234,
            tokens=100,
            tokens_per_s=900.0,
            seconds=seconds,
            seconds_by_part=asdict(StepSeconds(seconds / 2, 0.1, seconds / 2, 0.0, 0.0, 0.0)),
            offline=offline,
            learner_skipped="",
            **zeros,
            **counts,
        )
    )
