"""The torch learner on a tiny decoder: gradients, steps, refusals and files."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
import torch

from edge.core.errors import AdapterError, EdgeError, StateError
from edge.core.machine import cpu_flags
from edge.core.types import TrainingGroup, TrainingSample
from edge.core.worker import Priority
from edge.training import lora
from edge.training.batching import live_rows, targets_of
from edge.training.device import choose_dtype
from edge.training.learner import LoraSpec
from edge.training.loss import policy_loss, token_scores
from edge.training.passes import gradient_slices
from tests.engine.tiny_learner import SPEC, random_groups, tiny_decoder, tiny_learner


def _randomise_b(decoder) -> None:
    draw = torch.Generator().manual_seed(9)
    for name, parameter in lora.lora_parameters(decoder).items():
        if "lora_B" in name:
            parameter.data.normal_(0.0, 0.1, generator=draw)


def _gradients(shared: bool, tokens_per_slice: int, groups) -> dict[str, torch.Tensor]:
    decoder = tiny_decoder()
    lora.inject_lora(decoder, SPEC, seed=1)
    _randomise_b(decoder)

    def objective(hidden, targets):
        scores = token_scores(hidden, decoder.lm_head.weight, targets.ids_N)
        return policy_loss(scores.logprobs_N, targets.coefficients_N, torch.ones_like(targets.behaviour_N))

    for _ in gradient_slices(decoder, live_rows(groups), objective, tokens_per_slice, shared):
        pass
    return {name: parameter.grad for name, parameter in lora.lora_parameters(decoder).items()}


def _autograd_reference(groups) -> dict[str, torch.Tensor]:
    """The gradient of the written-out loss: one response at a time, no padding, no chunks."""
    decoder = tiny_decoder()
    lora.inject_lora(decoder, SPEC, seed=1)
    _randomise_b(decoder)
    for row in live_rows(groups):
        ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
        logprobs = torch.log_softmax(decoder(ids)[0], dim=-1)
        start = len(row.prompt_ids)
        total = sum(logprobs[start + t - 1, token] for t, token in enumerate(row.token_ids))
        (-row.coefficient * total).backward()
    return {name: parameter.grad for name, parameter in lora.lora_parameters(decoder).items()}


@pytest.mark.parametrize("tokens_per_slice", [8, 40, 10_000])
@pytest.mark.parametrize("shared", [False, True])
def test_both_passes_give_the_gradient_of_the_formula_whatever_the_micro_batches(shared, tokens_per_slice) -> None:
    groups = random_groups(4)
    expected, got = _autograd_reference(groups), _gradients(shared, tokens_per_slice, groups)
    assert expected.keys() == got.keys()
    for name, gradient in expected.items():
        assert (got[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9, name
        assert gradient.norm() > 0, name


def test_responses_of_one_token_are_learned_in_both_passes() -> None:
    samples = (TrainingSample((5,), (-3.9,), 1.0), TrainingSample((6,), (-3.9,), -1.0))
    groups = [TrainingGroup((1, 2, 3), samples, 1.0)]
    plain, shared = _gradients(False, 100, groups), _gradients(True, 100, groups)
    assert all((plain[name] - shared[name]).norm() <= 1e-5 * plain[name].norm() for name in plain)
    assert any(gradient.norm() > 0 for gradient in plain.values())


def test_a_fresh_adapter_changes_nothing_and_leaves_the_global_generator_alone() -> None:
    decoder, ids = tiny_decoder(), torch.tensor([[1, 2, 3, 4]])
    before = decoder(ids)
    state = torch.get_rng_state()
    lora.inject_lora(decoder, SPEC, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(decoder(ids), before)


def test_only_the_block_linears_are_trained() -> None:
    decoder = tiny_decoder()
    lora.inject_lora(decoder, LoraSpec(), seed=1)
    names = lora.lora_parameters(decoder)
    assert all("lora_" in name for name in names)
    assert len(names) == 2 * 7 * 2
    assert not any("lm_head" in name or "embed" in name for name in names)


def test_adapters_of_one_seed_are_equal_and_of_two_seeds_are_not() -> None:
    states = []
    for seed in (1, 1, 2):
        decoder = tiny_decoder()
        lora.inject_lora(decoder, SPEC, seed)
        states.append(lora.lora_state(decoder))
    name = next(name for name in states[0] if "lora_A" in name)
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])


async def test_an_update_makes_good_responses_more_likely_and_bad_ones_less(worker) -> None:
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


def _runs_out(learner) -> None:
    """Makes the last layer ask for more memory than there is, which fails with torch's own error."""

    def take(*_: object) -> None:
        torch.empty(1 << 60)

    learner._module.model.layers[-1].register_forward_hook(take)


