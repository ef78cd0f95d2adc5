"""The models of the bench: one set of random weights for llama.cpp, our trainer and transformers, and prompts of exact lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.core.types import Message
from edge.inference.gguf_model import GgufModel
from edge.inference.model_tokenizer import gguf_tokenizer
from edge.models.gguf_reader import open_gguf
from tools.bench.table.models import gguf_file, make_random, random_tensors, spec_of
from tools.bench.table.prompts import made_up_items


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_random(folder, "tiny", ["F16", "Q8_0"], transformers=True)
    return folder


def test_half_precision_file_has_exactly_the_weights_given_to_transformers(made: Path) -> None:
    from safetensors.torch import load_file

    spec, model = spec_of("tiny"), open_gguf(gguf_file(made, "tiny", "F16"))
    assert replace(model.decoder_spec(), norm_eps=spec.norm_eps) == spec
    expected = dict(random_tensors(spec))
    theirs = load_file(made / "tiny-transformers" / "model.safetensors")
    assert theirs.keys() == expected.keys()
    for name, tensor in model.decoder_state(spec):
        assert np.array_equal(tensor.numpy(), expected[name]), name
        assert np.array_equal(theirs[name].numpy(), expected[name]), name


def test_generated_prompts_have_the_exact_length_and_equal_ids_in_both_tokenizers(made: Path) -> None:
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
