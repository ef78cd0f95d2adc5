from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from edge.cli.settings import Settings
from edge.config.agent import resolve_agent_config
from edge.config.loader import Flag, OptionError, resolve
from edge.config.schema import AgentConfig
from edge.config.yaml_lines import MOST_BYTES
from edge.core.errors import ConfigError


def config_file(folder: Path, text: str) -> Path:
    path = folder / "agent.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problem(folder: Path, text: str, **layers: object) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_agent_config(config_file(folder, text), **layers)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(folder) + "/", "")


BOMB = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30))
REFUSED = {
    "unknown key": ("learning:\n  seed: 1\n  groupsize: 4\n", 3, ("learning.groupsize", "did you mean group_size?")),
    "a key without its section": (
        "learning:\n  learning_rate: 0.1\n",
        2,
        ("unknown key learning.learning_rate; did you mean learning.optimiser.learning_rate?",),
    ),
    "unknown key in a list": ("phases:\n  - source: a\n    targt_rate: 1\n", 3, ("phases.0.targt_rate", "target_rate?")),
    "unknown key like no other": ("serve:\n  zzzz: 1\n", 2, ("serve.zzzz", "known: ", "host", "edge-agent config keys serve")),
    "rate above 1": ("phases:\n  - source: a\n    target_rate: 1.5\n", 3, ("phases.0.target_rate", "[0, 1]")),
    "rate that is no number": ("phases:\n  - source: a\n    target_rate: .nan\n", 3, ("phases.0.target_rate", "[0, 1]")),
    "more than a machine has": ("model:\n  context_tokens: 1000000000000\n", 2, ("model.context_tokens", "at most 1048576")),
    "less than can be": ("learning:\n\n  group_size: 1\n", 3, ("learning.group_size", "at least 2", "not 1")),
    "no whole number": ("learning: {group_size: many}\n", 1, ("learning.group_size", "whole number", "'many'")),
    "no number": (
        "learning: {optimiser: {learning_rate: slow}}\n",
        1,
        ("learning.optimiser.learning_rate", "a number", "'slow'"),
    ),
    "no truth value": ("programs: {unsafe: 7}\n", 1, ("programs.unsafe", "true or false")),
    "no text": ("model: {path: 7}\n", 1, ("model.path", "text")),
    "no choice": ("mode: never\n", 1, ("mode", "'auto', 'prefer-local'")),
    "no section": ("learning: 3\n", 1, ("learning", "a section of keys")),
    "no list": ("phases: 7\n", 1, ("phases", "a list of sections")),
    "an endless phase before another": ("phases:\n  - source: a\n  - {source: b, steps: 2}\n", 1, ("phase a ", "steps")),
    "broken YAML": ("model:\n  path: [a\n", 3, ()),
    "a key twice": ("mode: auto\nmode: auto\n", 2, ("mode", "twice")),
    "no mapping": ("- 1\n", 1, ("`key: value`",)),
    "an alias": ("model: &a {path: x}\nserve: *a\n", 2, ("alias",)),
    "a bomb of aliases": (f"l0: &l0 [x]\n{BOMB}\n", 2, ("alias",)),
    "a deep nest": ("mode: " + "[" * 4_000 + "]" * 4_000, None, ("nested too deeply",)),
    "a character that YAML has not": ("mode: auto\nserve: \0\n", 2, ("U+0000",)),
    "a day that is none": ("mode: 2026-13-45\n", 1, ("month",)),
    "a huge file": ("# " + "x" * MOST_BYTES, None, ("1 MiB",)),
}


@pytest.mark.parametrize(("text", "line", "parts"), REFUSED.values(), ids=REFUSED)
def test_invalid_file_is_refused_in_one_line_with_place_key_and_advice(
    tmp_path: Path, text: str, line: int | None, parts: tuple[str, ...]
) -> None:
    message = problem(tmp_path, text)
    assert message.startswith("agent.yaml: " if line is None else f"agent.yaml:{line}: ")
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("phases.3.steps=1", ("phases.3 does not exist",)),
        ("phases.².steps=1", ()),
        ("phases", ("key=value",)),
        ("learning.groupsize=3", ("did you mean group_size?", "edge-agent config keys learning")),
        ("learning.dual_init=0.5", ("did you mean learning.control.dual_init?",)),
        ("gradient_checkpointing=on", ("did you mean learning.memory.gradient_checkpointing?",)),
    ],
)
def test_a_wrong_setting_is_refused_by_its_option(tmp_path: Path, setting: str, parts: tuple[str, ...]) -> None:
    message = problem(tmp_path, "", sets=[setting])
    assert message.startswith(f"--set {setting.partition('=')[0]}: ")
    assert all(part in message for part in parts), message


