"""`edge-agent models` against a hub on loopback. Each run is a process: huggingface_hub reads its settings once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from edge.cli import main
from tests.worlds.hf_folder import write_hf_folder
from tests.worlds.hub_server import Hub, serving
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.warm_commands import run_command

REPO = "maker/tiny-GGUF"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf").path.read_bytes()


@pytest.fixture
def hub(tiny: bytes):
    with serving(Hub({REPO: {"README.md": b"hello", "tiny-q8_0.gguf": tiny}})) as hub:
        yield hub


@pytest.fixture
def agent(tmp_path: Path, hub: Hub):
    """Runs `edge-agent models ...` with separate caches; returns (exit code, stdout, error lines)."""
    caches = {"HF_HOME": str(tmp_path / "hf"), "EDGE_AGENT_MODELS": str(tmp_path / "models"), "HF_ENDPOINT": hub.address}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_ETAG_TIMEOUT": "5", "NO_PROXY": "127.0.0.1"}
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "EDGE_AGENT_"))}

    def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
        code, out, err = run_command("edge.cli", "models", *arguments, environment=outside | caches | quiet | environment)
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(errors) == (code != 0), err
        assert "Traceback" not in err
        return code, out, "".join(errors) or err

    return run


def blobs(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "hf").rglob("blobs/*")]


def test_a_pulled_model_is_listed_shown_and_found_again_without_a_network(agent, hub: Hub, tiny: bytes) -> None:
    code, out, err = agent("pull", REPO)
    assert (code, Path(out.strip()).read_bytes()) == (0, tiny)
    assert f"--model {REPO}" in err and "without a checksum" not in err
    code, out, _ = agent("pull", REPO, HF_HUB_OFFLINE="1")
    assert (code, Path(out.strip()).read_bytes()) == (0, tiny)
    assert hub.gets == [f"{REPO}/tiny-q8_0.gguf"]
    (row,) = [row for row in json.loads(agent("list", "--json")[1]) if row["origin"] == "hub"]
    assert (row["name"], row["architecture"], row["context_tokens"], row["file_bytes"]) == (REPO, "qwen2", 512, len(tiny))
    shown = json.loads(agent("show", REPO, "--json")[1])
    assert shown["chat_template"] and shown["prompt_form"] == "compact"
    assert shown["kv_bytes_per_token"] == 2 * 2 * 2 * 2 * 16
    assert shown["memory"]["tokens"] == 512


def test_interrupted_download_resumes(agent, hub: Hub, tiny: bytes) -> None:
    large = hub.files[REPO]["tiny-q8_0.gguf"] = tiny + bytes(24 << 20)  # the library keeps what it has in pieces of 10 MiB
    hub.cut[f"{REPO}/tiny-q8_0.gguf"] = 15 << 20
    code, out, _ = agent("pull", REPO)
    assert (code, Path(out.strip()).read_bytes()) == (0, large)
    assert hub.ranges == [f"bytes={10 << 20}-"]


def test_wrong_checksum_is_reported_and_leaves_nothing(agent, hub: Hub, tmp_path: Path) -> None:
    hub.spoiled.add(f"{REPO}/tiny-q8_0.gguf")
    code, _, error = agent("pull", REPO)
    assert code == 1 and "does not have the checksum" in error and "pull it again" in error
    assert blobs(tmp_path) == []
    hub.spoiled.clear()
    assert agent("pull", REPO)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pull", "maker/nothing"), "no such model"),
        (("pull", "maker/gated"), "accepted its terms"),
        (("pull", "maker/broken"), "the hub failed (500)"),
        (("pull", REPO, "--file", "other.gguf"), "no file other.gguf"),
        (("pull", REPO, "--revision", "v9"), "no revision 'v9'"),
        (("pull", "what is this"), "OWNER/NAME"),
        (("show", "maker/nothing"), "fetch it first: edge-agent models pull maker/nothing"),
    ],
)
def test_hub_refusal_is_one_line_with_advice(agent, hub: Hub, tmp_path: Path, arguments, words: str) -> None:
    hub.statuses |= {"maker/gated": (403, "GatedRepo"), "maker/broken": (500, "")}
    code, out, error = agent(*arguments)
    assert code in (1, 2) and out == "" and words in error
    assert blobs(tmp_path) == []


def test_in_offline_mode_the_advice_is_a_local_file(agent) -> None:
    for arguments in (("pull", REPO), ("pull", REPO, "--file", "tiny-q8_0.gguf")):
        code, _, error = agent(*arguments, HF_HUB_OFFLINE="1")
        assert code == 1 and "HF_HUB_OFFLINE" in error and "edge-agent models pull PATH" in error


@pytest.mark.parametrize("arguments", [(REPO,), (REPO, "--file", "tiny-q8_0.gguf")], ids=["chosen", "named"])
def test_without_a_network_the_advice_is_a_local_file(monkeypatch, capsys, tmp_path: Path, arguments) -> None:
    """In this process, since the library itself tries for many seconds."""

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setenv("EDGE_AGENT_MODELS", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    assert main(["models", "pull", *arguments]) == 1
    error = capsys.readouterr().err
    assert "cannot be reached" in error and "edge-agent models pull PATH" in error


def test_one_of_several_files_is_chosen_or_requested(agent, hub: Hub, tiny: bytes) -> None:
    hub.files["maker/many"] = {"a-q2_k.gguf": tiny, "a-q4_k_m.gguf": tiny, "a-f16.gguf": tiny}
    hub.files["maker/vague"] = {"a-q2_k.gguf": tiny, "a-q3_k.gguf": tiny}
    assert Path(agent("pull", "maker/many")[1].strip()).name == "a-q4_k_m.gguf"
    code, _, error = agent("pull", "maker/vague")
    assert code == 2 and "--file: a-q2_k.gguf, a-q3_k.gguf" in error
    assert Path(agent("pull", "maker/vague", "--file", "a-q3_k.gguf")[1].strip()).name == "a-q3_k.gguf"


def test_safetensors_from_the_hub_are_converted_into_the_models_folder(agent, hub: Hub, tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "source", "llama", shards=2)
    hub.files["maker/tiny"] = {path.name: path.read_bytes() for path in folder.path.iterdir()} | {"pytorch_model.bin": b"no"}
    code, out, err = agent("pull", "maker/tiny")
    assert code == 0 and "models convert" in err
    assert "maker/tiny/pytorch_model.bin" not in hub.gets
    (tmp_path / "models").mkdir()
    wide, narrow = tmp_path / "models" / "wide.gguf", tmp_path / "models" / "narrow.gguf"
    assert agent("convert", out.strip(), str(wide), "--type", "f32")[0] == 0
    code, out, _ = agent("quantize", str(wide), str(narrow), "--type", "q8_0", "--threads", "1", "--json")
    written = json.loads(out)
    assert (code, written["type_name"], written["bytes_after"]) == (0, "Q8_0", narrow.stat().st_size)
    assert narrow.stat().st_size < wide.stat().st_size / 2
    names = [row["name"] for row in json.loads(agent("list", "--json")[1]) if row["origin"] == "folder"]
    assert names == ["narrow", "wide"]
    assert json.loads(agent("show", "narrow", "--json")[1])["quantisation"] == "Q8_0"


def test_local_file_is_imported_once(agent, tiny: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(tiny)
    code, out, err = agent("pull", str(tmp_path / "mine.gguf"))
    assert (code, Path(out.strip())) == (0, tmp_path / "models" / "mine.gguf") and "--model mine" in err
    (tmp_path / "mine.gguf").write_bytes(tiny + b"\0")
    code, _, error = agent("pull", str(tmp_path / "mine.gguf"))
    assert code == 2 and "--force" in error
    assert agent("pull", str(tmp_path / "mine.gguf"), "--force")[0] == 0
    assert (tmp_path / "models" / "mine.gguf").read_bytes() == tiny + b"\0"


def test_quantising_refuses_narrow_existing_or_damaged_files(agent, tiny: bytes, tmp_path: Path) -> None:
    source, out = tmp_path / "tiny.gguf", tmp_path / "out.gguf"
    source.write_bytes(tiny)
    code, _, error = agent("quantize", str(source), str(out), "--type", "Q4_K_M")
    assert code == 1 and "requantiz" in error and "f16, bf16 or f32" in error
    out.write_text("taken")
    code, _, error = agent("quantize", str(source), str(out))
    assert code == 2 and "--force" in error
    out.unlink()
    source.write_bytes(tiny[: len(tiny) // 2])
    code, _, error = agent("quantize", str(source), str(out))
    assert code == 1 and str(source) in error
