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
from edge.dagrpo.hyperparameters import DEVICE


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


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    text = "model:\n  path: nano-edge\nlearning:\n  seed: 1\n  groupsize: 4\n"
    assert problem(tmp_path, text) == (
        "agent.yaml:5: unknown key learning.groupsize; did you mean group_size? `edge-agent config keys learning` describes what there is"
    )


def test_an_unknown_key_inside_a_list_is_refused_with_its_line(tmp_path: Path) -> None:
    text = "phases:\n  - source: practice:arith\n  - source: practice:code\n    targt_rate: 0.1\n"
    assert problem(tmp_path, text) == (
        "agent.yaml:4: unknown key phases.1.targt_rate; did you mean target_rate? `edge-agent config keys phases` describes what there is"
    )


def test_an_unknown_key_far_from_any_name_lists_the_known_ones(tmp_path: Path) -> None:
    message = problem(tmp_path, "serve:\n  zzzz: 1\n")
    assert message.startswith("agent.yaml:2: unknown key serve.zzzz; known: allow_origins, cloud_deadline_s, host")


@pytest.mark.parametrize("rate", ["1.5", "-0.1", ".nan", ".inf"])
def test_a_target_rate_outside_zero_to_one_is_refused_with_its_line(tmp_path: Path, rate: str) -> None:
    message = problem(tmp_path, f"phases:\n  - source: practice:arith\n    target_rate: {rate}\n")
    assert message.startswith("agent.yaml:3: phases.0.target_rate must lie in [0, 1], not ")


def test_an_option_is_named_without_the_key_behind_it_also_where_sources_are_given() -> None:
    for tasks in (None, ["practice:arith", "practice:code"]):
        with pytest.raises(OptionError) as caught:
            Settings(tasks=tasks, target_rate="7").resolve()
        assert str(caught.value) == "--target-rate must lie in [0, 1], not '7'; write 7 % or 0.07"


def test_a_target_rate_flag_out_of_range_names_the_flag(tmp_path: Path) -> None:
    message = problem(tmp_path, "", flags=[Flag("phases.0.target_rate", 2.0, "--target-rate")])
    assert message == "--target-rate must lie in [0, 1], not 2.0; write 2 % or 0.02"


@pytest.mark.parametrize(
    ("section", "key", "value", "most"),
    [
        ("engine", "threads", 100_000, 512),
        ("learning", "group_size", 10**9, 1024),
        ("learning", "seed", 10**23, (1 << 63) - 1),
        ("model", "context_tokens", 10**12, 1 << 20),
    ],
)
def test_numbers_that_no_machine_can_serve_are_refused(tmp_path: Path, section: str, key: str, value: int, most: int) -> None:
    message = problem(tmp_path, f"{section}:\n  {key}: {value}\n")
    assert message == f"agent.yaml:2: {section}.{key} must be at most {most}, not {value}"


def test_values_of_the_wrong_type_are_refused_with_line_key_and_value(tmp_path: Path) -> None:
    message = problem(tmp_path, "learning:\n\n  group_size: many\n")
    assert message == "agent.yaml:3: learning.group_size must be a whole number, not 'many'"
    assert (
        problem(tmp_path, "learning: {learning_rate: slow}\n")
        == "agent.yaml:1: learning.learning_rate must be a number, not 'slow'"
    )
    assert problem(tmp_path, "programs: {unsafe: 7}\n") == "agent.yaml:1: programs.unsafe must be true or false, not 7"
    assert problem(tmp_path, "model: {path: 7}\n") == "agent.yaml:1: model.path must be text, not 7"
    assert problem(tmp_path, "phases: 7\n") == "agent.yaml:1: phases must be a list of sections, not 7"
    assert problem(tmp_path, "learning:\n  group_size: 1\n") == "agent.yaml:2: learning.group_size must be at least 2, not 1"
    assert problem(tmp_path, "mode: never\n").startswith("agent.yaml:1: mode must be 'auto', 'prefer-local'")
    assert problem(tmp_path, "learning: 3\n") == "agent.yaml:1: learning must be a section of keys, not 3"