def test_option_is_named_without_its_key_even_where_sources_are_given() -> None:
    for tasks in (None, ["practice:arith", "practice:code"]):
        with pytest.raises(OptionError, match=r"^--target-rate must lie in \[0, 1\], not '7'"):
            Settings(tasks=tasks, target_rate="7").resolve()


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: .*No such file"):
        resolve_agent_config(tmp_path / "none.yaml")


def test_later_layers_win_and_every_value_has_its_origin(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("engine:\n  threads: 4\n  max_rows: 8\nlearning:\n  prompts_per_step: 4\n")
    file = config_file(
        tmp_path, f"device_profile: {profile}\nlearning:\n  prompts_per_step: 6\n  seed: 3\nengine:\n  max_rows: 12\n"
    )
    resolved = resolve_agent_config(
        file, sets=["learning.seed=5", "learning.optimiser.learning_rate=1e-4"], flags=[Flag("learning.seed", 9, "--seed")]
    )
    rows = {key: (value, origin) for key, value, origin in resolved.rows()}
    assert rows["engine.threads"] == (4, f"{profile}:2")
    assert rows["engine.max_rows"] == (12, f"{file}:6")
    assert rows["learning.prompts_per_step"] == (6, f"{file}:3")
    assert rows["learning.seed"] == (9, "--seed")
    assert rows["learning.optimiser.learning_rate"] == (1e-4, "--set learning.optimiser.learning_rate")
    assert rows["learning.group_size"][1] == "default"


def test_a_list_in_a_file_replaces_the_default_list_and_keeps_line_origins(tmp_path: Path) -> None:
    file = config_file(tmp_path, "phases:\n  - source: a.jsonl\n    steps: 3\n  - source: b.jsonl\n")
    resolved = resolve_agent_config(file, sets=["phases.1.target_rate=0.5"])
    assert [(phase.source, phase.steps, phase.target_rate) for phase in resolved.config.phases] == [
        ("a.jsonl", 3, 0.3),
        ("b.jsonl", None, 0.5),
    ]
    origins = {key: origin for key, _, origin in resolved.rows()}
    assert origins["phases.0.steps"] == f"{file}:3"
    assert origins["phases.1.target_rate"] == "--set phases.1.target_rate"


def test_resolved_configuration_round_trips_through_yaml(tmp_path: Path) -> None:
    first = resolve_agent_config(None, sets=["learning.seed=4", "adapter.targets=[q_proj]", "mode=local-only"])
    again = resolve_agent_config(config_file(tmp_path, first.to_yaml()))
    assert again.config == first.config


class Upstream(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    url: str
    weight: float = 1.0


class Service(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    upstreams: dict[str, Upstream] = {}
    name: str


def test_another_schema_with_required_fields_and_mappings_of_models_works_alike(tmp_path: Path) -> None:
    path = config_file(tmp_path, "name: x\nupstreams:\n  big:\n    url: http://a\n    wieght: 2\n")
    with pytest.raises(ConfigError, match=r":5: unknown key upstreams\.big\.wieght; did you mean weight\?"):
        resolve(Service, files=[path])
    with pytest.raises(ConfigError, match="name is required"):
        resolve(Service)
    resolved = resolve(Service, sets=["name=y", "upstreams.big.url=http://b"])
    assert resolved.config.upstreams["big"].url == "http://b"


@given(st.integers(2, 64), st.floats(0, 1), st.sampled_from(["auto", "cloud-only"]))
def test_any_valid_choice_survives_the_round_trip_through_sets(group_size: int, rate: float, mode: str) -> None:
    sets = [f"learning.group_size={group_size}", f"phases.0.target_rate={rate!r}", f"mode={mode}"]
    config = resolve(AgentConfig, sets=sets).config
    assert (config.learning.group_size, config.phases[0].target_rate, config.mode) == (group_size, rate, mode)
