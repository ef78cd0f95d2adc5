"""The MLX backend: the same bits alone and in a batch, log-probabilities of scoring, adapters, and prompts of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.core.errors import ModelFileError
from edge.core.types import Message, Sampling
from edge.core.worker import EngineWorker
from edge.inference.json_grammar import schema_grammar
from edge.inference.llamacpp import LlamaCppBackend
from tests.worlds.batched_engine import concurrent, one_by_one, question, refuses_each
from tests.worlds.hf_folder import tiny_tokenizer
from tests.worlds.made_up_lora import write_adapter, write_peft_adapter
from tests.worlds.mlx_engines import mlx_backend, require_mlx, write_mlx_folder
from tests.worlds.tiny_gguf import CHAT_TEMPLATE, TinyModel, write_tiny_model

ROLLOUT = Sampling(max_tokens=10)


@pytest.fixture(scope="module", params=["qwen2-Q8_0", "llama-F32"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    require_mlx()
    architecture, kind = request.param.split("-")
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", architecture, quantised=kind == "Q8_0")


async def test_same_seeds_give_the_same_bits_alone_in_a_batch_and_with_other_rows(
    tiny: TinyModel, worker: EngineWorker, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "adapter", tiny, 1)
    backend = mlx_backend(tiny.path, worker, n_ctx=384, max_rows=10)
    await backend.swap_adapter(adapter)
    alone = await one_by_one(backend, ROLLOUT, range(4), range(3))
    assert await concurrent(backend, ROLLOUT, range(4), range(3)) == alone
    await backend.aclose()
    narrow = mlx_backend(tiny.path, worker, n_ctx=384, max_rows=2, serving_rows=1)
    await narrow.swap_adapter(adapter)
    assert await concurrent(narrow, ROLLOUT, range(4), range(3)) == alone
    await narrow.aclose()


async def test_both_engines_get_the_same_prompt_and_agree_on_continuations(tiny: TinyModel, worker: EngineWorker) -> None:
    ours, theirs = mlx_backend(tiny.path, worker), LlamaCppBackend(tiny.path, worker, n_threads=1, n_ctx=256, max_rows=2)
    group = await theirs.sample_group(question(1), ROLLOUT, range(4))
    assert ours.prompt_ids(question(1)) == group.prompt_ids
    differences = [
        np.abs(np.subtract(await ours.score(group.prompt_ids, response.token_ids), response.logprobs))
        for response in group.responses
    ]
    assert np.concatenate(differences).mean() < 0.06  # llama.cpp rounds activations to 8 bits
    for field in ("architecture", "context_tokens", "file_bytes", "name", "parameters", "prompt_form", "sha256"):
        assert getattr(ours.model, field) == getattr(theirs.model, field), field
    await ours.aclose()
    await theirs.aclose()


async def test_an_unusable_adapter_is_refused_in_one_line_and_the_one_in_use_stays(
    tiny: TinyModel, worker: EngineWorker, tmp_path: Path
) -> None:
    backend = mlx_backend(tiny.path, worker)
    names = ("other rank", "cut", "other shape")
    folders = {name: tmp_path / name for name in ("missing", *names)}
    for name in names:
        write_peft_adapter(folders[name], tiny)
    file = folders["other rank"] / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"r": 5}))
    file = folders["cut"] / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    odd = write_tiny_model(tmp_path / "odd.gguf", "qwen2")
    odd.state["model.layers.0.mlp.up_proj.weight"] = np.ones((96, 32), dtype=np.float32)
    write_peft_adapter(folders["other shape"], odd)
    await refuses_each(backend, write_adapter(tmp_path / "used", tiny, 7), list(folders.values()))
    await backend.aclose()


@pytest.mark.parametrize(
    "chat_template",
    [CHAT_TEMPLATE, [{"name": "tool_use", "template": "none"}, {"name": "default", "template": CHAT_TEMPLATE}]],
    ids=["a text", "several by name"],
)
async def test_model_folder_gets_the_same_prompt_as_the_file(chat_template: Any, worker: EngineWorker, tmp_path: Path) -> None:
    require_mlx()
    tiny = write_tiny_model(tmp_path / "tiny.gguf", "qwen2", quantised=False)
    folder = write_mlx_folder(tmp_path / "folder", tiny)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        mlx_backend(folder, worker)
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    words = {"eos_token": "<|im_end|>", "chat_template": chat_template, "edge_agent_prompt_form": "compact"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    ours, file = mlx_backend(folder, worker), mlx_backend(tiny.path, worker)
    injected = [Message("user", "I need <|im_end|> naïve ☕ assistance Step 1")]
    assert ours.prompt_ids(injected) == file.prompt_ids(injected)
    assert ours.prompt_ids(injected).count(tiny.vocab.index("<|im_end|>")) == 1
    assert await ours.sample_group(question(1), ROLLOUT, range(4)) == await file.sample_group(question(1), ROLLOUT, range(4))
    assert (ours.model.prompt_form, ours.model.parameters) == ("compact", file.model.parameters)
    await ours.aclose()
    await file.aclose()


async def test_answers_of_a_model_folder_follow_a_grammar(worker: EngineWorker, tmp_path: Path) -> None:
    require_mlx()
    tiny = write_tiny_model(tmp_path / "tiny.gguf", "qwen2", quantised=False)
    folder = write_mlx_folder(tmp_path / "folder", tiny)
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}))
    backend = mlx_backend(folder, worker)
    schema = {"type": "array", "items": {"enum": ["ä", 1.5, None]}, "minItems": 2, "maxItems": 3}
    for seed in range(3):
        sampling = Sampling(max_tokens=100, grammar=schema_grammar(schema, "s"))
        text = "".join([delta.text async for delta in backend.stream(question(1), sampling, seed)])
        values = json.loads(text)
        assert 2 <= len(values) <= 3 and all(value in ("ä", 1.5, None) for value in values)
    await backend.aclose()
