"""How a user selects, sees and refuses the sandbox: configuration, --unsafe-programs, doctor, and the check before learning begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.app import agents, judging
from edge.cli import doctor
from edge.cli.settings import Settings
from edge.config.agent import resolve_agent_config
from edge.config.schema import AgentConfig
from edge.core.errors import ConfigError
from edge.core.types import AnswerKind, TaskItem
from edge.verifiers.sandbox import choice
from tests.unit.conftest import EdgeAgent
from tests.worlds.data_set_files import write_jsonl


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing but `none` works."""
    look_for = choice.look_for
    monkeypatch.setattr(
        choice, "look_for", lambda name: look_for(name) if name == "none" else choice.Found(name, None, "not here")
    )


def program_tasks(tmp_path: Path) -> Path:
    program = {"kind": "program", "task": "code"}
    items = [{"question": f"square {n}", "tests": f"assert f({n}) == {n * n}", **program} for n in range(40)]
    return write_jsonl(tmp_path / "tasks.jsonl", items)


def config(*sets: str, **options: object) -> AgentConfig:
    return Settings(sets=sets, **options).config()  # type: ignore[arg-type]


def test_no_sandbox_at_all_needs_a_second_word() -> None:
    with pytest.raises(ConfigError, match="unsafe"):
        resolve_agent_config(sets=["programs.sandbox=none"])
    chosen = resolve_agent_config(sets=["programs.sandbox=none", "programs.unsafe=true"]).config.programs
    assert (chosen.sandbox, chosen.unsafe) == ("none", True)


@pytest.mark.usefixtures("no_sandbox")
def test_learning_from_programs_without_a_sandbox_is_refused_before_it_begins(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    tasks, out = program_tasks(tmp_path), tmp_path / "out"
    for words in (("learn", "--out", str(out)), ("run", "--state", str(out), "--no-serve")):
        edge_agent(*words, "--tasks", str(tasks), "--steps", "1").refused(2, "cannot be isolated", "--unsafe-programs")
    assert not out.exists()
    agents.check_inputs(config(tasks=["practice:arith"]))
    agents.check_inputs(config(tasks=[str(tasks)], unsafe_programs=True))


def test_the_verifier_of_an_agent_has_the_configured_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "best_sandbox", lambda: choice.look_for("none").sandbox)
    verifier = judging.build_verifier(config("programs.timeout_s=0.5", "programs.memory_mib=200"))
    item = TaskItem("id", "code", "test", 0, "test", "q", "assert f(1) == 2\n", AnswerKind.PROGRAM, 4)
    assert verifier.is_correct(item, "```python\ndef f(x): return 2\n```")
    assert not verifier.is_correct(item, "```python\ndef f(x):\n    while True: pass\n```")
    assert not verifier.is_correct(item, f"```python\ndef f(x): return len(bytearray({1 << 28})) and 2\n```")


@pytest.mark.usefixtures("no_sandbox")
def test_the_doctor_warns_without_a_sandbox_and_with_an_unsafe_one() -> None:
    missing = doctor.check_sandbox(AgentConfig())
    assert (missing.state, "--unsafe-programs" in missing.hint) == ("warn", True)
    assert doctor.check_sandbox(config(unsafe_programs=True)).state == "warn"
