"""A learner on a tiny random decoder, batches for it, and what it has learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from edge.core.rng import stream
from edge.core.types import TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.models.decoder import Decoder, DecoderSpec
from edge.testing.clock import ManualClock
from edge.training import lora
from edge.training.batching import live_rows
from edge.training.learner import LearnerSettings, LoraSpec
from edge.training.loss import policy_loss, token_scores
from edge.training.passes import gradient_slices
from edge.training.torch_learner import TorchLearner, projection_of

torch.set_num_threads(1)  # tiny products gain nothing from threads, and test machines are busy

VOCAB = 48
SPEC = LoraSpec(rank=4, alpha=8.0)


def tiny_decoder(seed: int = 1) -> Decoder:
    """Two layers, grouped key/value heads, random weights."""
    spec = DecoderSpec("qwen2", VOCAB, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn_width=48)
    decoder = Decoder(spec)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2, generator=draw)
    return decoder.eval()


def stub_converter(_peft_folder: Path, target: Path) -> None:
    """Replaces the GGUF converter."""
    target.write_bytes(b"stub")


def tiny_learner(
    worker: EngineWorker, *, seed: int = 3, rank: int = 4, convert=stub_converter, device: str = "cpu", **settings
) -> TorchLearner:
    """A learner with small micro-batches, so that every update takes several slices."""
    chosen = {
        "learning_rate": 1e-2,
        "imitation_rate": 1e-2,
        "tokens_per_slice": 48,
        "max_mismatch_nats": 10.0,
        "threads": 1,
        **settings,
    }
    return TorchLearner(
        tiny_decoder().to(device),
        worker,
        convert,
        seed=seed,
        lora_spec=LoraSpec(rank=rank, alpha=8.0),
        settings=LearnerSettings(**chosen),
        clock=ManualClock(),
    )


def random_groups(seed: int, prompts: int = 3, group_size: int = 4) -> list[TrainingGroup]:
    """Groups of random tokens with centred advantages and behaviour log-probabilities near the uniform one."""
    draw = stream(seed, "groups")
    groups = []
    for _ in range(prompts):
        advantages = [draw.gauss(0, 1) for _ in range(group_size)]
        mean = sum(advantages) / group_size
        samples = tuple(_sample(draw, advantage - mean) for advantage in advantages)
        prompt = tuple(draw.randrange(VOCAB) for _ in range(draw.randint(2, 9)))
        groups.append(TrainingGroup(prompt, samples, 1 / (group_size - 1)))
    return groups


def _sample(draw, advantage: float) -> TrainingSample:
    length = draw.randint(1, 11)
    tokens = tuple(draw.randrange(VOCAB) for _ in range(length))
    return TrainingSample(tokens, tuple(-3.9 + draw.gauss(0, 0.3) for _ in range(length)), advantage)


async def saved(learner: TorchLearner, folder: Path) -> bytes:
    """Everything that a learner carries from step to step, as stored in its checkpoint."""
    folder.mkdir(exist_ok=True)
    await learner.save(folder)
    return (folder / "learner.safetensors").read_bytes()


def adapter_of(learner: TorchLearner) -> list[torch.Tensor]:
    """Copies of the adapter's matrices."""
    return [tensor.clone() for tensor in lora.lora_state(learner._module).values()]


def equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Whether the same tensors are equal, bit for bit."""
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def adapted(decoder: Decoder) -> dict[str, torch.nn.Parameter]:
    """Put an adapter into a decoder whose B is not zero; its parameters by name."""
    lora.inject_lora(decoder, SPEC, seed=1)
    draw, parameters = torch.Generator().manual_seed(9), lora.lora_parameters(decoder)
    with torch.no_grad():
        for name, parameter in parameters.items():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1, generator=draw)
    return parameters


def policy_gradients(
    decoder: Decoder,
    groups: Sequence[TrainingGroup],
    *,
    shared: bool,
    tokens_per_slice: int = 48,
    vocab_chunk: int = 1 << 22,
    bf16: bool = False,
) -> dict[str, torch.Tensor]:
    """The gradient of the policy loss that one batch gives the adapter, slice by slice as in an update."""
    parameters, projection = adapted(decoder), projection_of(decoder.lm_head)

    def objective(hidden, targets):
        scores = token_scores(hidden, projection, targets.ids_N, vocab_chunk)
        return policy_loss(scores.logprobs_N, targets.coefficients_N, torch.ones_like(targets.behaviour_N))

    slices, done = gradient_slices(decoder, live_rows(groups), objective, tokens_per_slice, shared), False
    while not done:  # a slice is a context of its own, as on the engine worker
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            done = next(slices, True)
    return {name: parameter.grad for name, parameter in parameters.items()}


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Gradients that agree to the rounding of sums in another order, and are not all nothing."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name
        assert gradient.norm() > 0, name
