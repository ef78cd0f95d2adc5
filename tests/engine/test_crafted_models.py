"""Forged headers and configurations are refused in one line before llama.cpp reads them; in the listing they are at worst a bad row."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.cli import main
from edge.core.errors import ModelFileError
from edge.core.gguf_header import read_header
from edge.inference.gguf_model import check_gguf_file
from edge.models.hf_folder import stored_tensors
from edge.models.quantise import quantise
from tests.worlds.changed_gguf import Parts, Tensor, changed, putting
from tests.worlds.hf_folder import write_hf_folder
from tests.worlds.tiny_gguf import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "qwen2").path


SENSELESS = {
    "block_count": ("u32", 2**32 - 1), "attention.key_length": ("u32", 15), "rope.dimension_count": ("u32", 3),
    "attention.layer_norm_rms_epsilon": ("f32", float("nan")), "rope.freq_base": ("f32", 0.0), "attention.head_count": ("u32", 0),
    "attention.head_count_kv": ("u32", 3), "embedding_length": ("u32", 0), "context_length": ("text", "abc"),
    "feed_forward_length": ("u32", 2**31),
}  # fmt: skip
FEWER_THAN_ONE = [("block_count", ("i32", 0)), ("block_count", ("i32", -3))]


@pytest.mark.parametrize(("key", "value"), [*SENSELESS.items(), *FEWER_THAN_ONE])
def test_invalid_number_is_refused_before_llama_cpp_reads_the_file(
    tiny: Path, tmp_path: Path, key: str, value: tuple[str, object]
) -> None:
    path = changed(tiny, tmp_path / "odd.gguf", putting({f"qwen2.{key}": value}))
    for opened in (check_gguf_file, lambda file: quantise(file, tmp_path / "out.gguf", "F16", threads=1)):
        with pytest.raises(ModelFileError, match=f"qwen2.{key}") as caught:
            opened(path)
        assert "\n" not in str(caught.value) and caught.value.hint


def long_array(kind: int, length: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, length)


DAMAGED: dict[str, Callable[[Parts], object]] = {
    "the key 'qwen2.block_count' twice": lambda parts: parts.values.append(("qwen2.block_count", struct.pack("<II", 4, 1))),
    "the tensor 'blk.0.attn_norm.weight' twice": lambda parts: parts.tensors.append(parts.tensors[1]),
    "lies over another one": lambda parts: setattr(parts.tensors[2], "offset", 32),
    "more weights than can be counted": lambda parts: parts.tensors.append(Tensor("x", [2**32, 2**32], 0, b"")),
    "no power of two up to 1 MiB": putting({"general.alignment": ("u32", 2**21)}),
    "alignment": putting({"general.alignment": ("text", "32")}),
    "an array of 4194304 values": putting({"a": ("raw", long_array(8, 1 << 22))}),
    "an array of 1099511627776 values": putting({"a": ("raw", long_array(4, 1 << 40))}),
}


@pytest.mark.parametrize("why", list(DAMAGED))
def test_forged_header_is_refused(tiny: Path, tmp_path: Path, why: str) -> None:
    path = changed(tiny, tmp_path / "odd.gguf", DAMAGED[why])
    with pytest.raises(ModelFileError, match=why):
        read_header(path)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_a_cut_model_is_refused_wherever_it_is_described(
    tiny: Path, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    def cut(path: Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[: int((len(whole) - 64) * share)])  # the last bytes may be padding

    file, folder = models / "file.gguf", write_hf_folder(models / "folder", shards=2).path
    file.write_bytes(tiny.read_bytes())
    cut(file)
    cut(folder / "model-00002-of-00002.safetensors")
    for command in (["show", "file"], ["show", "folder"], ["pull", str(file)], ["quantize", "file", str(tmp_path / "out.gguf")]):
        assert main(["models", *command]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and str(models) in error and "again" in error, command
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "truncated" in rows["file"]["problem"] and "safetensors" in rows["folder"]["problem"]
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert main(["models", "show", "folder"]) == 1
    assert "model-00002-of-00002" in capsys.readouterr().err


BAD_CONFIGS = {
    "inf": '{"hidden_size": Infinity}', "many": '{"num_hidden_layers": 4000000000}', "rope": '{"rope_scaling": "yarn"}',
    "list": '{"rope_parameters": [1]}', "nan": '{"num_key_value_heads": NaN}', "negative": '{"num_hidden_layers": -1}',
    "none": '{"num_attention_heads": 0}', "words": '{"hidden_size": "64"}',
}  # fmt: skip


def test_one_bad_model_does_not_break_the_listing(tiny: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tiny, models / "text.gguf", putting({"qwen2.context_length": ("text", "abc")}))
    changed(tiny, models / "key.gguf", putting({"qwen2.attention.key_length": ("text", "x")}))
    os.mkfifo(models / "pipe.gguf")
    (models / "folder.gguf").mkdir()
    for name, text in BAD_CONFIGS.items():
        folder = write_hf_folder(models / name)
        config = json.loads((folder.path / "config.json").read_text()) | json.loads(text)
        (folder.path / "config.json").write_text(json.dumps(config))
    (write_hf_folder(models / "deep").path / "config.json").write_text("[" * 200_000)
    (write_hf_folder(models / "words-deep").path / "tokenizer_config.json").write_text("[" * 200_000)
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out) if row["origin"] == "folder"}
    assert set(rows) == {"text", "key", "pipe", "folder", "deep", "words-deep", *BAD_CONFIGS}
    assert all(row.get("problem") for row in rows.values())
    for name in ("deep", "inf", "none", "text"):
        assert main(["models", "show", name]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "unexpected" not in error


@pytest.mark.parametrize(
    "head", [b"[" * 200_000, b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}']
)
def test_forged_safetensors_header_is_refused(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(64))
    with pytest.raises(ModelFileError, match="not a readable safetensors file"):
        stored_tensors(tmp_path)


def test_metadata_of_a_file_cannot_inject_terminal_codes(tiny: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[31m\nb\u202e\x9bc[bold]"
    change = putting({"general.name": ("text", evil), f"k{evil}": ("text", evil), "general.architecture": ("text", evil)})
    path = changed(tiny, models / "evil.gguf", change)
    for words in (["show", "evil"], ["list"], ["show", "evil", "--json"], ["quantize", str(path), str(models / "o.gguf")]):
        main(["models", *words])
        shown = "".join(capsys.readouterr())
        assert shown and not set(shown) & {"\x1b", "\u202e", "\x9b"}
    assert main(["models", "show", "evil", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == evil


def test_quantize_and_convert_report_why_a_name_is_refused(tiny: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(models / "full.gguf", quantised=False)
    write_hf_folder(models / "hf")
    assert main(["models", "quantize", "full", str(models / "small.gguf"), "--type", "Q8_0"]) == 0
    assert main(["models", "convert", "hf", str(models / "made.gguf")]) == 0
    capsys.readouterr()
    assert main(["models", "convert", "full", str(models / "out.bin")]) == 2
    assert "full: is a GGUF model, of which only ONNX graphs can be made" in capsys.readouterr().err
    assert main(["models", "quantize", "hf", str(models / "x.gguf")]) == 2
    assert "hf: is a folder" in capsys.readouterr().err


def test_show_prints_the_estimated_learning_memory(tiny: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tiny, models / "plain.gguf", lambda parts: None)
    changed(tiny, models / "scaled.gguf", putting({"qwen2.rope.scaling.factor": ("f32", 4.0)}))
    assert main(["models", "show", "plain", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["memory"]["learning"] > 40 * about["parameters"]
    assert main(["models", "show", "scaled"]) == 0
    assert "learning with default settings: off for this model" in capsys.readouterr().out
