"""Options mean the same in every command and are the recorded origin of each value; notices before a command starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from edge.agent import Agent
from edge.app.agents import check_serving
from edge.app.settings import keep_model, state_folder, switched_off
from edge.cli import doctor
from edge.cli.app import app
from edge.cli.settings import Settings, privacy_line, starting_lines
from edge.core.environment import NO_CLOUD, why_no_cloud
from edge.core.errors import ConfigError, ModelFileError, StateError, UsageError
from edge.models.catalogue import find_model
from edge.state.folder import StateFolder
from edge.state.reader import MODEL
from edge.state.rows import Lineage
from edge.training.device import choose_device
from tests.unit.conftest import EdgeAgent

CUDA = "learning.device=cuda"


@pytest.fixture(autouse=True)
def _no_trial_of_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding belongs to the engine's own tests."""
    monkeypatch.setattr("edge.cli.doctor.llama_fault", lambda: ("", False))


def lines(*sets: str, profile: Path | None = None, learns: bool = True) -> list[str]:
    return list(starting_lines(Settings(sets=sets, device_profile=profile).resolve(), learns=learns))


def test_unusable_gpu_layers_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("edge.inference.gguf_model.llama_offloads", lambda: False)
    [notice] = lines("engine.gpu_layers=4", learns=False)
    finding = findings("engine.gpu_layers=4", state=tmp_path)["gpu layers"]
    assert notice.startswith("engine.gpu_layers is 4") and (finding.state, finding.text) == ("warn", notice)
    monkeypatch.setattr("edge.inference.gguf_model.llama_offloads", lambda: True)
    assert lines("engine.gpu_layers=4") == []


def test_profile_with_learning_hours_is_applied_and_reported(tmp_path: Path) -> None:
    profile = tmp_path / "laptop.yaml"
    profile.write_text("learning: {when: {quiet_s: 300, from_hour: 22, until_hour: 7}}\n")
    when = Settings(device_profile=profile).config().learning.when
    assert (when.quiet_s, when.from_hour, when.until_hour, when.on_mains) == (300.0, 22, 7, True)
    [notice] = lines(profile=profile)
    assert all(f"learning.when.{key}" in notice for key in ("quiet_s", "from_hour", "until_hour"))
    [notice] = lines("learning.when.from_hour=1", "learning.when.quiet_s=0", profile=profile)
    assert "until_hour" in notice and "from_hour" not in notice and "quiet_s" not in notice, (
        "a value set by an option is not the profile's"
    )
    assert lines(profile=profile, learns=False) == []
    profile.write_text("learning: {when: {from_hour: 25}}\n")
    with pytest.raises(ConfigError, match=r"learning\.when\.from_hour"):
        Settings(device_profile=profile).config()


def test_a_state_folder_is_opened_with_the_model_it_was_used_with(tmp_path: Path) -> None:
    state, other = tmp_path / "state", "nano-edge-llama"
    assert Settings(state=state).config().model.path == "nano-edge", "nothing was used yet"
    with StateFolder(state) as folder:
        keep_model(folder, other)
        keep_model(folder, "nano-edge")
        keep_model(folder, other)  # nothing was trained, so another model may follow
        folder.set_lineage(Lineage(1, 1))
        keep_model(folder, str(find_model(other)))  # the same file
        with pytest.raises(StateError, match=rf"trained with {find_model(other)}"):
            keep_model(folder, "nano-edge")
    with pytest.raises(StateError, match="trained with"):
        check_serving(Settings(state=state, model="nano-edge").config())
    moved = tmp_path / "moved.gguf"
    moved.symlink_to(find_model(other))
    with StateFolder(state) as folder:
        folder.set_meta(MODEL, str(tmp_path / "where-it-was.gguf"))
        keep_model(folder, str(moved))
        assert folder.meta(MODEL) == str(moved), "what is no longer there is no other model"
        folder.set_meta(MODEL, str(find_model(other)))
    resolved = Settings(state=state).resolve()
    assert (resolved.config.model.path, resolved.origins["model.path"]) == (str(find_model(other)), f"the state folder {state}")
    assert Settings(sets=[f"state_folder={state}"]).config().model.path == str(find_model(other))
    assert Settings(state=state, model="nano-edge").config().model.path == "nano-edge"
    assert Settings(state=state, sets=["model.path=nano-edge"]).config().model.path == "nano-edge"


@pytest.mark.parametrize("option", ["question", "answer", "ask"])
def test_empty_words_for_a_file_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=rf"--{option} is empty"):
        Settings(tasks=["mails.csv"], **{option: " "}).config()  # type: ignore[arg-type]


ANTHROPIC = tuple(
    f"coordinator.embedded.{setting}" for setting in ("upstream=anthropic", "model=claude-sonnet-4-5-20250929", "api_key_env=KEY")
)


def private(*sets: str) -> str:
    return privacy_line(Settings(sets=sets).config())


def test_run_explains_the_handling_of_private_data_before_asking_a_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private(*ANTHROPIC) == private("coordinator.address=c:1")
    assert all(kind in private(*ANTHROPIC) for kind in ("secret", "email", "card", "iban", "phone", "ip", "path"))
    some, none = private(*ANTHROPIC, "privacy.kinds=[email]", "privacy.terms=[Ada]"), private(*ANTHROPIC, "privacy.kinds=[]")
    assert "email, your terms" in some and "secret" not in some and "nothing" in none
    assert "as it is" in private(*ANTHROPIC, "privacy.enabled=false")
    assert private() == private(*ANTHROPIC, "mode=local-only") == ""
    monkeypatch.setenv("EDGE_AGENT_NO_CLOUD", "1")
    assert private(*ANTHROPIC) == ""


