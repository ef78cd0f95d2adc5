"""Learning and sampling on an NVIDIA GPU, compared with the same on the processor."""

from __future__ import annotations

import pytest
import torch

from edge.config.schema import AgentConfig
from edge.core.types import Message, Sampling
from edge.core.worker import EngineWorker
from edge.inference.gguf_model import llama_offloads
from edge.models.catalogue import bundled_folder
from edge.models.decoder import load_decoder
from edge.models.streamed import open_streamed
from edge.sizing import training_device, training_memory
from edge.training.batching import Row
from edge.training.learner import LearnerSettings, UpdateRule
from edge.training.torch_learner import TorchLearner
from tests.worlds.tiny_learner import adapter_of, equal, random_groups, saved, stub_converter, tiny_learner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")
on_both = pytest.mark.skipif(not llama_offloads(), reason="llama.cpp is built for the processor alone")
NANO = bundled_folder() / "nano-edge.gguf"
GROUPS = [random_groups(seed) for seed in range(4)]
QUESTION = [Message("user", "Mia has 14 apples. She buys 23 more. How many apples does she have?")]


def test_auto_trains_on_the_gpu_within_its_own_memory() -> None:
    assert training_device(AgentConfig()).type == "cuda"
    assert 0 < training_memory(AgentConfig()) <= torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize("sharing", ["shared", "plain"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
async def test_equal_updates_give_equal_bits(worker: EngineWorker, sharing, precision, checkpointing) -> None:
    settings = {"prefix_sharing": sharing, "precision": precision, "gradient_checkpointing": checkpointing}
    learners = [tiny_learner(worker, device="cuda", **settings) for _ in range(2)]
    for learner in learners:
        for groups in GROUPS:
            assert not (await learner.update(groups)).skipped
    assert equal(*(adapter_of(learner) for learner in learners))


@pytest.mark.parametrize("objective", ["policy", "clipped", "gvpo"])
async def test_fp32_updates_are_those_of_the_processor(worker: EngineWorker, objective) -> None:
    rule = UpdateRule(objective, 1 if objective == "policy" else 3)
    on_cpu, on_gpu = (tiny_learner(worker, device=device, rule=rule) for device in ("cpu", "cuda"))
    for groups in GROUPS:
        expected, found = await on_cpu.update(groups), await on_gpu.update(groups)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-3)
    torch.testing.assert_close(adapter_of(on_gpu), adapter_of(on_cpu), rtol=1e-3, atol=1e-4)


async def test_checkpoint_moves_between_gpu_and_processor(worker: EngineWorker, tmp_path) -> None:
    on_gpu = tiny_learner(worker, device="cuda")
    await on_gpu.update(GROUPS[0])
    content = await saved(on_gpu, tmp_path / "gpu")
    for device in ("cpu", "cuda"):
        other = tiny_learner(worker, device=device)
        await other.load(tmp_path / "gpu")
        assert await saved(other, tmp_path / device) == content
        await other.update(GROUPS[1])


@on_both
async def test_sampler_and_trainer_agree_and_equal_seeds_give_equal_tokens(worker: EngineWorker, llama) -> None:
    backend = llama(NANO, n_ctx=512, max_rows=8)
    groups = [await backend.sample_group(QUESTION, Sampling(max_tokens=48), range(8)) for _ in range(2)]
    assert [one.token_ids for one in groups[0].responses] == [one.token_ids for one in groups[1].responses]
    rows = [Row(groups[0].prompt_ids, one.token_ids, one.logprobs, 0.0) for one in groups[0].responses]
    scores = {}
    for opened in (load_decoder, open_streamed):
        decoder = opened(NANO, device=torch.device("cuda"))
        learner = TorchLearner(
            decoder, worker, stub_converter, seed=1, settings=LearnerSettings(learning_rate=3e-4, precision="fp32")
        )
        scores[opened] = [await learner.logprobs(row.prompt_ids, row.token_ids) for row in rows]
    torch.testing.assert_close(scores[load_decoder], scores[open_streamed], rtol=1e-4, atol=1e-5)
    differences = [
        abs(mine - sampled)
        for row, mines in zip(rows, scores[load_decoder], strict=True)
        for mine, sampled in zip(mines, row.behaviour_logprobs, strict=True)
    ]
    assert sum(differences) / len(differences) < 0.02
