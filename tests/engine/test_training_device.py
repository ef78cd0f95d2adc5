"""Where torch trains, and that nothing of the learning path stays behind on the processor.

Here is no graphics processor to compute on. The placement tests run the learner's layers and loss on torch's "meta" device, which has
shapes and no numbers, and watch every operation: as on a real one, its tensors may not meet those of the processor.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch
import torch.fx.experimental._config as fx_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edge.config.schema import AgentConfig
from edge.core.errors import UsageError
from edge.models.decoder import Decoder, load_decoder
from edge.models.streamed import StoredMatrix, open_streamed
from edge.training import lora
from edge.training.device import choose_device, graphics_memory, has_fast_bf16
from edge.training.learner import LoraSpec
from edge.training.loss import policy_loss, token_scores
from edge.training.torch_learner import projection_of
from tests.worlds.tiny_gguf import write_tiny_model

META = torch.device("meta")


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch):
    """Make torch report these devices."""

    def set_available(*, cuda: bool, mps: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    return set_available


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"), [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_best_available_device_is_chosen(sees, cuda: bool, mps: bool, chosen: str) -> None:
    sees(cuda=cuda, mps=mps)
    assert choose_device().type == chosen
    assert choose_device("cpu").type == "cpu"


def test_cublas_is_made_deterministic_before_it_starts(sees, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(cuda=False, mps=False)
    choose_device()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    sees(cuda=True, mps=False)
    choose_device()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


@pytest.mark.parametrize("wanted", ["cuda", "mps"])
def test_missing_device_is_refused_with_advice(sees, wanted: str) -> None:
    sees(cuda=False, mps=False)
    config = AgentConfig.model_validate({"learning": {"device": wanted}})
    with pytest.raises(UsageError, match=f"learning.device: {wanted}") as caught:
        choose_device(config.learning.device)
    assert "auto or cpu" in caught.value.hint


def test_metal_and_the_processor_share_the_machines_memory_and_metal_computes_in_fp32(tmp_path: Path) -> None:
    assert graphics_memory(torch.device("cpu")) is None
    assert graphics_memory(torch.device("mps")) is None
    flags = tmp_path / "cpuinfo"
    flags.write_text("Features : bf16\n")
    assert has_fast_bf16(torch.device("cpu"), flags)
    assert not has_fast_bf16(torch.device("mps"), flags)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "smollm3", "gemma3"])
@pytest.mark.parametrize("weights", ["resident", "streamed"])
@pytest.mark.parametrize("cached", [False, True], ids=["whole rows", "after a prompt"])
def test_layers_adapter_and_loss_stay_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, weights: str, cached: bool
) -> None:
    monkeypatch.setattr(StoredMatrix, "gather", _zeros)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _device: False)  # which does not know this device
    monkeypatch.setattr(torch, "autocast", lambda *_given, **_named: contextlib.nullcontext())
    path = write_tiny_model(tmp_path / "model.gguf", architecture).path
    decoder = load_decoder(path, device=META) if weights == "resident" else open_streamed(path, META)
    lora.inject_lora(decoder, LoraSpec(rank=4), seed=1)
    assert {tensor.device for tensor in (*decoder.parameters(), *decoder.buffers())} == {META}
    with OneDeviceAtATime(), fx_config.patch(meta_nonzero_assume_all_nonzero=True):  # a mask without values
        _loss_of(decoder, cached).backward()
    for name, parameter in lora.lora_parameters(decoder).items():
        assert parameter.grad is not None, name
        assert parameter.grad.device == META, name


def test_device_watch_refuses_mixed_device_operations() -> None:
    with OneDeviceAtATime(), pytest.raises(AssertionError, match="aten::mm"):
        torch.zeros(2, 3, device=META) @ torch.zeros(3, 2)


class OneDeviceAtATime(TorchDispatchMode):
    """Refuses operations, forward and backward, on tensors of two devices; numbers without axes and copies may cross."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor) and tensor.dim()]
        if func.overloadpacket not in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            assert len({tensor.device for tensor in given}) <= 1, f"{func.name()} on two devices"
        return func(*args, **(kwargs or {}))


def _loss_of(decoder: Decoder, cached: bool) -> torch.Tensor:
    ids = torch.zeros(2, 7, dtype=torch.long, device=META)
    past = decoder.hidden_states(ids, use_cache=True).past if cached else None
    mask = torch.ones(2, 14 if cached else 7, dtype=torch.bool, device=META)
    hidden_ND = decoder.hidden_states(ids, mask, past=past).states_BTD.flatten(0, 1)
    targets = torch.zeros(14, dtype=torch.long, device=META)
    scores = token_scores(hidden_ND, projection_of(decoder.lm_head), targets, 700, torch.bfloat16)
    weights = torch.ones(14, device=META)
    return policy_loss(scores.logprobs_N, weights, weights)


def _zeros(stored: StoredMatrix, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows made by the processor, for ids that have no numbers."""
    return torch.zeros(*ids.shape, stored.width, dtype=dtype)
