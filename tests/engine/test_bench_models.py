"""The models of the bench: one set of random weights for llama.cpp, for our trainer and for transformers, and prompts of exact lengths."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.core.types import Message
from edge.inference.gguf_model import GgufModel
from edge.inference.model_tokenizer import gguf_tokenizer
from edge.models.gguf_reader import open_gguf
from tools.bench.table.models import gguf_file, made_up_tokens, make_bundled, make_random, random_tensors, spec_of
from tools.bench.table.prompts import as_line, made_up_items


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_random(folder, "tiny", ["F16", "Q8_0", "Q4_K_M"], transformers=True)
    return folder


def test_the_half_precision_file_holds_exactly_the_weights_that_transformers_gets(made: Path) -> None:
    from safetensors.torch import load_file

    spec, model = spec_of("tiny"), open_gguf(gguf_file(made, "tiny", "F16"))
    assert replace(model.decoder_spec(), norm_eps=spec.norm_eps) == spec
    expected = dict(random_tensors(spec))
    theirs = load_file(made / "tiny-transformers" / "model.safetensors")
    assert theirs.keys() == expected.keys()
    for name, tensor in model.decoder_state(spec):
        assert np.array_equal(tensor.numpy(), expected[name]), name
        assert np.array_equal(theirs[name].numpy(), expected[name]), name


def test_llama_cpp_quantises_to_what_was_asked_for(made: Path) -> None:
    kinds = {
        kind: open_gguf(gguf_file(made, "tiny", kind)).tensors["blk.0.ffn_up.weight"].kind.name for kind in ("Q8_0", "Q4_K_M")
    }
    assert kinds == {"Q8_0": "Q8_0", "Q4_K_M": "Q4_K"}


def test_what_is_there_is_not_made_again_and_the_half_precision_file_goes_unless_it_is_wanted(tmp_path: Path) -> None:
    files = make_random(tmp_path, "tiny", ["Q8_0"], transformers=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tiny-q8_0.gguf"]
    before = files[0].stat().st_mtime_ns
    assert make_random(tmp_path, "tiny", ["Q8_0"], transformers=False) == files
    assert files[0].stat().st_mtime_ns == before


def test_another_version_of_the_bundled_model_is_requantised_and_converted_anew(made: Path, tmp_path: Path) -> None:
    source = tmp_path / "nano.gguf"
    shutil.copy(gguf_file(made, "tiny", "Q8_0"), source)
    first = make_bundled(tmp_path / "out", source, ["Q4_0"], transformers=True)
    assert make_bundled(tmp_path / "out", source, ["Q4_0"], transformers=True) == first
    shutil.copy(gguf_file(made, "tiny", "Q4_K_M"), source)
    second = make_bundled(tmp_path / "out", source, ["Q4_0"], transformers=True)
    assert not set(first) & set(second)
    assert all(path.exists() for path in (*first, *second))


def test_the_made_up_vocabulary_has_the_size_of_the_shape() -> None:
    tokens = made_up_tokens(151_936)
    assert len(tokens) == len(set(tokens)) == 151_936


def test_made_up_prompts_have_exactly_the_length_asked_for_and_the_same_ids_in_the_other_tokenizer(made: Path) -> None:
    from tokenizers import Tokenizer

    model = GgufModel(gguf_file(made, "tiny", "Q8_0"))
    template = gguf_tokenizer(model).template
    items = made_up_items(template, 96, 3)
    peer = Tokenizer.from_file(str(made / "tiny-transformers" / "tokenizer.json"))
    for item in items:
        ids = template.prompt_ids([Message("user", item.question)])
        text = "".join(map(model.vocabulary.text_of, ids))
        assert len(ids) == 96
        assert peer.encode(text, add_special_tokens=False).ids == ids
    assert len({item.question for item in items}) == 3
    model.close()


def test_a_line_of_made_up_items_is_a_task_file_for_the_agent(made: Path, tmp_path: Path) -> None:
    from edge.tasks.registry import open_source

    model = GgufModel(gguf_file(made, "tiny", "Q8_0"))
    items = made_up_items(gguf_tokenizer(model).template, 64, 4)
    model.close()
    file = tmp_path / "items.jsonl"
    file.write_text("\n".join(map(as_line, items)) + "\n", encoding="utf-8")
    stream = open_source(str(file)).train(0)
    assert {next(stream).question for _ in range(4)} == {item.question for item in items}
    assert json.loads(file.read_text().splitlines()[0])["task"] == "bench"
