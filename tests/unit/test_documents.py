"""Commands quoted in the documents work, quoted functions are there, links lead somewhere, and docs/extending.md's examples work."""

from __future__ import annotations

import ast
import importlib
import itertools
import random
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from coordinator.cli import main as coordinator_main
from coordinator.commands.main import app as coordinator_app
from coordinator.config import ServerConfig
from edge.cli.app import app
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.format import check_format
from edge.learning import methods
from edge.tasks.jsonl import read_file
from edge.tasks.practice import FAMILIES
from edge.tasks.practice.family import Family
from edge.tasks.registry import open_source
from edge.verifiers.by_kind import VerifierByKind
from tests.unit.test_methods import group
from tests.worlds.trained import training_groups

ROOT = Path(__file__).parents[2]
COORDINATOR = (ROOT / "docs" / "coordinator.md").read_text(encoding="utf-8")
FOLDERS = (
    "",
    "docs",
    "coordinator",
    "devices",
    "tools/experiments",
    "tools/integrations",
    "tools/integrations/verl",
    "tools/simulate",
)
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md") if path.name not in ("LOG.md", "REPORT.md"))
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
PROGRAMS: dict[str, Any] = {
    "edge-agent": typer.main.get_command(app),
    "edge-coordinator": typer.main.get_command(coordinator_app),
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def indented_code(page: str) -> list[str]:
    return [line.strip() for line in page.splitlines() if line.startswith("    ")]


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings have on a forge: lower case, without punctuation, blanks as hyphens."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, fragment in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        path = page.parent / target if target else page
        assert path.exists(), f"{name(page)} links to {target}"
        if fragment:
            assert fragment in anchors(path), f"{name(page)} links to {target}#{fragment}"


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_files_named_on_a_page_exist(page: Path) -> None:
    paths = re.findall(r"`((?:edge|coordinator|tools|tests|docs|proto|devices)/[\w/.-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []


def defined_in(path: Path) -> set[str]:
    """The names of all functions, methods and classes of a module."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_functions_quoted_with_their_file_are_there(page: Path) -> None:
    hops = re.findall(r"`([\w/]+\.py): (\w+)`", page.read_text(encoding="utf-8"))
    assert [f"{file}: {function}" for file, function in hops if function not in defined_in(ROOT / file)] == []
    assert hops or page.name not in ("dual.md", "response.md")


def quoted_commands(page: str) -> list[str]:
    """Every `edge-agent ...` and `edge-coordinator ...` of a page's code spans and shell blocks, without comment and redirection."""
    shell = "\n".join([*blocks(page, "sh"), *indented_code(page)]).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`((?:edge-agent|edge-coordinator) [^`]*)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    found = [line[line.index("edge-") :] for line in shell if re.search(r"(^|\| |/)edge-(agent|coordinator) ", line)]
    return [re.split(r" #| > | < | \| ", command)[0] for command in [*spans, *found]]


