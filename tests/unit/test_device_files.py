"""The files of devices/: every number has a source, an estimate follows from the formula, and a simulation can use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge.config.agent import resolve_agent_config
from edge.config.device import DeviceConfig, SourceConfig, numbers
from edge.config.loader import resolve
from edge.core.errors import ConfigError, UsageError
from tools.simulate.fleet.formula import ROWS, estimated_speed, fitting_models
from tools.simulate.fleet.profiles import DEVICES, LINKS, LinkFile, load_device, load_link

MEASURED = "x86-2core"
KNOWN = sorted(path.stem for path in DEVICES.glob("*.yaml") if path.stem != MEASURED)
KNOWN_LINKS = sorted(path.stem for path in LINKS.glob("*.yaml"))
ESTIMATED = "estimated by formula"
PUBLISHED = re.compile(r"\S.*, https?://[a-z0-9.-]+/\S+$")


def device(name: str) -> DeviceConfig:
    return resolve_agent_config(DEVICES / f"{name}.yaml").config.device


def source_of(path: str, sources: tuple[SourceConfig, ...]) -> str:
    """The source of the longest beginning of the path that has one."""
    fitting = [each for each in sources if path == each.of or path.startswith(f"{each.of}/")]
    return max(fitting, key=lambda each: len(each.of)).source if fitting else ""


def is_source(text: str) -> bool:
    return text == ESTIMATED or text.startswith("chosen") or PUBLISHED.fullmatch(text) is not None


@pytest.mark.parametrize("name", [*KNOWN, *KNOWN_LINKS])
def test_every_number_of_a_device_and_of_a_link_has_a_source(name: str) -> None:
    section = device(name) if name in KNOWN else resolve(LinkFile, files=[LINKS / f"{name}.yaml"]).config.link
    found = [path for path, _ in numbers(section)]
    assert found and [path for path in found if not is_source(source_of(path, section.sources))] == []


@pytest.mark.parametrize("name", KNOWN)
def test_every_estimate_is_computed_from_the_device_by_the_formula(name: str) -> None:
    known = device(name)
    for row in known.speeds:
        published = {
            path.rpartition(f"{row.model}/")[2]: value
            for path, value in numbers(known)
            if path.startswith(f"speeds/{row.model}/") and source_of(path, known.sources) != ESTIMATED
        }
        made = estimated_speed(known, row.model, one=published.get("decode/1"), prefill=published.get("prefill_tokens_per_s"))
        expected = {path.removeprefix("speeds/"): value for path, value in numbers(DeviceConfig(speeds=(made,)))}
        found = {path.removeprefix("speeds/"): value for path, value in numbers(DeviceConfig(speeds=(row,)))}
        estimated = {path for path in found if path.removeprefix(f"{row.model}/") not in published}
        assert {path: found[path] for path in estimated} == {path: expected[path] for path in estimated}


@pytest.mark.parametrize("name", KNOWN)
def test_known_device_has_models_that_fit_its_memory_and_sets_only_learning_hours(name: str) -> None:
    known = device(name)
    assert {row.model for row in known.speeds} <= set(fitting_models(known))
    assert all(tuple(rate.rows for rate in row.decode) == ROWS for row in known.speeds)
    assert known.idle_w is not None and known.busy_w is not None and known.idle_w < known.busy_w
    assert (known.throttle_after_s is None) == (known.throttle_share is None)
    brought = set(resolve_agent_config(DEVICES / f"{name}.yaml").origins) - {"device", "learning", "learning.when"}
    assert [key for key in brought if not key.startswith(("device.", "learning.when."))] == []


# -- the formula ------------------------------------------------------------------------------------------------------------------


# -- loading ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*KNOWN, MEASURED])
def test_every_device_can_be_simulated_with_each_of_its_models(name: str) -> None:
    models = [row.model for row in device(name).speeds]
    for model in models:
        speed = load_device(name, model)
        assert speed.model == model and speed.training_tokens_per_s > 0
        assert 0 < speed.decode_rate(1) <= speed.decode_rate(4) <= speed.decode_rate(8)
    assert load_device(name).model == models[0]


def test_own_device_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("link: {name: mine, rtt_ms: 10, up_mbit_per_s: 8, down_mbit_per_s: 16}\n")
    link = load_link(str(file))
    assert (link.name, link.rtt_s, link.up_bytes_per_s, link.down_bytes_per_s) == ("mine", 0.01, 1e6, 2e6)


LINK = "link: {name: a, rtt_ms: 1, up_mbit_per_s: 1, down_mbit_per_s: 1"


@pytest.mark.parametrize(
    ("load", "text", "named"),
    [
        (load_link, f"{LINK}, up_mbit: 1}}", "link.up_mbit"),
        (load_link, f"{LINK}, mean_up_s: 5}}", "mean_down_s"),
        (load_link, f"{LINK}, offline_from_hour: 5}}", "offline_until_hour"),
        (load_link, f"{LINK}, sources: [{{of: x, source: y}}]}}", "sources has x"),
        (load_device, "device: {speeds: [{model: a, decode: [{rows: 2, tokens_per_s: 1}]}]}", "from 1 row"),
        (load_device, "device: {speeds: [{model: a}, {model: a}]}", "a twice"),
        (load_device, "device: {sources: [{of: cores, source: me}]}", "sources has cores"),
        (load_device, "device: {cores: 2, sources: [{of: cores, source: me}, {of: cores, source: you}]}", "cores twice"),
        (load_device, "device: {throttle_share: 1.5}", "device.throttle_share"),
    ],
)
def test_contradictory_file_is_refused_at_its_line(load, text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=rf"^{file}:1: .*{named}"):
        load(str(file))


def test_missing_or_incomplete_device_cannot_be_simulated(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    file.write_text("device: {speeds: [{model: a, prefill_tokens_per_s: 5}]}\n")
    bare = tmp_path / "bare.yaml"
    bare.write_text("device: {cores: 2}\n")
    for load, name, hint in (
        (load_device, "toaster", "jetson-orin-nano"),
        (load_link, "string", "lte-poor"),
        (load_device, str(file), ""),
        (load_device, str(bare), "doctor --write-profile"),
    ):
        with pytest.raises(UsageError) as refused:
            load(name)
        assert hint in refused.value.hint
    with pytest.raises(UsageError, match="70B"):
        load_device("phone", "70B")
