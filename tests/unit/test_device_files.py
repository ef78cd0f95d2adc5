"""The files of devices/: the schema holds, every number says where it comes from, and an estimate is what the formula makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.config.agent import resolve_agent_config
from edge.config.loader import resolve
from edge.config.numbers import numbers
from edge.config.schema import DeviceConfig, SourceConfig
from edge.core.errors import ConfigError, UsageError
from tools.simulate.fleet.formula import EFFICIENCIES, ROWS, SIZES, estimated_speed, fitting_models, speeds_text
from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.fleet.profiles import DEVICES, LINKS, LinkFile, load_device, load_link

MEASURED = "x86-2core"
KNOWN = sorted(path.stem for path in DEVICES.glob("*.yaml") if path.stem != MEASURED)
KNOWN_LINKS = sorted(path.stem for path in LINKS.glob("*.yaml"))
ESTIMATED = "estimated by formula"
PUBLISHED = re.compile(r"\S.*, https?://[a-z0-9.-]+/\S+$")
NEEDED = {
    "jetson-orin-nano",
    "jetson-orin-nano-super",
    "jetson-agx-orin",
    "raspberry-pi-5",
    "macbook-air-m3",
    "laptop-avx2",
    "laptop-nvidia-8gb",
    "phone",
}
NEEDED_LINKS = {"home-wifi", "office", "lte-good", "lte-poor", "satellite", "offline-nights"}
MACHINE = DeviceConfig(processor="cpu", memory_mib=16384, bandwidth_gb_per_s=50.0, peak_gflop_per_s=500.0)


def device(name: str) -> DeviceConfig:
    return resolve_agent_config(DEVICES / f"{name}.yaml").config.device


def sources(section: DeviceConfig) -> dict[str, str]:
    return {each.of: each.source for each in section.sources}


def source_of(path: str, named: dict[str, str]) -> str | None:
    """The source of the longest beginning of the path that has one."""
    fitting = [of for of in named if path == of or path.startswith(f"{of}/")]
    return named[max(fitting, key=len)] if fitting else None


def test_the_kinds_of_devices_and_links_that_scenarios_name_are_there() -> None:
    assert set(KNOWN) >= NEEDED
    assert set(KNOWN_LINKS) >= NEEDED_LINKS


@pytest.mark.parametrize("name", KNOWN)
def test_every_number_of_a_device_has_a_source_that_is_one(name: str) -> None:
    known = device(name)
    told = {path: source_of(path, sources(known)) for path, _ in numbers(known)}
    assert len(told) > 30
    assert {path for path, source in told.items() if not (source and is_source(source))} == set()


@pytest.mark.parametrize("name", KNOWN_LINKS)
def test_every_number_of_a_link_has_a_source_that_is_one(name: str) -> None:
    link = resolve(LinkFile, files=[LINKS / f"{name}.yaml"]).config.link
    by_path = {each.of: each.source for each in link.sources}
    told = {path: source_of(path, by_path) for path, _ in numbers(link)}
    assert {path for path, source in told.items() if not (source and is_source(source))} == set()


def is_source(text: str) -> bool:
    return text == ESTIMATED or text.startswith("chosen") or PUBLISHED.fullmatch(text) is not None


@pytest.mark.parametrize("text", ["somebody said so", "derived, a guess", "https://", "A Title https://a.example", ""])
def test_what_is_no_source_is_found_out(text: str) -> None:
    assert not is_source(text)


@pytest.mark.parametrize("name", KNOWN)
def test_every_estimate_is_what_the_formula_makes_of_the_device(name: str) -> None:
    known = device(name)
    for row in known.speeds:
        published = {
            path.rpartition(f"{row.model}/")[2]: value
            for path, value in numbers(known)
            if path.startswith(f"speeds/{row.model}/") and source_of(path, sources(known)) != ESTIMATED
        }
        made = estimated_speed(known, row.model, one=published.get("decode/1"), prefill=published.get("prefill_tokens_per_s"))
        expected = {path.removeprefix("speeds/"): value for path, value in numbers(DeviceConfig(speeds=(made,)))}
        told = {path.removeprefix("speeds/"): value for path, value in numbers(DeviceConfig(speeds=(row,)))}
        estimated = {path for path in told if path.removeprefix(f"{row.model}/") not in published}
        assert {path: told[path] for path in estimated} == {path: expected[path] for path in estimated}


@pytest.mark.parametrize("name", KNOWN)
def test_the_table_goes_up_to_what_fits_the_memory_and_by_the_rows_that_learning_uses(name: str) -> None:
    known = device(name)
    models = [row.model for row in known.speeds]
    assert set(models) <= set(fitting_models(known))
    assert {"0.5B-Q4_K_M", "0.5B-Q8_0", "1.5B-Q4_K_M", "1.5B-Q8_0", "3B-Q4_K_M"} <= set(models)
    assert all(tuple(rate.rows for rate in row.decode) == ROWS for row in known.speeds)
    assert name == "phone" or "7B-Q4_K_M" in models


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_device_brings_no_settings_but_when_to_learn(name: str) -> None:
    resolved = resolve_agent_config(DEVICES / f"{name}.yaml")
    brought = {key for key in resolved.origins if key not in ("device", "learning", "learning.when")}
    assert [key for key in brought if not key.startswith(("device.", "learning.when."))] == []


@pytest.mark.parametrize("name", KNOWN)
def test_power_and_heat_are_told_together(name: str) -> None:
    known = device(name)
    assert known.idle_w is not None
    assert known.busy_w is not None
    assert known.idle_w < known.busy_w
    assert (known.throttle_after_s is None) == (known.throttle_share is None)


# -- the formula ------------------------------------------------------------------------------------------------------------------


def test_a_decode_reads_all_weights_and_a_prompt_computes_with_them() -> None:
    row = estimated_speed(MACHINE, "1.5B-Q8_0")
    size = SIZES["1.5B"]
    shares = EFFICIENCIES["cpu"]
    assert row.decode[0].tokens_per_s == pytest.approx(shares.decode * 50e9 / size.weight_bytes["Q8_0"], rel=5e-3)
    assert row.prefill_tokens_per_s == pytest.approx(shares.prefill * 500e9 / (2 * size.parameters), rel=5e-3)
    assert row.training_tokens_per_s == pytest.approx(shares.training * 500e9 / (4 * size.parameters), rel=5e-3)


@given(st.floats(1, 1000), st.floats(10, 1e5), st.sampled_from(sorted(EFFICIENCIES)), st.sampled_from(sorted(SIZES)))
def test_more_rows_are_never_slower_together_and_never_faster_than_a_prompt(
    bandwidth: float, peak: float, processor: str, size: str
) -> None:
    machine = DeviceConfig.model_validate(
        {"processor": processor, "bandwidth_gb_per_s": bandwidth, "peak_gflop_per_s": peak, "memory_mib": 1}
    )
    row = estimated_speed(machine, f"{size}-Q4_K_M")
    assert row.prefill_tokens_per_s is not None
    one, *more = [rate.tokens_per_s for rate in row.decode]
    bound = max(one, row.prefill_tokens_per_s) * 1.01
    assert all(rate <= bound for rate in more)
    if row.prefill_tokens_per_s > one * 1.02:
        assert one <= more[0] * 1.01
        assert more[0] <= more[1] * 1.01


def test_a_published_speed_of_one_row_carries_over_to_more_rows() -> None:
    slow, usual = estimated_speed(MACHINE, "3B-Q4_K_M", one=1.0), estimated_speed(MACHINE, "3B-Q4_K_M")
    assert slow.decode[0].tokens_per_s == 1.0
    assert slow.decode[2].tokens_per_s < usual.decode[2].tokens_per_s


def test_the_formula_says_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="knows no model 9B-Q4_K_M"):
        estimated_speed(MACHINE, "9B-Q4_K_M")
    with pytest.raises(UsageError, match=r"needs device\.processor"):
        estimated_speed(DeviceConfig(), "3B-Q4_K_M")


def test_the_printed_rows_can_be_put_into_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    text = speeds_text(MACHINE)
    file.write_text(f"device:\n{text}")
    assert load_device(str(file), "7B-Q4_K_M").decode_rate(1) == estimated_speed(MACHINE, "7B-Q4_K_M").decode[0].tokens_per_s


# -- loading ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*KNOWN, MEASURED])
def test_every_device_loads_with_each_of_its_models(name: str) -> None:
    models = [row.model for row in device(name).speeds]
    assert models
    for model in models:
        speed = load_device(name, model)
        assert isinstance(speed, DeviceSpeed)
        assert speed.model == model
        assert speed.decode_tokens_per_s[0][0] == 1
        assert speed.decode_rate(1) <= speed.decode_rate(4) <= speed.decode_rate(8)
        assert speed.training_tokens_per_s > 0
    assert load_device(name).model == models[0]


@pytest.mark.parametrize("name", KNOWN_LINKS)
def test_every_link_loads_in_bytes_and_seconds(name: str) -> None:
    link = load_link(name)
    assert link.name == name
    assert 0.001 < link.rtt_s < 2.0
    assert link.down_bytes_per_s >= link.up_bytes_per_s > 0
    assert (link.mean_up_s is None) == (link.mean_down_s == 0)


def test_what_was_measured_says_when() -> None:
    measured = device(MEASURED)
    assert measured.measured_on
    assert {each.source.partition(",")[0] for each in measured.sources} <= {"measured"}


def test_nights_off_are_hours_of_the_day() -> None:
    assert load_link("offline-nights").offline_hours == (22.0, 6.0)
    assert load_link("home-wifi").offline_hours is None


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(UsageError, match="there is no device toaster") as caught:
        load_device("toaster")
    assert "jetson-orin-nano" in caught.value.hint
    with pytest.raises(UsageError, match="there is no link string") as caught:
        load_link("string")
    assert "lte-poor" in caught.value.hint
    with pytest.raises(UsageError, match="no speeds of 70B") as caught:
        load_device("phone", "70B")
    assert "0.5B-Q4_K_M" in caught.value.hint


def test_a_file_of_ones_own_is_loaded_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("link: {name: mine, rtt_ms: 10, up_mbit_per_s: 8, down_mbit_per_s: 16}\n")
    link = load_link(str(file))
    assert (link.name, link.rtt_s, link.up_bytes_per_s, link.down_bytes_per_s) == ("mine", 0.01, 1e6, 2e6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("link: {name: a, rtt_ms: -1, up_mbit_per_s: 1, down_mbit_per_s: 1}", "link.rtt_ms must be at least 0"),
        ("link: {name: a, rtt_ms: 1, up_mbit: 1, down_mbit_per_s: 1}", "unknown key link.up_mbit; did you mean up_mbit_per_s"),
        (
            "link: {name: a, rtt_ms: 1, up_mbit_per_s: 1, down_mbit_per_s: 1, mean_up_s: 5}",
            "mean_up_s and mean_down_s go together",
        ),
        ("link: {name: a, rtt_ms: 1, up_mbit_per_s: 1, down_mbit_per_s: 1, offline_from_hour: 5}", "go together"),
        ("link: {name: a, rtt_ms: 1, up_mbit_per_s: 1, down_mbit_per_s: 1, sources: [{of: x, source: y}]}", "no such number"),
    ],
)
def test_a_wrong_link_is_one_line_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_link(str(file))
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{file}:1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("speeds: [{model: a, decode: [{rows: 2, tokens_per_s: 1}]}]", "must go from 1 row to more, not 2"),
        ("speeds: [{model: a, decode: [{rows: 1, tokens_per_s: 1}, {rows: 1, tokens_per_s: 1}]}]", "must go from 1 row to more"),
        ("speeds: [{model: a}, {model: a}]", "speeds has a twice"),
        ("speeds: [{model: a, tokens: 1}]", "unknown key device.speeds.0.tokens"),
        ("sources: [{of: cores, source: me}]", "sources has cores, but there is no such number"),
        ("cores: 2\n  sources: [{of: cores, source: me}, {of: cores, source: you}]", "sources has cores twice"),
        ("throttle_share: 1.5", "device.throttle_share must be at most 1.0, not 1.5"),
        ("busy_w: 0", "device.busy_w must be greater than 0"),
        ("processor: tpu", "device.processor must be"),
    ],
)
def test_a_wrong_device_is_one_line_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "device.yaml"
    file.write_text(f"device:\n  {text}\n")
    with pytest.raises(ConfigError) as caught:
        load_device(str(file))
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{file}:")
    assert "\n" not in str(caught.value)


def test_a_row_that_is_not_whole_cannot_be_simulated(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    file.write_text("device: {speeds: [{model: a, prefill_tokens_per_s: 5}]}\n")
    with pytest.raises(UsageError, match="a has no"):
        load_device(str(file))
    file.write_text("device: {cores: 2}\n")
    with pytest.raises(UsageError, match="no speeds of any model") as caught:
        load_device(str(file))
    assert "doctor --write-profile" in caught.value.hint


# -- numbers and their sources ----------------------------------------------------------------------------------------------------


def test_numbers_are_named_by_model_and_rows() -> None:
    known = DeviceConfig.model_validate(
        {
            "cores": 2,
            "speeds": [{"model": "1.5B-Q4_K_M", "prefill_tokens_per_s": 9, "decode": [{"rows": 1, "tokens_per_s": 3}]}],
            "decode": [{"rows": 1, "tokens_per_s": 4}],
        }
    )
    assert dict(numbers(known)) == {
        "cores": 2,
        "decode/1": 4.0,
        "speeds/1.5B-Q4_K_M/prefill_tokens_per_s": 9.0,
        "speeds/1.5B-Q4_K_M/decode/1": 3.0,
    }
    assert SourceConfig(of="cores", source="me").of == "cores"