def test_responses_beyond_any_context_are_reported() -> None:
    [line] = lines("learning.max_tokens=400", "learning.context_tokens=400")
    assert "learning.max_tokens" in line and "learning.context_tokens" in line
    assert lines("learning.max_tokens=200", "learning.context_tokens=400") == []


def findings(*sets: str, state: Path) -> dict[str, doctor.Finding]:
    return {found.name: found for found in doctor.examine(Settings(sets=sets, state=state))}


def test_doctor_fails_where_training_would_with_the_same_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "_loaded", lambda path: path)
    with pytest.raises(UsageError) as caught:
        choose_device("cuda")
    found = findings(CUDA, state=tmp_path)["training"]
    assert (found.state, found.text, found.hint) == ("fail", str(caught.value), caught.value.hint)
    assert findings("learning.device=cpu", state=tmp_path)["training"].text == "torch trains on cpu"
    assert "training" not in findings(state=tmp_path)


def test_missing_hub_model_must_be_pulled_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelFileError, match="not here yet") as caught:
        find_model("Maker/Model-1.5B")
    assert "edge-agent models pull Maker/Model-1.5B" in caught.value.hint
    for path in ("models/mine.gguf", "/models/mine", "./mine", "../a/b", "a/b/c", "mine"):
        with pytest.raises(ModelFileError, match="no such model file"):
            find_model(path)


def test_taken_port_is_reported_before_the_model_is_loaded_and_a_locked_folder_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_agent: EdgeAgent
) -> None:
    async def load(agent: Agent) -> Agent:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(Agent, "__aenter__", load)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["run", "--no-learn", "--state", str(tmp_path / "state"), "--port", str(taken.getsockname()[1])]
        ended = edge_agent(*words)
        assert ended.code == 1 and str(taken.getsockname()[1]) in ended.err and "--port" in ended.err
        with StateFolder(tmp_path / "state"):  # which the failed start has let go
            ended = edge_agent(*words)
        assert ended.code == 1 and "another agent is using this state folder" in ended.err


def test_tasks_become_phases_with_rate_and_steps() -> None:
    config = Settings(tasks=["practice:arith", "mine.jsonl"], target_rate=0.2, phase_steps=40).config()
    assert [(phase.source, phase.target_rate, phase.steps) for phase in config.phases] == [
        ("practice:arith", 0.2, 40),
        ("mine.jsonl", 0.2, 40),
    ]


def test_a_rate_without_tasks_applies_to_every_phase_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("phases:\n  - {source: 'practice:arith', steps: 3}\n  - {source: mine.jsonl}\n", encoding="utf-8")
    resolved = Settings(file, target_rate=0.6).resolve()
    assert [phase.target_rate for phase in resolved.config.phases] == [0.6, 0.6]
    assert resolved.origins["phases.1.target_rate"] == "--target-rate"


def test_invalid_option_is_wrong_usage_and_an_invalid_file_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--mode"):
        Settings(mode="sideways").config()
    with pytest.raises(UsageError, match=r"--set learning\.groupsize: unknown key"):
        Settings(sets=["learning.groupsize=3"]).config()
    with pytest.raises(UsageError, match="--device-profile: device profile"):
        Settings(device_profile=tmp_path / "none.yaml").config()
    file = tmp_path / "agent.yaml"
    file.write_text("mode: sideways\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"agent\.yaml:1"):
        Settings(file).config()


PLACES = {
    "nothing": {},
    "a folder": {"state": Path("~/agent")},
    "a mode": {"mode": "local-only"},
    "a folder and a mode": {"state": Path("x"), "mode": "auto"},
    "--set": {"sets": ["state_folder=/set"]},
    "--set of another key": {"sets": ["mode=cloud-only"], "state": Path("x")},
    "a file": {"config_file": "agent.yaml"},
    "a file and a folder": {"config_file": "agent.yaml", "state": Path("x")},
    "a rule": {"never_send": ["secret"], "mode": "auto"},
}


@pytest.mark.parametrize("given", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("forbidden", ["", "0", "1"])
def test_what_is_known_without_the_configuration_is_what_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], forbidden: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(NO_CLOUD, forbidden)
    Path("agent.yaml").write_text("state_folder: ~/of-the-file\nmode: local-only\n", encoding="utf-8")
    settings = Settings(**{**given, "config_file": Path(given["config_file"]) if "config_file" in given else None})
    config = settings.config()
    assert settings.state_folder() == state_folder(config)
    if settings.is_plain:
        assert why_no_cloud(settings.mode) == switched_off(config)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every command that does something, by its words, with its options by name."""
    if not hasattr(command, "commands") or (path and command.params):
        yield " ".join(path), {name: param for param in command.params for name in param.opts}
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(get_command(app)))
SHARED = [
    "--state",
    "--config",
    "--set",
    "--model",
    "--coordinator",
    "--mode",
    "--seed",
    "--json",
    "--device-profile",
    "--never-send",
]


def test_every_command_with_a_configuration_accepts_the_state_folder_a_file_and_single_values() -> None:
    configured = {name: options for name, options in ALL.items() if {"--config", "--set", "--state"} & set(options)}
    assert [name for name, options in configured.items() if {"--config", "--set", "--state"} - set(options)] == []
    assert {"run", "status", "learn", "eval", "ask", "doctor", "config show", "tasks show", "privacy check"} <= set(configured)


def test_an_option_of_several_commands_has_one_form() -> None:
    for option in SHARED:
        assert len({options[option].metavar for options in ALL.values() if option in options}) == 1, option
