"""The ONNX graph computes the same as the torch decoder, with and without an adapter, in any batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from edge.core.errors import AdapterError, ModelFileError
from edge.core.worker import EngineWorker
from edge.inference.llamacpp import LlamaCppBackend
from edge.inference.onnx_backend import BUCKET, OnnxBackend, OnnxEngine, OnnxGraph
from edge.models.decoder import Decoder, load_decoder
from tests.worlds.made_up_lora import write_peft_adapter
from tests.worlds.onnx_engines import onnx_backend, onnx_graph
from tests.worlds.tiny_gguf import TinyModel, write_tiny_model

TOLERANCE = 2e-4
"""Largest difference of a logit: float32 sums in another order."""


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama", "smollm3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_model(tmp_path_factory.mktemp(request.param) / "tiny.gguf", request.param)


@pytest.fixture
def engine(tiny: TinyModel) -> OnnxEngine:
    return OnnxEngine(OnnxGraph(onnx_graph(tiny.path), n_threads=1), rows=4, n_ctx=128)


def reference(decoder: Decoder, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return decoder(torch.tensor([ids]))[0, -1].numpy()


def one_more(engine: OnnxEngine, tokens: list[int], positions: list[int]) -> np.ndarray:
    return engine.decode(np.array(tokens, dtype=np.int32), np.array(positions, dtype=np.int32))


def test_prompts_forks_and_further_tokens_match_torch_logits(engine: OnnxEngine, tiny: TinyModel) -> None:
    decoder = load_decoder(tiny.path)
    short, long = [5, 9, 200], [(7 * index) % 300 for index in range(BUCKET + 3)]
    assert np.abs(engine.prefill(0, short) - reference(decoder, short)).max() < TOLERANCE
    assert np.abs(engine.prefill(1, long) - reference(decoder, long)).max() < TOLERANCE
    engine.fork(0, 2, len(short))
    rows = {0: [*short, 11], 1: [*long, 12], 2: [*short, 13]}
    for token in (21, 22):
        logits = one_more(engine, [ids[-1] for ids in rows.values()], [len(ids) - 1 for ids in rows.values()])
        for row, ids in rows.items():
            assert np.abs(logits[row] - reference(decoder, ids)).max() < TOLERANCE
            ids.append(token + row)


def test_row_gives_the_same_bits_alone_and_in_a_batch(engine: OnnxEngine) -> None:
    for row in range(4):
        engine.prefill(row, [row + 1, 8, 9][: row + 1])
    together = one_more(engine, [3, 4, 5, 6], [1, 2, 3, 3]).copy()
    engine.prefill(0, [1])
    assert np.array_equal(one_more(engine, [3], [1])[0], together[0])


def test_adapter_equals_merged_weights_and_can_be_removed(engine: OnnxEngine, tiny: TinyModel, tmp_path: Path) -> None:
    merged = write_peft_adapter(tmp_path, tiny)
    decoder, ids = load_decoder(tiny.path), [5, 9, 200, 17]
    bare = engine.prefill(0, ids)
    engine.use_adapter(engine.load_adapter(tmp_path))
    adapted = engine.prefill(0, ids)
    decoder.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in merged.items()})
    assert np.abs(adapted - reference(decoder, ids)).max() < TOLERANCE < np.abs(adapted - bare).max() / 100
    engine.use_adapter(None)
    assert np.array_equal(engine.prefill(0, ids), bare)


def test_incompatible_model_or_adapter_is_refused(engine: OnnxEngine, tiny: TinyModel, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", "qwen3" if tiny.architecture != "qwen3" else "llama")
    write_peft_adapter(tmp_path / "adapter", other)
    with pytest.raises(AdapterError, match="does not fit"):
        engine.load_adapter(tmp_path / "adapter")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(ModelFileError, match="cannot use it"):
        OnnxGraph(tmp_path / "junk.onnx", n_threads=1)
    same_shape = write_tiny_model(tmp_path / "same.gguf", tiny.architecture, seed=2)
    worker = EngineWorker()
    with pytest.raises(ModelFileError, match="was not made of"):
        OnnxBackend(same_shape.path, onnx_graph(tiny.path), worker, n_threads=1)
    worker.close()


def test_model_is_described_like_its_file(tiny: TinyModel) -> None:
    worker = EngineWorker()
    served, reference = onnx_backend(tiny.path, worker), LlamaCppBackend(tiny.path, worker, n_threads=1, n_ctx=64, max_rows=1)
    assert served.model == reference.model
    worker.close()
