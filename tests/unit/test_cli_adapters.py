"""`edge-agent adapters` on an idle state folder: real adapters and checkpoints with made-up weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edge.core.types import AdapterRef
from edge.inference.adapters import write_gguf_adapter
from edge.testing.learner import ScriptedLearner
from tests.unit.conftest import EdgeAgent, Ended
from tests.worlds.agent import World
from tests.worlds.tiny_gguf import write_tiny_model

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


Adapters = Callable[..., Ended]


@pytest.fixture
def adapters(world: World, edge_agent: EdgeAgent) -> Adapters:
    """Runs `edge-agent adapters` on the world's folder."""
    return lambda *words: edge_agent("adapters", *words, "--state", str(world.folder))


def listed(adapters: Adapters) -> dict[int, Any]:
    return {version["version"]: version for version in adapters("list", "--json").json}


def checkpoint(world: World, step: int) -> Path:
    return world.folder / "checkpoints" / f"step-{step:06d}"


def test_list_shows_all_versions_and_the_active_one(world: World, adapters: Adapters) -> None:
    versions = listed(adapters)
    assert list(versions) == [3, 4]
    assert [(one["serving"], one["head"], one["on_line"], one["damage"]) for one in versions.values()] == [
        (False, False, True, ""),
        (True, True, True, ""),
    ]
    assert (versions[4]["base"], versions[4]["task"]) == (3, "math")
    assert versions[4]["size_bytes"] == sum(file.stat().st_size for file in checkpoint(world, 4).rglob("*") if file.is_file())


def test_damaged_version_is_listed_as_damaged_and_rollback_to_it_refused(world: World, adapters: Adapters) -> None:
    for part in ("manifest.json", "adapter/adapter_model.safetensors", "adapter/adapter.gguf", "adapter/adapter_config.json"):
        file = checkpoint(world, 3) / part
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        versions = listed(adapters)
        assert versions[3]["damage"] and versions[4]["damage"] == "", part
        adapters("rollback", "3").refused(1, versions[3]["damage"])
        assert listed(adapters)[4]["serving"]
        file.write_bytes(whole)


def test_show_has_manifest_configuration_and_norms(world: World, adapters: Adapters) -> None:
    shown = adapters("show", "4", "--json").json
    tensors = load_file(checkpoint(world, 4) / "adapter" / "adapter_model.safetensors")
    for layer in LAYERS:
        a, b = (tensors[f"base_model.model.{layer}.lora_{part}.weight"].astype(np.float64) for part in "AB")
        expected = {"a": np.linalg.norm(a), "b": np.linalg.norm(b), "change": ALPHA / RANK * np.linalg.norm(b @ a)}
        assert shown["norms"][layer] == pytest.approx(expected, rel=1e-6)
    assert (shown["config"]["r"], shown["manifest"]["position"]["steps_done"]) == (RANK, 4)
    adapters("show", "9").refused(1, "no adapter version 9", "adapters list")


def test_rollback_serves_the_version_and_learning_continues_from_it(world: World, adapters: Adapters) -> None:
    assert adapters("rollback", "3").code == 0
    versions = listed(adapters)
    assert [(one["version"], one["serving"], one["on_line"]) for one in versions.values()] == [(3, True, True), (4, False, False)]
    world.phases = (world.phases[0].model_copy(update={"steps": 6}),)

    async def learn() -> list[tuple[int, int]]:
        async with world.agent() as agent:
            assert agent.status().adapter_version == 3
            await agent.learn(max_steps=1)
            assert world.learners[-1].step == 4  # three updates are in version 3
            return [(step.step, step.adapter.base_version) for step in agent.components.state.steps()]

    assert asyncio.run(learn()) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3)]
    assert list(listed(adapters)) == [3, 4, 5]
    assert adapters("rollback", "4").code == 0  # what was left can be had again
    assert listed(adapters)[4]["serving"]


def test_rollback_to_the_bare_model_and_to_an_unknown_version(world: World, adapters: Adapters) -> None:
    line = adapters("rollback", "0", "--json").json
    assert (line["head"], line["serving"]) == (0, 0)
    assert not any(one["serving"] for one in listed(adapters).values())
    adapters("rollback", "2").refused(1, "no adapter version 2", "there are 3, 4")

    async def served() -> int:
        async with world.agent() as agent:
            return agent.status().adapter_version

    assert asyncio.run(served()) == 0


def test_a_missing_state_folder_is_refused_and_not_made(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    for words in (["list"], ["rollback", "1"], ["export", "1", str(tmp_path / "out")]):
        edge_agent("adapters", *words, "--state", str(tmp_path / "none")).refused(1, "there is no state folder")
    assert list(tmp_path.iterdir()) == []


def test_exports_hold_the_same_weights_in_each_form(world: World, tmp_path: Path, base: Path, adapters: Adapters) -> None:
    source = checkpoint(world, 4) / "adapter"
    for form in ("peft", "gguf", "mlx"):
        assert adapters("export", "4", str(tmp_path / form), "--format", form).code == 0
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
    assert adapters("export", "4", str(tmp_path / "a.gguf"), "--format", "gguf", "--model", str(base)).code == 0
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "gguf").read_bytes()


def test_export_overwrites_only_adapters_and_only_with_force(tmp_path: Path, adapters: Adapters) -> None:
    out = tmp_path / "out"
    assert adapters("export", "4", str(out)).code == 0
    before = (out / "adapter_model.safetensors").read_bytes()
    adapters("export", "3", str(out)).refused(2, "exists already", "--force")
    assert (out / "adapter_model.safetensors").read_bytes() == before
    assert adapters("export", "3", str(out), "--force").code == 0
    assert (out / "adapter_model.safetensors").read_bytes() != before
    (out / "thesis.txt").write_text("mine")
    adapters("export", "4", str(out), "--force").refused(2, "other files in it")
    assert (out / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "state"]


def test_failed_export_leaves_nothing(world: World, tmp_path: Path, adapters: Adapters) -> None:
    out = str(tmp_path / "a")
    adapters("export", "4", out, "--format", "onnx").refused(2, "no such format", "peft, gguf, mlx")
    adapters("export", "7", out).refused(1, "no adapter version 7")
    adapters("export", "4", str(tmp_path / "none" / "a")).refused(2, "no such folder")
    (checkpoint(world, 4) / "adapter" / "adapter_model.safetensors").write_bytes(b"garbage")
    for form in ("peft", "mlx", "gguf"):
        adapters("export", "4", out, "--format", form).refused(1, "adapter_model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