async def test_a_probe_that_runs_out_of_memory_says_what_to_lower_and_keeps_nothing(worker) -> None:
    learner = tiny_learner(worker)
    _runs_out(learner)
    with pytest.raises(EdgeError, match="does not fit in memory") as caught:
        await learner.probe(random_groups(1))
    assert "learning.micro_batch_tokens" in caught.value.hint
    assert all(parameter.grad is None for parameter in learner._parameters.values())


async def test_another_failure_inside_a_probe_is_not_taken_for_a_lack_of_memory(worker) -> None:
    learner = tiny_learner(worker)
    with pytest.raises(ValueError, match="at least one token"):
        await learner.probe([TrainingGroup((), (TrainingSample((1,), (-1.0,), 1.0),), 1.0)])
    learner._module.model.norm.weight.data = torch.ones(5)
    with pytest.raises(RuntimeError, match="size"):
        await learner.probe(random_groups(1))


async def test_the_scores_of_logprobs_are_those_of_the_plain_forward_pass(worker) -> None:
    learner = tiny_learner(worker)
    expected = torch.log_softmax(tiny_decoder()(torch.tensor([[1, 2, 3, 10, 11]]))[0], -1)
    assert await learner.logprobs((1, 2, 3), (10, 11)) == pytest.approx(
        [expected[2, 10].item(), expected[3, 11].item()], abs=1e-5
    )


async def test_dead_groups_count_in_the_mean_but_not_in_the_tokens(worker) -> None:
    live = random_groups(4, prompts=1)
    dead = TrainingGroup((1, 2), (TrainingSample((3, 4), (-1.0, -1.0), 0.0),) * 2, 1.0)
    alone = await tiny_learner(worker, max_grad_norm=0.0).update(live)
    with_dead = await tiny_learner(worker, max_grad_norm=0.0).update([*live, dead])
    assert with_dead.frac_reward_zero_std == 0.5
    assert alone.frac_reward_zero_std == 0.0
    assert with_dead.tokens == alone.tokens == sum(len(sample.token_ids) for sample in live[0].samples)
    assert with_dead.grad_norm == pytest.approx(alone.grad_norm / 2, rel=1e-5)


async def test_a_batch_of_dead_groups_changes_neither_weights_nor_optimiser(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(4))
    await learner.save(tmp_path)
    before = (tmp_path / "learner.safetensors").read_bytes()
    dead = TrainingGroup((1, 2), (TrainingSample((3, 4), (-1.0, -1.0), 0.0),) * 2, 1.0)
    report = await learner.update([dead])
    await learner.save(tmp_path)
    assert report.skipped
    assert report.frac_reward_zero_std == 1.0
    assert (tmp_path / "learner.safetensors").read_bytes() == before


async def test_a_mismatch_beyond_the_bound_is_refused_with_the_weights_untouched(worker, tmp_path) -> None:
    learner = tiny_learner(worker, max_mismatch_nats=0.5)
    await learner.save(tmp_path)
    before = (tmp_path / "learner.safetensors").read_bytes()
    groups = [
        replace(group, samples=tuple(replace(s, behaviour_logprobs=(-1.0,) * len(s.token_ids)) for s in group.samples))
        for group in random_groups(4)
    ]
    report = await learner.update(groups)
    await learner.save(tmp_path)
    assert report.skipped.startswith("mismatch")
    assert report.mean_abs_logprob_diff > 0.5
    assert (tmp_path / "learner.safetensors").read_bytes() == before


