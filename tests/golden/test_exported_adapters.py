"""An exported adapter computes the same in every target: `adapters export` to llama.cpp, to transformers with peft, and to mlx-lm.

The base model begins as a Hugging Face folder, as the hub has them, and is converted to the GGUF file that is trained on; the others
read the folder. Each comparison is checked to be sharp by the same adapter under twice its scale.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from edge.cli import main
from edge.core.engines import ENGINES
from edge.core.gguf_header import read_header
from edge.core.types import AdapterRef
from edge.core.worker import EngineWorker
from edge.inference.llamacpp import LlamaCppBackend
from edge.inference.onnx_backend import OnnxBackend
from edge.models.convert import convert
from edge.models.decoder import load_decoder
from edge.training.learner import LearnerSettings, LoraSpec
from edge.training.torch_learner import TorchLearner
from tests.worlds.hf_folder import write_hf_folder
from tests.worlds.mlx_engines import require_mlx
from tests.worlds.onnx_engines import onnx_graph
from tests.worlds.trained_adapters import convert_adapter, random_groups

SUMS_NATS = 1e-3
"""Worst |Δ log p| per token between two ways of adding up float32 products."""
HALF_CACHE_NATS = 0.03
"""The same where keys and values are kept in half precision."""
VOCAB = 300
Rows = list[tuple[tuple[int, ...], tuple[int, ...]]]


@pytest.fixture(params=["qwen2", "qwen3", "llama", "smollm3", "gemma3"])
async def trained(request: pytest.FixtureRequest, tmp_path: Path):
    """A trained adapter as version 1 of a state folder, and the learner's own log-probabilities of some rows, by token."""
    folder, base = tmp_path / "hf", tmp_path / "base.gguf"
    write_hf_folder(folder, request.param)
    convert(folder, base, "f32")
    worker = EngineWorker()
    settings = LearnerSettings(learning_rate=2e-2, max_mismatch_nats=100.0, threads=1)
    learner = TorchLearner(
        load_decoder(base),
        worker,
        partial(convert_adapter, base),
        seed=5,
        lora_spec=LoraSpec(rank=4, alpha=8.0),
        settings=settings,
    )
    for step in range(4):
        assert not (await learner.update(random_groups(step, VOCAB))).skipped
    await learner.export(tmp_path / "state" / "checkpoints" / "step-000001" / "adapter", 1)
    expected = np.array([await learner.logprobs(*row) for row in _rows()])
    yield tmp_path, expected, worker
    worker.close()


def _rows() -> Rows:
    return [(group.prompt_ids, sample.token_ids) for group in random_groups(99, VOCAB) for sample in group.samples]


def _export(place: Path, form: str, out: Path) -> None:
    words = ["--format", form, "--model", str(place / "base.gguf"), "--state", str(place / "state")]
    assert main(["adapters", "export", "1", str(out), *words]) == 0


def _twice(config: Path, *keys: str) -> None:
    """Double the scale in a configuration file."""
    content = inner = json.loads(config.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] *= 2
    config.write_text(json.dumps(content))


def _log_probabilities(logits_of, rows: Rows) -> np.ndarray:
    """By token, with `logits_of` ids [T] giving [T, V]."""
    scored = []
    for prompt, response in rows:
        logits = torch.from_numpy(logits_of([*prompt, *response])).double().log_softmax(-1)
        scored.append([float(logits[len(prompt) - 1 + index, token]) for index, token in enumerate(response)])
    return np.array(scored)


@pytest.mark.parametrize("served_file", [True, False], ids=["as served", "converted"])
async def test_llama_cpp_serves_the_exported_file_as_torch_computes_it(trained, served_file: bool) -> None:
    place, expected, worker = trained
    if not served_file:  # as for an adapter that was trained where no GGUF file is written
        (place / "state" / "checkpoints" / "step-000001" / "adapter" / "adapter.gguf").unlink()
    (place / "taken").mkdir()
    _export(place, "gguf", place / "taken" / "adapter.gguf")
    backend = LlamaCppBackend(place / "base.gguf", worker, n_threads=1, n_ctx=128, max_rows=2)
    async with aclosing(backend):
        bare = np.array([await backend.score(*row) for row in _rows()])
        await backend.swap_adapter(AdapterRef(1, str(place / "taken")))
        served = np.array([await backend.score(*row) for row in _rows()])
    assert np.abs(served - expected).max() < HALF_CACHE_NATS
    assert np.abs(bare - expected).mean() > 10 * HALF_CACHE_NATS


async def test_onnx_runtime_serves_the_exported_folder_as_torch_computes_it(trained) -> None:
    place, expected, worker = trained
    if read_header(place / "base.gguf").architecture not in ENGINES["onnx"].architectures:
        pytest.skip("ONNX does not compute this architecture")
    _export(place, "peft", place / "peft")
    backend = OnnxBackend(place / "base.gguf", onnx_graph(place / "base.gguf"), worker, n_threads=1, n_ctx=128, max_rows=2)
    async with aclosing(backend):
        await backend.swap_adapter(AdapterRef(1, str(place / "peft")))
        assert np.abs(np.array([await backend.score(*row) for row in _rows()]) - expected).max() < SUMS_NATS
        _twice(place / "peft" / "adapter_config.json", "lora_alpha")
        await backend.swap_adapter(AdapterRef(2, str(place / "peft")))
        assert np.abs(np.array([await backend.score(*row) for row in _rows()]) - expected).max() > 50 * SUMS_NATS


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks transformers for it
async def test_transformers_with_peft_computes_the_exported_folder_as_our_decoder_does(trained) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    place, expected, _ = trained
    _export(place, "peft", place / "peft")

    def computed() -> np.ndarray:
        base = AutoModelForCausalLM.from_pretrained(place / "hf", dtype=torch.float32)
        model = PeftModel.from_pretrained(base, place / "peft").eval()
        with torch.no_grad():
            return _log_probabilities(lambda ids: model(torch.tensor([ids])).logits[0].numpy(), _rows())

    assert np.abs(computed() - expected).max() < SUMS_NATS
    _twice(place / "peft" / "adapter_config.json", "lora_alpha")
    assert np.abs(computed() - expected).max() > 50 * SUMS_NATS


async def test_mlx_lm_computes_the_exported_folder_as_our_decoder_does(trained) -> None:
    require_mlx()
    import mlx.core as mx
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    place, expected, _ = trained
    _export(place, "mlx", place / "mlx")

    def computed() -> np.ndarray:
        model = load_adapters(load_model(place / "hf")[0], str(place / "mlx"))
        model.eval()
        return _log_probabilities(lambda ids: np.array(model(mx.array([ids]))[0].astype(mx.float32)), _rows())

    assert np.abs(computed() - expected).max() < SUMS_NATS
    _twice(place / "mlx" / "adapter_config.json", "lora_parameters", "scale")
    assert np.abs(computed() - expected).max() > 50 * SUMS_NATS
