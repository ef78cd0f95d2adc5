"""Adapters: exact conversion for both architectures, atomic swaps, refusals of one line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edge.core.errors import AdapterError
from edge.core.types import AdapterRef, Message, Sampling
from edge.core.worker import EngineWorker, Priority
from edge.inference.adapters import write_gguf_adapter
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.decoder import Decoder
from tests.worlds.batched_engine import refuses_each
from tests.worlds.changed_gguf import Parts, changed, putting
from tests.worlds.made_up_lora import write_adapter, write_peft_adapter
from tests.worlds.tiny_gguf import TinyModel, write_tiny_model

ARCHITECTURES = ("qwen2", "qwen3", "llama", "smollm3", "gemma3")
QUESTION = [Message("user", "What is 2 + 3?")]
SAMPLING = Sampling(max_tokens=24)
ALPHA = "adapter.lora.alpha"


@pytest.fixture(params=ARCHITECTURES)
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> TinyModel:
    return write_tiny_model(tmp_path / "tiny.gguf", request.param, quantised=False)


@pytest.fixture
async def backend(tiny: TinyModel, worker: EngineWorker) -> AsyncIterator[LlamaCppBackend]:
    # on the processor: on a GPU the order of additions follows the number of rows
    backend = LlamaCppBackend(tiny.path, worker, n_threads=1, n_ctx=256, max_rows=4, gpu_layers=0)
    yield backend
    await backend.aclose()


def reference_logprobs(
    model: TinyModel, state: dict[str, np.ndarray], prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> np.ndarray:
    """Teacher-forced log-probabilities in torch float32 with the given weights."""
    decoder = Decoder(model.spec).eval()
    decoder.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
    with torch.no_grad():
        logits = decoder(torch.tensor([[*prompt, *tokens]]))[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.double(), -1)[torch.arange(len(tokens)), torch.tensor(tokens)].numpy()


ROUNDED = 0.006
"""Nats a token: flash attention rounds to half precision inside."""


async def gap(backend: LlamaCppBackend, model: TinyModel, state: dict[str, np.ndarray]) -> float:
    """Mean |Δ log p| between served and reference log-probabilities of sampled tokens."""
    group = await backend.sample_group(QUESTION, SAMPLING, [1, 2])
    differences = [
        np.abs(np.array(response.logprobs) - reference_logprobs(model, state, group.prompt_ids, response.token_ids))
        for response in group.responses
    ]
    return float(np.concatenate(differences).mean())


@pytest.mark.parametrize(("rslora", "half"), [(False, False), (True, False), (False, True)])
async def test_a_converted_adapter_serves_the_logits_of_the_merged_weights(
    backend: LlamaCppBackend, tiny: TinyModel, tmp_path: Path, rslora: bool, half: bool
) -> None:
    folder = tmp_path / "adapter"
    merged = write_peft_adapter(folder, tiny, rslora=rslora)
    if half:  # as peft saves the adapter of a bfloat16 model
        file = folder / "adapter_model.safetensors"
        save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    write_gguf_adapter(folder, tiny.path, folder / "adapter.gguf")
    assert await gap(backend, tiny, tiny.state) < ROUNDED
    await backend.swap_adapter(AdapterRef(1, str(folder)))
    assert await gap(backend, tiny, merged) < (5 if half else 1) * ROUNDED
    assert await gap(backend, tiny, tiny.state) > 0.1  # the adapter makes a difference that the comparison sees


async def test_responses_in_flight_keep_their_adapter_and_waiting_ones_get_the_new_one(
    backend: LlamaCppBackend, tiny: TinyModel, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "one", tiny, 1)
    long = Sampling(max_tokens=120)
    running = asyncio.create_task(backend.sample_group(QUESTION, long, [1, 2, 3, 4, 5, 6]))
    await asyncio.sleep(0)
    await backend.score([1, 2, 3], [4, 5, 6, 7], Priority.ROLLOUT)  # after the group in the queue: by now the group has begun
    swap = asyncio.create_task(backend.swap_adapter(adapter))
    await asyncio.sleep(0)
    later = asyncio.create_task(backend.sample_group(QUESTION, long, [1]))
    await swap
    assert {response.adapter_version for response in (await running).responses} == {0}
    assert (await later).responses[0].adapter_version == 1


async def test_swaps_under_load_never_mix_versions(backend: LlamaCppBackend, tiny: TinyModel, tmp_path: Path) -> None:
    adapters = [None, *(write_adapter(tmp_path / str(version), tiny, version, seed=version) for version in (1, 2))]
    expected = {}
    for adapter in adapters:
        await backend.swap_adapter(adapter)
        expected[backend.adapter_version] = (await backend.sample_group(QUESTION, SAMPLING, [3])).responses[0]
    tasks = []
    for turn in range(12):
        tasks += [asyncio.create_task(backend.sample_group(QUESTION, SAMPLING, [3])) for _ in range(3)]
        await asyncio.sleep(0.002)
        await backend.swap_adapter(adapters[turn % 3])
    for group in await asyncio.gather(*tasks):
        response = group.responses[0]
        assert response == expected[response.adapter_version]


def broken_adapters(folder: Path, model: TinyModel) -> list[Path]:
    """Unusable adapter folders, each named by its defect. Those made of parts of the good adapter are loaded by llama.cpp, which then gives
    nonsense."""
    good = folder / "good" / "adapter.gguf"
    write_adapter(good.parent, model, 1)
    other = write_tiny_model(folder / "other.gguf", "llama" if model.architecture == "qwen2" else "qwen2")
    write_adapter(folder / "mismatched", other, 1)
    data = good.read_bytes()
    for name, content in {"cut short": data[:-900], "corrupt": b"\0" * 100, "empty": b"", "cut in header": data[:60]}.items():
        (folder / name).mkdir()
        (folder / name / "adapter.gguf").write_bytes(content)
    changes: dict[str, Callable[[Parts], object]] = {
        "not numbers": lambda parts: parts.tensors[0].fill(np.nan),
        "without alpha": lambda parts: parts.drop(ALPHA),
        "alpha of nothing": putting({ALPHA: ("f32", 0.0)}),
        "alpha without end": putting({ALPHA: ("f32", float("inf"))}),
        "no tensors": lambda parts: parts.tensors.clear(),
    }
    for name, change in changes.items():
        (folder / name).mkdir()
        changed(good, folder / name / "adapter.gguf", change)
    names = ("missing", "mismatched", "cut short", "corrupt", "empty", "cut in header", *changes)
    return [folder / name for name in names]


async def test_an_unusable_adapter_is_refused_in_one_line_and_the_one_in_use_stays(
    backend: LlamaCppBackend, tiny: TinyModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await refuses_each(backend, write_adapter(tmp_path / "used", tiny, 7), broken_adapters(tmp_path / "broken", tiny))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"peft_type": "IA3"}, "not a LoRA"),
        ({"use_dora": True}, "use_dora"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"bias": "all"}, "biases"),
        ({"r": 5}, "rank 5"),
        ({"r": None}, "must be numbers"),
    ],
)
def test_non_lora_adapter_is_refused(tiny: TinyModel, tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    folder = tmp_path / "adapter"
    write_peft_adapter(folder, tiny)
    config = json.loads((folder / "adapter_config.json").read_text()) | change
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(AdapterError, match=complaint):
        write_gguf_adapter(folder, tiny.path, folder / "adapter.gguf")
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


async def test_two_engines_on_shared_weights_have_separate_adapters(
    backend: LlamaCppBackend, tiny: TinyModel, tmp_path: Path
) -> None:
    alone = await backend.sample_group(QUESTION, SAMPLING, [5, 6])
    other = backend.sharing_weights(max_rows=4)
    try:
        assert await other.sample_group(QUESTION, SAMPLING, [5, 6]) == alone
        await other.swap_adapter(write_adapter(tmp_path / "one", tiny, 1, seed=1))
        both = await asyncio.gather(*(one.sample_group(QUESTION, SAMPLING, [5, 6]) for one in (backend, other)))
        assert both[0] == alone
        assert both[1].responses != alone.responses
        assert (backend.adapter_version, other.adapter_version) == (0, 1)
    finally:
        await other.aclose()
    assert await backend.sample_group(QUESTION, SAMPLING, [5, 6]) == alone
