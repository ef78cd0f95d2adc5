"""`edge-agent adapters` on a state folder that no agent uses: real adapters and checkpoints, made-up weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edge.cli import main
from edge.core.types import AdapterRef
from edge.inference.adapters import write_gguf_adapter
from edge.testing.learner import ScriptedLearner
from tests.engine.tiny_gguf import write_tiny_model
from tests.unit.agent_world import World

RANK, ALPHA, WIDTH = 4, 8.0, 64
LAYERS = [f"model.layers.{block}.self_attn.{name}" for block in (0, 1) for name in ("q_proj", "v_proj")]


def write_peft(folder: Path, seed: int) -> None:
    """An adapter over q and v of both blocks of the tiny model."""
    random = np.random.Generator(np.random.Philox(seed))
    tensors = {}
    for layer in LAYERS:
        rows = WIDTH if "q_proj" in layer else WIDTH // 2
        tensors[f"base_model.model.{layer}.lora_A.weight"] = random.normal(size=(RANK, WIDTH)).astype(np.float32)
        tensors[f"base_model.model.{layer}.lora_B.weight"] = random.normal(size=(rows, RANK)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))


class LearnerWithFiles(ScriptedLearner):
    """Exports real files."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self._base = base

    async def export(self, folder: Path, version: int) -> AdapterRef:
        write_peft(folder, version)
        write_gguf_adapter(folder, self._base, folder / "adapter.gguf")
        return AdapterRef(version, str(folder))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base") / "tiny.gguf").path


@pytest.fixture
def world(tmp_path: Path, base: Path) -> World:
    """Four steps have been made; versions 3 and 4 are on disk and 4 serves."""
    world = World(tmp_path / "state")

    async def open_learner() -> ScriptedLearner:
        world.learners.append(LearnerWithFiles(base))
        return world.learners[-1]

    world._open_learner = open_learner  # type: ignore[method-assign]
    asyncio.run(world.learn())
    return world


def adapters(world: World, *words: str) -> int:
    return main(["adapters", *words, "--state", str(world.folder)])


def listed(world: World, capsys: pytest.CaptureFixture[str]) -> dict[int, Any]:
    capsys.readouterr()
    assert adapters(world, "list", "--json") == 0
    return {version["version"]: version for version in json.loads(capsys.readouterr().out)}


def checkpoint(world: World, step: int) -> Path:
    return world.folder / "checkpoints" / f"step-{step:06d}"


def refused(capsys: pytest.CaptureFixture[str], code: int, exit_code: int, *words: str) -> None:
    """One line on stderr with these words, nothing on stdout."""
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (exit_code, "", 1)
    assert err.startswith("error: ")
    assert all(word in err for word in words), err