async def test_a_gradient_that_overflows_is_refused_with_the_weights_untouched(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.save(tmp_path)
    before = (tmp_path / "learner.safetensors").read_bytes()
    group = random_groups(4, prompts=1)[0]
    report = await learner.update([replace(group, group_weight=1e308)])
    await learner.save(tmp_path)
    assert report.skipped == "non-finite gradient"
    json.dumps([getattr(report, name) for name in report.__dataclass_fields__], allow_nan=False)
    assert (tmp_path / "learner.safetensors").read_bytes() == before


async def test_gradients_are_clipped_to_the_bound_and_reported_unclipped(worker) -> None:
    groups = random_groups(4)
    free = tiny_learner(worker, max_grad_norm=0.0, betas=(0.0, 0.0), eps=1e3)
    bound = tiny_learner(worker, max_grad_norm=0.01, betas=(0.0, 0.0), eps=1e3)
    reports = [await learner.update(groups) for learner in (free, bound)]
    assert reports[0].grad_norm == reports[1].grad_norm > 0.02
    steps = [await _b_norm(learner) for learner in (free, bound)]
    assert steps[1] / steps[0] == pytest.approx(0.01 / reports[0].grad_norm, rel=1e-2)


async def _b_norm(learner) -> float:
    state = lora.lora_state(learner._module)
    return float(torch.cat([tensor.flatten() for name, tensor in state.items() if "lora_B" in name]).norm())


async def test_two_runs_with_the_same_inputs_are_bit_equal(worker, tmp_path) -> None:
    written = []
    for run in ("first", "second"):
        learner = tiny_learner(worker)
        for step in range(3):
            await learner.update(random_groups(step))
        folder = tmp_path / run
        folder.mkdir()
        await learner.save(folder)
        written.append((folder / "learner.safetensors").read_bytes())
    assert written[0] == written[1]


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
    await learner.save(tmp_path)
    before = (tmp_path / "learner.safetensors").read_bytes()
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
    await learner.save(tmp_path)
    assert (tmp_path / "learner.safetensors").read_bytes() == before
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


def test_bf16_is_chosen_only_where_it_is_fast_and_the_model_large() -> None:
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


async def test_an_export_is_readable_by_peft_and_holds_the_adapter(worker, tmp_path) -> None:
    from peft import PeftModel

    learner = tiny_learner(worker)
    await learner.update(random_groups(4))
    await learner.export(tmp_path / "v1", 1)
    base = tiny_decoder()
    base.prepare_inputs_for_generation = None  # peft asks every causal language model for one
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "v1"))
    ids = torch.tensor([[1, 2, 3, 10, 11]])
    expected = torch.log_softmax(loaded.base_model.model(ids)[0], -1)
    scored = await learner.logprobs((1, 2, 3), (10, 11))
    assert scored == pytest.approx([expected[2, 10].item(), expected[3, 11].item()], abs=1e-5)


async def test_equal_adapters_are_exported_as_equal_bytes(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(4))
    for name in ("a", "b"):
        await learner.export(tmp_path / name, 1)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


async def test_an_export_that_fails_leaves_nothing_behind(worker, tmp_path) -> None:
    def broken(_folder, _target) -> None:
        raise AdapterError("no space")

    with pytest.raises(AdapterError, match="no space"):
        await tiny_learner(worker, convert=broken).export(tmp_path / "v1", 1)
    assert list(tmp_path.iterdir()) == []


def test_setting_an_adapter_of_another_rank_names_the_tensor_and_changes_nothing() -> None:
    decoder, other = tiny_decoder(), tiny_decoder()
    lora.inject_lora(decoder, SPEC, seed=1)
    lora.inject_lora(other, LoraSpec(rank=2), seed=1)
    before = lora.lora_state(decoder)
    with pytest.raises(AdapterError, match="lora_"):
        lora.set_lora_state(decoder, lora.lora_state(other))
    assert all(torch.equal(tensor, before[name]) for name, tensor in lora.lora_state(decoder).items())


async def test_a_checkpoint_of_another_rank_is_refused(worker, tmp_path) -> None:
    await tiny_learner(worker, rank=2).save(tmp_path)
    with pytest.raises(StateError, match="rank"):
        await tiny_learner(worker).load(tmp_path)


def test_targets_are_flat_in_row_order() -> None:
    rows = live_rows([TrainingGroup((1,), (TrainingSample((3, 4), (-1.0, -2.0), 1.0), TrainingSample((5,), (-3.0,), -1.0)), 1.0)])
    targets = targets_of(rows, torch.device("cpu"))
    assert targets.ids_N.tolist() == [3, 4, 5]
    assert targets.behaviour_N.tolist() == [-1.0, -2.0, -3.0]
    assert targets.coefficients_N.tolist() == [1.0, 1.0, -1.0]
    assert targets.row_N.tolist() == [0, 0, 1]