def test_broken_yaml_duplicate_keys_and_wrong_shapes_are_refused_with_their_line(tmp_path: Path) -> None:
    assert problem(tmp_path, "model:\n  path: [a\n").startswith("agent.yaml:3: ")
    assert problem(tmp_path, "mode: auto\nmode: auto\n") == "agent.yaml:2: key mode is given twice"
    assert problem(tmp_path, "- 1\n").startswith("agent.yaml:1: expected `key: value` lines")


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot read the configuration: No such file"):
        resolve_agent_config(tmp_path / "none.yaml")


def test_later_layers_win_and_every_value_knows_its_origin(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("engine:\n  threads: 4\n  max_rows: 8\nlearning:\n  prompts_per_step: 4\n")
    file = config_file(
        tmp_path, f"device_profile: {profile}\nlearning:\n  prompts_per_step: 6\n  seed: 3\nengine:\n  max_rows: 12\n"
    )
    resolved = resolve_agent_config(
        file, sets=["learning.seed=5", "learning.learning_rate=1e-4"], flags=[Flag("learning.seed", 9, "--seed")]
    )
    config = resolved.config
    assert (config.engine.threads, config.engine.max_rows, config.learning.prompts_per_step, config.learning.seed) == (
        4,
        12,
        6,
        9,
    )
    assert config.learning.learning_rate == 1e-4
    origins = {key: origin for key, _, origin in resolved.rows()}
    assert origins["engine.threads"] == f"{profile}:2"
    assert origins["learning.prompts_per_step"] == f"{file}:3"
    assert origins["learning.seed"] == "--seed"
    assert origins["learning.learning_rate"] == "--set learning.learning_rate"
    assert origins["learning.group_size"] == "default"


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


def test_a_set_on_a_missing_list_element_or_without_equals_is_refused(tmp_path: Path) -> None:
    assert problem(tmp_path, "", sets=["phases.3.steps=1"]).startswith("--set phases.3.steps: phases.3 does not exist")
    assert problem(tmp_path, "", sets=["phases.².steps=1"]).startswith("--set phases.².steps: ")
    assert problem(tmp_path, "", sets=["phases"]).startswith("--set phases: expected key=value")
    assert "; did you mean group_size? `edge-agent config keys learning`" in problem(tmp_path, "", sets=["learning.groupsize=3"])


def test_without_a_configuration_group_1_is_learned_for_150_steps_and_then_group_2_without_end() -> None:
    config = resolve_agent_config(None).config
    assert [(phase.source, phase.steps, phase.target_rate) for phase in config.phases] == [
        ("practice:group1", 150, 0.3),
        ("practice:group2", None, 0.3),
    ]
    assert config.learning.max_tokens == DEVICE.response_tokens == 288


def test_only_the_last_phase_may_be_endless(tmp_path: Path) -> None:
    message = problem(tmp_path, "phases:\n  - source: a.jsonl\n  - source: b.jsonl\n    steps: 2\n")
    assert message.endswith("phase a.jsonl has no number of steps but others follow it")


def test_a_resolved_configuration_written_as_yaml_gives_itself_again(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: &a {path: x}\nserve: *a\n", "agent.yaml:2: an alias (*name); write the value out"),
        ("mode: " + "[" * 4_000 + "]" * 4_000, "agent.yaml: nested too deeply"),
        ("mode: auto\nserve: \0\n", "agent.yaml:2: a character that YAML does not allow (U+0000)"),
        ("mode: 2026-13-45\n", "agent.yaml:1: mode cannot be read: month must be in 1..12"),
        ("# " + "x" * MOST_BYTES, "agent.yaml: larger than 1 MiB, which no configuration is"),
    ],
)
def test_a_file_that_no_reader_should_take_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    assert problem(tmp_path, text) == told


def test_a_bomb_of_aliases_is_refused_before_it_goes_off(tmp_path: Path) -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30))
    assert problem(tmp_path, f"l0: &l0 [x]\n{levels}\n") == "agent.yaml:2: an alias (*name); write the value out"
