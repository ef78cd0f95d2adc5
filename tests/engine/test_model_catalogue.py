"""Names and paths of models: GGUF files and MLX folders in any place, and their descriptions; graphs are exported, not named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.cli import main
from edge.core.errors import ModelFileError
from edge.models.catalogue import all_models, find_model, look_at
from tests.worlds.hf_folder import write_hf_folder
from tests.worlds.onnx_engines import require_onnx
from tests.worlds.tiny_gguf import write_tiny_model

COMMIT = "b" * 40


def cached(models: Path, repo: str) -> Path:
    return models.parent / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots" / COMMIT


def names(origin: str) -> dict[str, Path]:
    return {found.name: found.path for found in all_models() if found.origin == origin}


def test_folder_is_found_by_name_and_a_file_of_that_name_takes_precedence(models: Path) -> None:
    write_hf_folder(models / "mine")
    assert find_model("mine") == models / "mine" == names("folder")["mine"]
    file = write_tiny_model(models / "mine.gguf").path
    assert find_model("mine") == file


def test_hub_cache_folder_is_found_unless_the_repository_has_gguf_files(models: Path) -> None:
    folder = cached(models, "maker/mlx")
    write_hf_folder(folder)
    assert find_model("maker/mlx") == folder == names("hub")["maker/mlx"]
    file = write_tiny_model(folder / "tiny.gguf").path
    assert find_model("maker/mlx") == file
    assert list(names("hub").values()) == [file]


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "smollm3", "gemma3"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_folder_is_described_by_its_configuration(tmp_path: Path, architecture, tied: bool) -> None:
    folder = write_hf_folder(tmp_path / "hf", architecture, tied_embeddings=tied)
    about = look_at(folder.path)
    assert about.parameters == sum(values.numel() for values in folder.state.values())
    assert about.file_bytes == (folder.path / "model.safetensors").stat().st_size
    spec = folder.spec
    assert (about.architecture, about.context_tokens, about.vocabulary) == (architecture, spec.context_length, spec.vocab_size)
    assert about.kv_bytes_per_token == 2 * 2 * spec.layers * spec.kv_heads * spec.head_dim
    assert (about.chat_template, about.tokenizer, about.quantisation) == (True, "tokenizer.json", "SAFETENSORS")


def test_list_and_show_accept_folders(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, values in (("packed", {"quantization": {"bits": 4, "group_size": 64}}), ("odd", {"model_type": "mamba"})):
        path = write_hf_folder(models / name).path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["packed"]["quantisation"], rows["packed"]["origin"]) == ("MLX 4 bit", "folder")
    assert "'mamba'" in rows["odd"]["problem"]
    assert main(["models", "show", "packed"]) == 0
    assert "MLX 4 bit" in capsys.readouterr().out


def test_graph_is_exported_from_a_model_and_is_not_listed_as_one(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_onnx()
    write_tiny_model(models / "tiny.gguf")
    graph = models / "tiny.onnx"
    assert main(["models", "convert", "tiny", str(graph), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file_bytes"] == graph.stat().st_size > 0
    with pytest.raises(ModelFileError, match="a graph alone is no model") as caught:
        find_model(str(graph))
    assert "engine.backend onnx" in caught.value.hint
    write_hf_folder(models / "folder")
    for words, message in ((["tiny", str(graph)], "exists already"), (["folder", str(models / "f.onnx")], "made of GGUF files")):
        assert main(["models", "convert", *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["models", "convert", "nowhere", str(models / "n.onnx")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
