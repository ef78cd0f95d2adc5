"""A device profile is a file that doctor writes and every command reads; the automatic choice, and its notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge.app import settings as app_settings
from edge.cli import main
from edge.cli.settings import Settings, starting_lines
from edge.config.agent import resolve_agent_config
from edge.config.device import DecodeRate, DeviceConfig
from edge.config.device_profile import (
    KNOWN,
    MEASURED,
    Pick,
    check_writable,
    known_device,
    known_profiles,
    pick_profile,
    profile_text,
    write_profile,
)
from edge.config.schema import AgentConfig
from edge.core.errors import UsageError
from edge.core.machine import MachineFacts, battery_wh, drawn_w, has_battery, machine_facts

X86 = frozenset({"avx2", "fma"})
SERVER = MachineFacts("x86_64", chip="AMD EPYC", flags=X86, cores=2, memory_mib=24105)
LAPTOP = MachineFacts("x86_64", chip="AMD Ryzen AI 5 340", flags=X86, cores=12, memory_mib=14760, has_battery=True)
ORIN_SUPER = "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
MACHINES = {
    "jetson-orin-nano-super": MachineFacts("aarch64", board=ORIN_SUPER, cores=6, memory_mib=7619),
    "jetson-orin-nano": MachineFacts("aarch64", board="NVIDIA Orin Nano Developer Kit", cores=6, memory_mib=7619),
    "jetson-agx-orin": MachineFacts("aarch64", board="NVIDIA Jetson AGX Orin Developer Kit", cores=12, memory_mib=62827),
    "raspberry-pi-5": MachineFacts("aarch64", board="Raspberry Pi 5 Model B Rev 1.1", cores=4, memory_mib=8048),
    "macbook-air-m3": MachineFacts("arm64", chip="Apple M3", model="Mac15,12", cores=8, memory_mib=16384),
    "phone": MachineFacts("aarch64", cores=8, memory_mib=11000, has_battery=True, is_phone=True),
    "laptop-nvidia-8gb": replace(LAPTOP, gpu_memory_mib=8188),
    "laptop-avx2": LAPTOP,
}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_identified_machine_gets_its_profile(name: str) -> None:
    assert known_device(MACHINES[name]) == name
    assert pick_profile([], known_profiles(), lambda: MACHINES[name]) == Pick(known_profiles() / f"{name}.yaml", KNOWN)
    assert (known_profiles() / f"{name}.yaml").is_file()


# -- what was kept ------------------------------------------------------------------------------------------------------------------


def kept(folder: Path, machine: str = SERVER.fingerprint) -> Path:
    file = folder / "device.yaml"
    file.write_text(f"device: {{cores: 2, machine: '{machine}'}}\nengine: {{max_rows: 16}}\n")
    return file


def pick_on(facts: MachineFacts, *files: Path) -> Pick:
    return pick_profile(files, known_profiles(), lambda: facts)


def test_local_measurement_takes_precedence_over_a_known_device(tmp_path: Path) -> None:
    file = kept(tmp_path, LAPTOP.fingerprint)
    assert pick_on(LAPTOP, file) == Pick(file, MEASURED)
    assert pick_on(LAPTOP, tmp_path / "none.yaml", file) == Pick(file, MEASURED)
    file.write_text("engine: {max_rows: 16}\n")  # written by hand: meant for this machine
    assert pick_on(LAPTOP, file) == Pick(file, MEASURED)


def test_profile_of_another_machine_is_ignored_and_named(tmp_path: Path) -> None:
    pick = pick_on(LAPTOP, kept(tmp_path))
    assert pick.profile is None
    assert SERVER.fingerprint in pick.why and LAPTOP.fingerprint in pick.why


@pytest.mark.parametrize("text", ["engine: {max_rows: -1}\n", "no: [yaml\n", "other: 1\n"])
def test_unusable_profile_file_does_not_prevent_starting(tmp_path: Path, text: str) -> None:
    file = tmp_path / "device.yaml"
    file.write_text(text)
    resolved = resolve_agent_config(pick=lambda config: pick_on(SERVER, file))
    assert resolved.config == AgentConfig()
    [line] = starting_lines(resolved, learns=False)
    assert str(file) in line and "doctor --keep-profile" in line


# -- as a layer -----------------------------------------------------------------------------------------------------------------------


def test_chosen_profile_is_the_weakest_layer_and_named_as_origin(tmp_path: Path) -> None:
    profile, file = kept(tmp_path), tmp_path / "config.yaml"
    resolved = Settings().resolve(lambda config: Pick(profile, MEASURED))
    rows = {key: (value, origin) for key, value, origin in resolved.rows()}
    assert rows["engine.max_rows"] == (16, f"{profile}:2")
    assert rows["device_profile"] == (str(profile), MEASURED)
    [line] = starting_lines(resolved, learns=True)
    assert str(profile) in line and "16 rows" in line
    file.write_text("engine: {max_rows: 5}\n")
    assert Settings(config_file=file).resolve(lambda config: Pick(profile, MEASURED)).config.engine.max_rows == 5
    assert Settings(sets=["engine.max_rows=6"]).resolve(lambda config: Pick(profile, MEASURED)).config.engine.max_rows == 6


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_known_profile_changes_only_learning_hours(name: str) -> None:
    resolved = Settings().resolve(lambda config: pick_on(MACHINES[name]))
    plain = AgentConfig()
    assert resolved.config.device != plain.device
    same = {"device": plain.device, "device_profile": None}
    when = {"learning": plain.learning.model_copy(update={"when": resolved.config.learning.when})}
    assert resolved.config.model_copy(update=same) == plain.model_copy(update=when)
    [line] = starting_lines(resolved, learns=True)
    assert f"{name}.yaml" in line and "learning.when." in line


@pytest.mark.parametrize(
    "settings", [Settings(sets=["device_profile=none"]), Settings(device_profile=Path("none"))], ids=["set", "option"]
)
def test_none_disables_the_profile(settings: Settings) -> None:
    def refuse(config: AgentConfig) -> Pick:
        raise AssertionError("nothing is looked for")

    resolved = settings.resolve(refuse)
    assert resolved.config == AgentConfig(device_profile="none")
    assert list(starting_lines(resolved, learns=True)) == []


# -- where it is searched ---------------------------------------------------------------------------------------------------------------


def test_run_finds_the_profile_beside_its_state_or_in_the_platform_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(app_settings.PROFILE_SWITCH, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(app_settings, "machine_facts", lambda: SERVER)
    config = AgentConfig(state_folder=str(tmp_path / "state"))
    assert app_settings.own_profile(config) == Pick()
    general = app_settings.kept_profile(AgentConfig())
    if general.is_relative_to(tmp_path):  # the platform's folder can be moved by this variable on Linux alone
        general.parent.mkdir(parents=True)
        file = kept(general.parent)
        assert app_settings.own_profile(config) == Pick(file, MEASURED)
    (tmp_path / "state").mkdir()
    file = kept(tmp_path / "state")
    assert app_settings.own_profile(config) == Pick(file, MEASURED)
    monkeypatch.setenv(app_settings.PROFILE_SWITCH, "none")
    assert app_settings.own_profile(config) == Pick()


# -- as a file ---------------------------------------------------------------------------------------------------------------------


def test_a_written_profile_is_read_back_as_the_same_device_and_settings(tmp_path: Path) -> None:
    measured = DeviceConfig(
        measured_on="2026-01-02", cores=2, bandwidth_gb_per_s=10.5, decode=(DecodeRate(rows=1, tokens_per_s=500.0),)
    )
    file = tmp_path / "device.yaml"
    write_profile(file, profile_text(measured, {"engine": {"max_rows": 8}, "learning": {"prompts_per_step": 3}}))
    config = Settings(device_profile=file).config()
    assert config.device == measured
    assert (config.engine.max_rows, config.learning.prompts_per_step) == (8, 3)
    assert "bf16" not in file.read_text()  # what was not measured is not there


@pytest.mark.parametrize("name", ["", "no/such/folder.yaml"])
def test_unwritable_place_is_refused_before_measuring(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        check_writable(tmp_path / name)
    assert main(["doctor", "--write-profile", str(tmp_path / name)]) == 2


# -- identification of a machine ----------------------------------------------------------------------------------------------------------


def put(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def battery(root: Path, name: str = "BAT0", **values: str) -> Path:
    folder = f"sys__class__power_supply__{name}"
    return put(root, **{f"{folder}__{key}": value for key, value in {"type": "Battery\n", **values}.items()})


def test_boards_are_read_from_the_device_tree(tmp_path: Path) -> None:
    facts = machine_facts(put(tmp_path, **{"proc__device-tree__model": "Raspberry Pi 5 Model B Rev 1.0\0"}))
    assert facts.board == "Raspberry Pi 5 Model B Rev 1.0"
    assert "Raspberry Pi 5 Model B Rev 1.0" in facts.fingerprint
    assert (facts.has_battery, facts.is_phone) == (False, False)


def test_battery_reports_watt_hours_and_power(tmp_path: Path) -> None:
    battery(tmp_path, energy_full="57000000\n", power_now="12500000\n", status="Discharging\n")
    assert (has_battery(tmp_path), battery_wh(tmp_path), drawn_w(tmp_path)) == (True, 57.0, 12.5)
    battery(tmp_path, status="Charging\n")
    assert drawn_w(tmp_path) is None
