"""The bundled models as files: llama.cpp and torch read the same tokens and the same weights out of them."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from edge.core.errors import ModelFileError
from edge.core.types import Sampling
from edge.core.worker import EngineWorker
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import prompt_messages
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.decoder import Decoder, DecoderSpec, load_decoder
from edge.models.gguf_reader import GGUFModel, open_gguf
from edge.models.spec import permute_rows, unpermute_rows
from edge.tasks.practice import FAMILIES
from tools.nano.data import prompt_text
from tools.nano.export import write_gguf
from tools.nano.passes import is_right
from tools.nano.recipes import RECIPES
from tools.nano.tokenizer import bundled_tokenizer, tokenizer_from
from tools.nano.train import initialise

MODELS = Path(str(resources.files("edge.models") / "files"))
NAMES = ("nano-edge", "nano-edge-llama", "nano-cloud")
SIZE_LIMITS = {"nano-edge": 4e6, "nano-edge-llama": 4e6, "nano-cloud": 10e6}
TEXTS = (
    prompt_text("Maya has 14 marbles. She's found 23 more!\n\nWhat is ((14 + 23) * 3) - 8?"),
    "<think>\nStep 1: 14 + 23 = 37\n</think>\n<answer>\\boxed{37}</answer><|im_end|>",
    "</think>\nI need external assistance.<|im_end|>",
    "héllo wörld 日本語 🙂  a   b\r\n\tx 1234.5e-6",
)


class LlamaCpp:
    """Just enough of llama.cpp to compare with: ids of a text, logits of a sequence."""

    def __init__(self, path: Path) -> None:
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert self.model
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def ids(self, text: str) -> list[int]:
        raw = text.encode()
        buffer = (llama_cpp.llama_token * 2048)()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), buffer, len(buffer), False, True)
        return list(buffer[:count])

    def piece(self, token: int) -> str:
        buffer = ctypes.create_string_buffer(64)
        count = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:count].decode()

    def logits(self, ids: list[int]) -> np.ndarray:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        context = llama_cpp.llama_init_from_model(self.model, params)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        batch.n_tokens = len(ids)
        assert llama_cpp.llama_decode(context, batch) == 0
        width = llama_cpp.llama_vocab_n_tokens(self.vocab)
        rows = [llama_cpp.llama_get_logits_ith(context, place) for place in range(len(ids))]
        out = np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        return out

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)


def tokenizer_of(model: GGUFModel) -> Tokenizer:
    return tokenizer_from(model.metadata("tokenizer.ggml.tokens"), model.metadata("tokenizer.ggml.merges"))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(name: str) -> Path:
    return MODELS / f"{name}.gguf"


@pytest.fixture
def llama(path: Path) -> Iterator[LlamaCpp]:
    engine = LlamaCpp(path)
    yield engine
    engine.close()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()


def test_the_file_is_small_and_says_what_it_is(name: str, path: Path) -> None:
    model = open_gguf(path)
    assert path.stat().st_size <= SIZE_LIMITS[name]
    assert model.metadata("general.name") == name
    assert model.metadata("general.license") == "apache-2.0"
    architecture = model.metadata("general.architecture")
    assert architecture == RECIPES[name].architecture
    assert model.metadata(f"{architecture}.context_length") == 1024


def test_llama_cpp_and_tokenizers_give_the_same_ids(path: Path, llama: LlamaCpp) -> None:
    tokenizer = tokenizer_of(open_gguf(path))
    for text in TEXTS:
        assert llama.ids(text) == tokenizer.encode(text).ids


def test_tags_are_text_and_turn_marks_are_not(llama: LlamaCpp) -> None:
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        (token,) = llama.ids(tag)
        assert llama.piece(token) == tag
    (end,) = llama.ids("<|im_end|>")
    assert llama_cpp.llama_vocab_eos(llama.vocab) == end
    assert llama.piece(end) == ""


def test_the_chat_template_renders_the_prompt_of_training_and_drops_other_system_texts(path: Path) -> None:
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Environment(autoescape=False).from_string(open_gguf(path).metadata("tokenizer.chat_template"))
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    system = [{"role": "system", "content": "Be brief."}]
    assert template.render(messages=question, add_generation_prompt=True) == prompt_text("What is 2 + 3?")
    assert template.render(messages=system + question, add_generation_prompt=True) == prompt_text("What is 2 + 3?")


def test_torch_and_llama_cpp_give_the_same_log_probabilities(path: Path, llama: LlamaCpp) -> None:
    ids = llama.ids(TEXTS[0] + TEXTS[1])
    with torch.inference_mode():
        ours = log_softmax(load_decoder(path)(torch.tensor([ids]))[0].numpy())
    theirs = log_softmax(llama.logits(ids))
    places, following = np.arange(len(ids) - 1), ids[1:]
    likely = ours.max(-1) > np.log(0.5)
    assert (ours.argmax(-1) == theirs.argmax(-1))[likely].all()
    assert np.abs(np.exp(ours) - np.exp(theirs)).max() < 0.05
    assert np.median(np.abs(ours[places, following] - theirs[places, following])) < 0.02


async def test_responses_keep_the_format_and_the_cloud_llm_is_right(name: str, path: Path) -> None:
    worker = EngineWorker()
    backend = LlamaCppBackend(path, worker, n_threads=1)
    try:
        for family in FAMILIES.values():
            items = [family.generate(seed, "test", level) for level in family.levels for seed in range(4)]
            sampling = Sampling(temperature=0.0, max_tokens=320)
            groups = [backend.sample_group(prompt_messages(item, "compact"), sampling, [0]) for item in items]
            texts = [group.responses[0].text for group in await asyncio.gather(*groups)]
            limit = max(max(each.levels) for each in FAMILIES.values()) if name == "nano-cloud" else family.max_steps
            assert sum(check_format(text, limit).ok for text in texts) >= 0.9 * len(texts), family.name
            if name == "nano-cloud":
                assert sum(is_right(item, text) for text, item in zip(texts, items, strict=True)) >= 0.85 * len(items), (
                    family.name
                )
    finally:
        await backend.aclose()
        worker.close()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bundled_tokenizer()


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_written_model_reads_back_in_both_engines(architecture: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    spec = DecoderSpec(
        architecture,  # type: ignore[arg-type]
        vocab_size=tokenizer.get_vocab_size(),
        width=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        ffn_width=96,
        norm_eps=2.0**-20,
        qkv_bias=architecture == "qwen2",
    )
    torch.manual_seed(0)
    decoder = initialise(Decoder(spec))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    path = tmp_path / "tiny.gguf"
    write_gguf("tiny", spec, decoder.state_dict(), tokenizer, path)
    assert open_gguf(path).decoder_spec() == spec

    llama = LlamaCpp(path)
    ids = llama.ids(TEXTS[0])
    with torch.inference_mode():
        ours = log_softmax(load_decoder(path)(torch.tensor([ids]))[0].numpy())
    theirs = log_softmax(llama.logits(ids))
    llama.close()
    assert np.abs(ours - theirs).mean() < 0.02


def test_unpermuting_undoes_permuting() -> None:
    rows = torch.randn(4 * 16, 8)
    assert torch.equal(unpermute_rows(permute_rows(rows, 4), 4), rows)
    assert not torch.equal(permute_rows(rows, 4), rows)


def test_cached_continuation_of_padded_rows_equals_the_whole_row() -> None:
    torch.manual_seed(0)
    decoder = initialise(Decoder(DecoderSpec("qwen2", 50, 64, 2, 4, 2, 16, 96)))
    prompt, more = torch.randint(0, 50, (3, 9)), torch.randint(0, 50, (3, 5))
    lengths = [9, 6, 2]
    mask = torch.tensor([[place < length for place in range(9)] for length in lengths])
    past = decoder.hidden_states(prompt, mask, use_cache=True).past
    continued = decoder(more, torch.cat((mask, torch.ones(3, 5, dtype=torch.bool)), 1), past)
    for row, length in enumerate(lengths):
        whole = decoder(torch.cat((prompt[row, :length], more[row]))[None])[0, length:]
        torch.testing.assert_close(continued[row], whole, atol=1e-5, rtol=1e-4)


def test_a_missing_file_is_a_model_file_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such model file"):
        load_decoder(tmp_path / "none.gguf")


def test_another_kind_of_file_is_a_model_file_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("not a model")
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        load_decoder(path)


@pytest.mark.parametrize("kept_share", [0.0005, 0.005, 0.05, 0.5, 0.999])
def test_a_truncated_file_is_a_model_file_error(kept_share: float, tmp_path: Path) -> None:
    whole = (MODELS / "nano-edge.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * kept_share)])
    with pytest.raises(ModelFileError, match="damaged or truncated"):
        load_decoder(path)


def test_a_foreign_architecture_is_a_model_file_error(tmp_path: Path) -> None:
    whole = (MODELS / "nano-edge.gguf").read_bytes()
    path = tmp_path / "foreign.gguf"
    path.write_bytes(whole.replace(b"qwen2", b"whale", 1))
    with pytest.raises(ModelFileError, match="unsupported architecture 'whale'"):
        load_decoder(path)
