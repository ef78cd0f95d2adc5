"""The checks of `edge-agent learn` before it loads or creates anything; a run folder holds one run: the settings under which it resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.learn import with_an_end
from edge.cli.settings import Settings
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError, UsageError
from edge.learning.run_folder import other_settings, require_same_run
from tests.unit.conftest import EdgeAgent


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--tasks", "nowhere.jsonl"], 1, "no such task file"),
        (["--tasks", "practice:nonsense"], 2, "unknown practice family"),
        (["--tasks", "practice:arith", "--model", "nowhere.gguf"], 1, "no such model file"),
        (["--tasks", "practice:arith", "--eval-every", "10"], 2, "--eval-every"),
        (["german.csv"], 1, "german.csv:1"),
    ],
)
def test_a_bad_task_source_or_model_ends_learn_before_anything_is_created(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edge_agent: EdgeAgent,
    words: list[str],
    code: int,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "german.csv").write_text("frage,antwort\nWer?,Ilka\n", encoding="utf-8")
    edge_agent("learn", *words).refused(code, complaint)
    assert [path.name for path in tmp_path.iterdir()] == ["german.csv"]


def lengths(settings: Settings) -> list[tuple[str, int | None]]:
    return [(phase.source, phase.steps) for phase in with_an_end(settings).config().phases]


def test_learning_ends_after_the_given_steps_or_150_of_the_last_source(tmp_path: Path) -> None:
    assert lengths(Settings()) == [("practice:group1", 150), ("practice:group2", 150)]
    assert lengths(Settings(phase_steps=4)) == [("practice:group1", 4), ("practice:group2", 4)]
    file = tmp_path / "agent.yaml"
    file.write_text("phases:\n  - {source: 'practice:arith', steps: 7}\n  - {source: 'practice:facts'}\n", encoding="utf-8")
    assert lengths(Settings(config_file=file)) == [("practice:arith", 7), ("practice:facts", 150)]


def test_a_file_alone_is_enough_and_tasks_add_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "facts.csv"
    file.write_text("question,answer\nWho?,Ilka\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    planned: list[list[tuple[str, int | None]]] = []
    monkeypatch.setattr(
        "edge.app.agents.check_inputs", lambda config: planned.append([(one.source, one.steps) for one in config.phases])
    )
    monkeypatch.setattr("edge.learning.run_folder.require_same_run", stop)
    for words in ([str(file), "--steps", "5"], [str(file), "--tasks", "practice:arith"]):
        assert main(["learn", *words]) == 1
    assert planned == [[(str(file), 5)], [(str(file), 150), ("practice:arith", 150)]]


def stop(*_: object) -> None:
    raise EdgeError("far enough")


ARITH = "phases=[{source: 'practice:arith', steps: 2, target_rate: 0.3}]"
BOTH = "phases=[{source: 'practice:arith', steps: 2}, {source: 'practice:facts', steps: 2}]"


def config(*sets: str, phases: str = ARITH) -> AgentConfig:
    return Settings(sets=[phases, *sets]).config()


def begun(folder: Path, *sets: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(Settings(sets=[ARITH, *sets]).resolve().to_yaml(), encoding="utf-8")
    (folder / "events.jsonl").write_text('{"kind": "run_started"}\n{"kind": "step_finished", "step": 1}\n', encoding="utf-8")
    return folder


def test_a_second_run_with_other_settings_is_refused_and_the_record_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_agent: EdgeAgent
) -> None:
    monkeypatch.chdir(tmp_path)
    before = (begun(tmp_path / "runs" / "arith-0", "gate.enabled=false") / "config.yaml").read_text()
    other = edge_agent("learn", "--tasks", "practice:arith", "--steps", "2", "--target-rate", "0.7")
    other.refused(2, "runs/arith-0", "target_rate 0.3 -> 0.7", "--out")
    assert (tmp_path / "runs/arith-0/config.yaml").read_text() == before
    assert not (tmp_path / "runs/arith-0/state").exists()


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ((), ""),
        (("engine.threads=1", "learning.torch_threads=1", "budget.calls_limit=60", "learning.when.quiet_s=9"), ""),
        (("coordinator.embedded.api_key=env:KEY", "privacy.terms=[me]", "serve.port=0"), ""),
        (("learning.group_size=4",), "learning.group_size 8 -> 4"),
        (("coordinator.embedded.model=other", "mode=local-only"), "mode auto -> local-only, coordinator.embedded.model "),
        (("phases.0.steps=9",), ""),
        (("phases.0.steps=1",), "steps 2 -> 1"),
    ],
)
def test_measured_settings_may_not_change_and_operational_ones_may(sets: tuple[str, ...], expected: str) -> None:
    found = other_settings(config(), config(*sets))
    assert expected in found
    assert bool(expected) == bool(found)


def test_a_run_may_grow_at_its_end_only() -> None:
    assert other_settings(config(), config(phases=BOTH)) == ""
    assert other_settings(config(phases=BOTH), config(phases=BOTH)) == ""
    assert other_settings(config(phases=BOTH), config("phases.1.steps=3", phases=BOTH)) == ""
    assert other_settings(config(phases=BOTH), config("phases.0.steps=3", phases=BOTH)) == "phases.0.steps 2 -> 3"
    assert "phases.1.source practice:facts -> none" in other_settings(config(phases=BOTH), config())


def test_settings_without_results_do_not_bind_a_run(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    require_same_run(tmp_path / "none", config("learning.group_size=4"))
    (folder / "events.jsonl").write_text('{"kind": "run_started"}\n', encoding="utf-8")
    require_same_run(folder, config("learning.group_size=4"))
    (folder / "evals.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="other settings"):
        require_same_run(folder, config("learning.group_size=4"))


def test_unreadable_record_is_not_overwritten(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    (folder / "config.yaml").write_text("learning: {no_such_key: 1}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no_such_key") as caught:
        require_same_run(folder, config())
    assert "--out" in caught.value.hint


def test_run_resumes_only_from_its_own_state_folder_even_after_both_moved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begun(folder, f"state_folder={folder}/state")
    require_same_run(folder, config(f"state_folder={folder}/../run/state"))
    with pytest.raises(UsageError, match=r"state_folder .*elsewhere"):
        require_same_run(folder, config(f"state_folder={tmp_path}/elsewhere"))
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="state_folder"):
        require_same_run(moved, config(f"state_folder={moved}/state"))
    (moved / "state").mkdir()
    require_same_run(moved, config(f"state_folder={moved}/state"))