def test_list_tells_what_there_is_and_what_serves(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    versions = listed(world, capsys)
    assert list(versions) == [3, 4]
    assert [(one["serving"], one["head"], one["on_line"], one["damage"]) for one in versions.values()] == [
        (False, False, True, ""),
        (True, True, True, ""),
    ]
    assert (versions[4]["base"], versions[4]["task"]) == (3, "math")
    assert versions[4]["size_bytes"] == sum(file.stat().st_size for file in checkpoint(world, 4).rglob("*") if file.is_file())


def test_a_damaged_version_is_listed_as_such_and_not_gone_back_to(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("manifest.json", "adapter/adapter_model.safetensors", "adapter/adapter.gguf", "adapter/adapter_config.json"):
        file = checkpoint(world, 3) / part
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        versions = listed(world, capsys)
        assert versions[3]["damage"] and versions[4]["damage"] == "", part
        refused(capsys, adapters(world, "rollback", "3"), 1, versions[3]["damage"])
        assert listed(world, capsys)[4]["serving"]
        file.write_bytes(whole)


def test_show_has_manifest_configuration_and_norms(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert adapters(world, "show", "4", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    tensors = load_file(checkpoint(world, 4) / "adapter" / "adapter_model.safetensors")
    for layer in LAYERS:
        a, b = (tensors[f"base_model.model.{layer}.lora_{part}.weight"].astype(np.float64) for part in "AB")
        expected = {"a": np.linalg.norm(a), "b": np.linalg.norm(b), "change": ALPHA / RANK * np.linalg.norm(b @ a)}
        assert shown["norms"][layer] == pytest.approx(expected, rel=1e-6)
    assert (shown["config"]["r"], shown["manifest"]["position"]["steps_done"]) == (RANK, 4)
    refused(capsys, adapters(world, "show", "9"), 1, "no adapter version 9", "adapters list")


def test_rollback_serves_and_learns_on_from_the_version_and_numbers_on(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert adapters(world, "rollback", "3") == 0
    versions = listed(world, capsys)
    assert [(one["version"], one["serving"], one["on_line"]) for one in versions.values()] == [(3, True, True), (4, False, False)]
    world.phases = (world.phases[0].model_copy(update={"steps": 6}),)

    async def learn() -> list[tuple[int, int]]:
        async with world.agent() as agent:
            assert agent.status().adapter_version == 3
            await agent.learn(max_steps=1)
            assert world.learners[-1].step == 4  # three updates are in version 3
            return [(step.step, step.adapter.base_version) for step in agent.steps()]

    assert asyncio.run(learn()) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3)]
    assert list(listed(world, capsys)) == [3, 4, 5]
    assert adapters(world, "rollback", "4") == 0  # what was left can be had again
    assert listed(world, capsys)[4]["serving"]


def test_rollback_to_the_bare_model_and_to_an_unknown_version(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert adapters(world, "rollback", "0", "--json") == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["head"], line["serving"]) == (0, 0)
    assert not any(one["serving"] for one in listed(world, capsys).values())
    refused(capsys, adapters(world, "rollback", "2"), 1, "no adapter version 2", "there are 3, 4")

    async def served() -> int:
        async with world.agent() as agent:
            return agent.status().adapter_version

    assert asyncio.run(served()) == 0


def test_a_missing_state_folder_is_refused_and_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["list"], ["rollback", "1"], ["export", "1", str(tmp_path / "out")]):
        refused(capsys, main(["adapters", *words, "--state", str(tmp_path / "none")]), 1, "there is no state folder")
    assert list(tmp_path.iterdir()) == []


def test_exports_hold_the_same_weights_in_each_form(world: World, tmp_path: Path, base: Path) -> None:
    source = checkpoint(world, 4) / "adapter"
    for form in ("peft", "gguf", "mlx"):
        assert adapters(world, "export", "4", str(tmp_path / form), "--format", form) == 0
    assert {file.name for file in (tmp_path / "peft").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    peft = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert (tmp_path / "gguf").read_bytes() == (source / "adapter.gguf").read_bytes()
    mlx = load_file(tmp_path / "mlx" / "adapters.safetensors")
    assert len(mlx) == len(peft) == 2 * len(LAYERS)
    for layer in LAYERS:
        for ours, theirs in (("lora_A", "lora_a"), ("lora_B", "lora_b")):
            assert np.array_equal(mlx[f"{layer}.{theirs}"], peft[f"base_model.model.{layer}.{ours}.weight"].T)
    parameters = {"rank": RANK, "scale": ALPHA / RANK, "dropout": 0.0, "keys": ["self_attn.q_proj", "self_attn.v_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters}
    assert json.loads((tmp_path / "mlx" / "adapter_config.json").read_text()) == config
    (source / "adapter.gguf").unlink()  # it is converted for the model then
    assert adapters(world, "export", "4", str(tmp_path / "a.gguf"), "--format", "gguf", "--model", str(base)) == 0
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "gguf").read_bytes()


def test_an_export_overwrites_only_when_told_and_only_adapters(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert adapters(world, "export", "4", str(out)) == 0
    before = (out / "adapter_model.safetensors").read_bytes()
    capsys.readouterr()
    refused(capsys, adapters(world, "export", "3", str(out)), 2, "exists already", "--force")
    assert (out / "adapter_model.safetensors").read_bytes() == before
    assert adapters(world, "export", "3", str(out), "--force") == 0
    assert (out / "adapter_model.safetensors").read_bytes() != before
    (out / "thesis.txt").write_text("mine")
    capsys.readouterr()
    refused(capsys, adapters(world, "export", "4", str(out), "--force"), 2, "other files in it")
    assert (out / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "state"]


def test_an_export_that_cannot_be_made_leaves_nothing(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    out = str(tmp_path / "a")
    refused(capsys, adapters(world, "export", "4", out, "--format", "onnx"), 2, "no such format", "peft, gguf, mlx")
    refused(capsys, adapters(world, "export", "7", out), 1, "no adapter version 7")
    refused(capsys, adapters(world, "export", "4", str(tmp_path / "none" / "a")), 2, "no such folder")
    (checkpoint(world, 4) / "adapter" / "adapter_model.safetensors").write_bytes(b"garbage")
    for form in ("peft", "mlx", "gguf"):
        refused(capsys, adapters(world, "export", "4", out, "--format", form), 1, "adapter_model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
