"""A device profile is a configuration file: what doctor writes, every command reads, and nothing is half written."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.settings import Settings
from edge.config.device_profile import check_writable, profile_text, write_profile
from edge.config.schema import DecodeRate, DeviceConfig
from edge.core.errors import UsageError

DEVICE = DeviceConfig(
    name="made up, 2 cores",
    measured_on="2026-01-02",
    backend="llamacpp",
    cores=2,
    bandwidth_gb_per_s=10.5,
    infer_gflop_per_s=80.0,
    train_fp32_gflop_per_s=90.0,
    model="nano-edge",
    decode=(DecodeRate(rows=1, tokens_per_s=500.0), DecodeRate(rows=8, tokens_per_s=2000.0)),
)
SETTINGS = {"engine": {"max_rows": 8}, "learning": {"prompts_per_step": 3, "gradient_checkpointing": "on"}}


def test_a_written_profile_is_read_back_as_the_same_device_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    write_profile(file, profile_text(DEVICE, SETTINGS))
    config = Settings(device_profile=file).config()
    assert config.device == DEVICE
    assert (config.engine.max_rows, config.learning.prompts_per_step, config.learning.gradient_checkpointing) == (8, 3, "on")
    assert "bf16" not in file.read_text()  # what was not measured is not there


def test_a_profile_that_brings_phases_is_counted_when_options_set_them(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    file.write_text("phases: [{source: practice:arith}]\n")
    assert [phase.target_rate for phase in Settings(target_rate=0.1, device_profile=file).config().phases] == [0.1]


def test_a_profile_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.yaml is not a file"):
        Settings(device_profile=tmp_path / "none.yaml").config()


@pytest.mark.parametrize("name", ["", "no/such/folder.yaml"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        check_writable(tmp_path / name)
    assert main(["doctor", "--write-profile", str(tmp_path / name)]) == 2
