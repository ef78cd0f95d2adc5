"""The torch learner on a tiny decoder: gradients, steps, refusals and files."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import pytest
import torch

from edge.core.errors import AdapterError, StateError
from edge.core.machine import cpu_flags
from edge.core.types import FORCED, AllowedTokens, TrainingGroup, TrainingSample
from edge.core.worker import Priority
from edge.training import lora
from edge.training.batching import live_rows
from edge.training.device import choose_dtype
from edge.training.learner import LoraSpec
from tests.worlds.tiny_learner import (
    VOCAB,
    adapted,
    assert_near,
    policy_gradients,
    random_groups,
    saved,
    tiny_decoder,
    tiny_learner,
)


def _autograd_reference(groups) -> dict[str, torch.Tensor]:
    """The gradient of the written-out loss: one response at a time, no padding, no chunks."""
    decoder = tiny_decoder()
    parameters = adapted(decoder)
    for row in live_rows(groups):
        ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
        logprobs = torch.log_softmax(decoder(ids)[0], dim=-1)
        start = len(row.prompt_ids)
        total = sum((logprobs[start + t - 1, row.token_ids[t]] for t in row.learned), torch.zeros(()))
        if row.learned:
            (-row.coefficient * total).backward()
    return {name: parameter.grad for name, parameter in parameters.items()}


ONE_TOKEN = [TrainingGroup((1, 2, 3), (TrainingSample((5,), (-3.9,), 1.0), TrainingSample((6,), (-3.9,), -1.0)), 1.0)]


def _with_a_common_beginning(groups) -> list[TrainingGroup]:
    return [replace(group, prompt_ids=(*range(20), *group.prompt_ids)) for group in groups]


def _forced(groups: list[TrainingGroup], choices: str) -> list[TrainingGroup]:
    """The groups in a form that left a choice (of all tokens) at `+`, over and over."""

    def in_form(sample: TrainingSample) -> TrainingSample:
        marks = itertools.islice(itertools.cycle(choices), len(sample.token_ids))
        return replace(
            sample, allowed=AllowedTokens(tuple(0 if mark == "+" else FORCED for mark in marks), (b"\xff" * (VOCAB // 8 + 1),))
        )

    return [replace(group, samples=tuple(map(in_form, group.samples))) for group in groups]


GROUPS = {
    "random": random_groups(4),
    "one token": ONE_TOKEN,
    "choices between forced tokens": _forced(random_groups(4), "--+"),
    "one choice at the beginning": _forced(random_groups(5), "+" + 20 * "-"),
    "common beginning": _with_a_common_beginning(random_groups(4)),
    "common prompt": _with_a_common_beginning(ONE_TOKEN),
    "some without a choice": _forced(random_groups(6), 4 * "-" + 9 * "+"),
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
@pytest.mark.parametrize("tokens_per_slice", [8, 40, 10_000])
@pytest.mark.parametrize("shared", [False, True])
def test_both_passes_give_the_formulas_gradient_for_any_micro_batches(shared, tokens_per_slice, groups) -> None:
    found = policy_gradients(tiny_decoder(), groups, shared=shared, tokens_per_slice=tokens_per_slice)
    assert_near(found, _autograd_reference(groups))


def test_fresh_adapter_changes_nothing_and_only_block_linears_are_trained() -> None:
    decoder, ids = tiny_decoder(), torch.tensor([[1, 2, 3, 4]])
    before, state = decoder(ids), torch.get_rng_state()
    lora.inject_lora(decoder, LoraSpec(), seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(decoder(ids), before)
    names = lora.lora_parameters(decoder)
    assert len(names) == 2 * 7 * 2
    assert not any("lm_head" in name or "embed" in name for name in names)


async def test_update_makes_good_responses_likelier_and_bad_ones_less_likely(worker) -> None:
    learner = tiny_learner(worker, learning_rate=1e-2)
    prompt, good, bad = (1, 2, 3), (10, 11, 12), (20, 21)
    before = [sum(await learner.logprobs(prompt, tokens)) for tokens in (good, bad)]
    samples = (TrainingSample(good, (-3.9,) * 3, 0.5), TrainingSample(bad, (-3.9,) * 2, -0.5))
    for _ in range(5):
        report = await learner.update([TrainingGroup(prompt, samples, 1.0)])
        assert not report.skipped
    after = [sum(await learner.logprobs(prompt, tokens)) for tokens in (good, bad)]
    assert after[0] > before[0] + 0.1
    assert after[1] < before[1] - 0.1


async def test_probe_does_not_treat_other_failures_as_out_of_memory(worker) -> None:
    learner = tiny_learner(worker)
    with pytest.raises(ValueError, match="at least one token"):
        await learner.probe([TrainingGroup((), (TrainingSample((1,), (-1.0,), 1.0),), 1.0)])
    learner._module.model.norm.weight.data = torch.ones(5)
    with pytest.raises(RuntimeError, match="size"):
        await learner.probe(random_groups(1))


async def test_groups_without_signal_count_in_the_mean_but_not_in_the_tokens(worker) -> None:
    live = random_groups(4, prompts=1)
    dead = TrainingGroup((1, 2), (TrainingSample((3, 4), (-1.0, -1.0), 0.0),) * 2, 1.0)
    alone = await tiny_learner(worker, max_grad_norm=0.0).update(live)
    with_dead = await tiny_learner(worker, max_grad_norm=0.0).update([*live, dead])
    assert with_dead.frac_reward_zero_std == 0.5
    assert alone.frac_reward_zero_std == 0.0
    assert with_dead.tokens == alone.tokens == sum(len(sample.token_ids) for sample in live[0].samples)
    assert with_dead.grad_norm == pytest.approx(alone.grad_norm / 2, rel=1e-5)


async def test_a_mismatch_beyond_the_bound_is_refused_with_the_weights_untouched(worker, tmp_path) -> None:
    learner = tiny_learner(worker, max_mismatch_nats=0.5)
    before = await saved(learner, tmp_path)
    groups = [
        replace(group, samples=tuple(replace(s, behaviour_logprobs=(-1.0,) * len(s.token_ids)) for s in group.samples))
        for group in random_groups(4)
    ]
    report = await learner.update(groups)
    assert report.skipped.startswith("mismatch")
    assert report.mean_abs_logprob_diff > 0.5
    assert await saved(learner, tmp_path) == before


async def test_overflowing_gradient_is_refused_with_the_weights_unchanged(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    before = await saved(learner, tmp_path)
    group = random_groups(4, prompts=1)[0]
    report = await learner.update([replace(group, group_weight=1e308)])
    assert report.skipped == "non-finite gradient"
    json.dumps([getattr(report, name) for name in report.__dataclass_fields__], allow_nan=False)
    assert await saved(learner, tmp_path) == before


async def test_gradients_are_clipped_to_the_bound_and_reported_unclipped(worker) -> None:
    groups = random_groups(4)
    free = tiny_learner(worker, max_grad_norm=0.0, betas=(0.0, 0.0), eps=1e3)
    bound = tiny_learner(worker, max_grad_norm=0.01, betas=(0.0, 0.0), eps=1e3)
    reports = [await learner.update(groups) for learner in (free, bound)]
    assert reports[0].grad_norm == reports[1].grad_norm > 0.02
    steps = [_norm_of_b(learner) for learner in (free, bound)]
    assert steps[1] / steps[0] == pytest.approx(0.01 / reports[0].grad_norm, rel=1e-2)


def _norm_of_b(learner) -> float:
    state = lora.lora_state(learner._module)
    return float(torch.cat([tensor.flatten() for name, tensor in state.items() if "lora_B" in name]).norm())


async def test_a_served_request_runs_between_the_slices_of_an_update(worker) -> None:
    learner, order = tiny_learner(worker), []
    update = asyncio.create_task(learner.update(random_groups(4, prompts=6)))
    update.add_done_callback(lambda _: order.append("update"))
    await asyncio.sleep(0)
    await worker.call(lambda: order.append("served"), Priority.SERVING)
    await update
    assert order[0] == "served"


async def test_a_cancelled_update_leaves_the_weights_untouched_and_the_learner_usable(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    before = await saved(learner, tmp_path)
    gate = asyncio.Event()
    loop, loss = asyncio.get_running_loop(), learner._loss

    def loss_that_signals(scores, targets):
        loop.call_soon_threadsafe(gate.set)
        return loss(scores, targets)

    learner._loss = loss_that_signals
    update = asyncio.create_task(learner.update(random_groups(4, prompts=6)))
    await gate.wait()
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    del learner._loss
    assert await saved(learner, tmp_path) == before
    interrupted, fresh = await learner.update(random_groups(1)), await tiny_learner(worker).update(random_groups(1))
    assert interrupted == fresh


async def test_plain_and_shared_learners_report_the_same_update(worker) -> None:
    reports = [
        await tiny_learner(worker, prefix_sharing=sharing).update(random_groups(4)) for sharing in ("plain", "shared", "auto")
    ]
    for name in ("loss", "grad_norm", "entropy", "mean_abs_logprob_diff", "kl", "effective_sample_share", "tokens"):
        values = [getattr(report, name) for report in reports]
        assert values == pytest.approx([values[0]] * 3, rel=1e-4), name


async def test_bf16_gives_nearly_the_fp32_gradient(worker) -> None:
    groups = random_groups(4, prompts=6)
    norms = [(await tiny_learner(worker, precision=precision).update(groups)).grad_norm for precision in ("fp32", "bf16")]
    assert norms[1] == pytest.approx(norms[0], rel=0.05)
    assert norms[0] != norms[1]


def test_bf16_is_chosen_only_for_large_models_on_fast_hardware() -> None:
    assert choose_dtype("auto", 2_000_000, fast_bf16=True) is torch.float32
    assert choose_dtype("auto", 1_500_000_000, fast_bf16=True) is torch.bfloat16
    assert choose_dtype("auto", 1_500_000_000, fast_bf16=False) is torch.float32
    assert choose_dtype("bf16", 2_000_000, fast_bf16=False) is torch.bfloat16


def test_processor_flags_are_read_from_x86_and_arm_files(tmp_path) -> None:
    (tmp_path / "x86").write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16\n")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert "avx512_bf16" in cpu_flags(tmp_path / "x86")
    assert "bf16" in cpu_flags(tmp_path / "arm")
    assert cpu_flags(tmp_path / "absent") == frozenset()


async def test_equal_adapters_are_exported_as_equal_bytes(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(4))
    for name in ("a", "b"):
        await learner.export(tmp_path / name, 1)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


async def test_failed_export_leaves_nothing_behind(worker, tmp_path) -> None:
    def broken(_folder, _target) -> None:
        raise AdapterError("no space")

    with pytest.raises(AdapterError, match="no space"):
        await tiny_learner(worker, convert=broken).export(tmp_path / "v1", 1)
    assert list(tmp_path.iterdir()) == []


async def test_a_checkpoint_of_another_rank_is_refused(worker, tmp_path) -> None:
    await tiny_learner(worker, rank=2).save(tmp_path)
    with pytest.raises(StateError, match="rank"):
        await tiny_learner(worker).load(tmp_path)
