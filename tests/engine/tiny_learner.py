"""A learner on a tiny random decoder, and batches for it."""

from __future__ import annotations

from pathlib import Path

import torch

from edge.core.rng import stream
from edge.core.types import TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.models.decoder import Decoder, DecoderSpec
from edge.testing.clock import ManualClock
from edge.training.learner import LearnerSettings, LoraSpec
from edge.training.torch_learner import TorchLearner

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
    """Stands in for the GGUF converter."""
    target.write_bytes(b"stub")


def tiny_learner(worker: EngineWorker, *, seed: int = 3, rank: int = 4, convert=stub_converter, **settings) -> TorchLearner:
    """A learner with small micro-batches, so that every update takes several slices."""
    chosen = {"learning_rate": 1e-2, "tokens_per_slice": 48, "max_mismatch_nats": 10.0, "threads": 1, **settings}
    return TorchLearner(
        tiny_decoder(),
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