def subcommands(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words select, and the remaining words."""
    command, rest = PROGRAMS[words[0]], words[1:]
    while rest and rest[0] in subcommands(command):
        command, rest = subcommands(command)[rest[0]], rest[1:]
    if subcommands(command) and rest and not rest[0].startswith("-"):
        raise AssertionError(f"no command {' '.join(words)}")
    return command, rest


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_quoted_commands_and_their_options_exist(page: Path) -> None:
    for quoted in quoted_commands(page.read_text(encoding="utf-8")):
        command, rest = command_of(shlex.split(quoted))
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        used = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert used <= known, f"{name(page)}: {quoted}"


def help_of_tool(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What `python -m WORDS --help` prints. Fails where there is no such command."""
    found = importlib.import_module(words[0])
    play = found.main if hasattr(found, "main") else importlib.import_module(f"{words[0]}.__main__").main
    monkeypatch.setattr(sys, "argv", [*words, "--help"])
    with pytest.raises(SystemExit) as end:
        play()
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    return printed.out


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_quoted_commands_of_tools_and_their_options_exist(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # a bench's handler of SIGTERM would outlive the test
    text = page.read_text(encoding="utf-8").replace("python -m tools.bench ", "python -m tools.bench.")  # a part is a module
    for module, rest in dict.fromkeys(re.findall(r"python -m (tools\.[\w.]*\w)(?: ([^`\n#|>]*))?", text)):
        words = rest.split()
        chosen = [word for word in words[:1] if re.match(r"\w", word)]
        used = {word for word in words if word.startswith("--")}
        known = set(re.findall(r"--[\w-]+", help_of_tool([module, *chosen], monkeypatch, capsys)))
        assert used <= known, f"{name(page)}: {module} {rest}"


def test_every_agent_command_is_on_the_commands_page() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [
        command
        for command in subcommands(PROGRAMS["edge-agent"])
        if f"`edge-agent {command}" not in page and f"`{command} " not in page
    ] == []


@pytest.mark.parametrize(
    ("page", "schema"),
    [("README.md", AgentConfig), ("docs/privacy.md", AgentConfig), ("docs/coordinator.md", ServerConfig)],
)
def test_configuration_on_a_page_is_valid(page: str, schema: type[AgentConfig | ServerConfig], tmp_path: Path) -> None:
    texts = blocks((ROOT / page).read_text(encoding="utf-8"), "yaml")
    for text in texts:
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        assert resolve(schema, files=[tmp_path / "config.yaml"]).origins
    assert texts


@pytest.mark.parametrize("page", sorted((ROOT / "devices").glob("[!R]*.md")), ids=name)
def test_device_settings_on_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    settings = [line for line in indented_code(page.read_text(encoding="utf-8")) if re.match(r"[a-z_]+: ", line)]
    (tmp_path / "settings.yaml").write_text("\n".join(settings), encoding="utf-8")
    assert resolve(AgentConfig, files=[tmp_path / "settings.yaml"]).origins


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_of_the_first_fleet_are_those_that_pki_init_creates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = [line for block in blocks(COORDINATOR, "sh") for line in block.splitlines() if "pki init" in line]
    assert coordinator_main(line.split()[1:]) == 0
    tls = yaml.safe_load(blocks(COORDINATOR, "yaml")[0])["tls"]
    assert tls and all(Path(path).is_file() for path in tls.values())


def test_documented_forms_of_a_task_file_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    (tmp_path / "own.jsonl").write_text("".join(blocks(page, "json")), encoding="utf-8")
    (tmp_path / "own.csv").write_text("".join(blocks(page, "csv")), encoding="utf-8")
    found = [
        (item.kind.value, item.answer, item.task)
        for name in ("own.jsonl", "own.csv")
        for item in read_file(tmp_path / name).items
    ]
    assert found == [
        ("math", "12", "chat"),
        ("choice", "B", "chat"),
        ("math", "4711", "office"),
        ("text", "Ilka", "chat"),
        ("text", "Ilka", "office"),
        ("choice", "whale", "zoo"),
    ]


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def example(begins_with: str) -> str:
    [found] = [text for text in EXAMPLES if text.startswith(f"# {begins_with}")]
    return found


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_is_python(text: str) -> None:
    compile(text, "extending.md", "exec")


def test_family_example_is_a_family_after_one_table_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, object] = {}
    exec(example("edge/tasks/practice/sums.py"), scope)
    family = scope["SUMS"]
    assert isinstance(family, Family)
    monkeypatch.setitem(FAMILIES, family.name, family)
    items = list(itertools.islice(open_source("practice:sums").train(3), 50))
    assert {item.level for item in items} == set(family.levels)
    for item in items:
        assert check_format(item.solution, item.max_steps).ok
        assert VerifierByKind().is_correct(item, item.solution)
        assert not VerifierByKind().is_correct(item, "<think>\n</think>\n<answer>\\boxed{0}</answer>")
    assert family.draw(random.Random(1), "train", 2) == family.draw(random.Random(1), "train", 2)


def test_method_example_learns_from_scored_groups() -> None:
    scope = dict(vars(methods))
    exec(example("edge/learning/methods.py"), scope)
    [trained] = training_groups(scope["Reinforce"](), [group("rwhf")])
    assert [sample.advantage for sample in trained.samples] == [1.0, 0.0, 1.0, 0.0]
    assert trained.group_weight == 1.0


def test_verifier_example_judges_as_its_row_asks() -> None:
    row, module = example("edge/core/types.py").split("# edge/verifiers/number_set.py\n")
    scope: dict[str, object] = {}
    exec(module, scope)
    exec(row, scope)
    name, instruction, verifier = scope["NUMBER_SET"]
    assert (name, verifier) == ("number_set", "edge.verifiers.number_set:NumberSet")
    assert "commas" in instruction
    judge = scope["NumberSet"]()
    item = TaskItem("id", "math", "sets", 1, "test", "Which?", "3, 5", AnswerKind.MATH, 4)
    assert judge.is_correct(item, "<answer>\\boxed{5,3}</answer>")
    assert not judge.is_correct(item, "<answer>\\boxed{5}</answer>")
    assert not judge.is_correct(item, "nothing")
