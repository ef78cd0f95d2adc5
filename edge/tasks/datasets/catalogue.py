"""The data sets that are known by name: a row of the table each, and a pure function from its own record to what an item needs.

A field that breaks the schema raises TaskFileError; a record that is well formed but that nobody could judge (no tests, an empty box)
raises Unusable and is left out.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from edge.core.choices import option_name
from edge.core.types import AnswerKind
from edge.dagrpo.answers import last_boxed
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.tasks.record import Record, lone_surrogate

MOST_TESTS_CHARS = 65_536
"""Tests of one TACO problem beyond this length are dropped: some problems carry megabytes of them."""

_GSM8K_ANSWER = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*\Z")
_GSM8K_CALCULATION = re.compile(r"<<[^<>]*>>")
_MATH_LEVEL = re.compile(r"Level (\d|\?)")
_TACO_LEVELS = {"EASY": 1, "MEDIUM": 2, "MEDIUM_HARD": 3, "HARD": 4, "VERY_HARD": 5}
_LEAST_OPTIONS, _MOST_OPTIONS = 2, 10


class Unusable(Exception):
    """A record that cannot become an item though nothing is wrong with the file; the message is the reason."""


@dataclass(frozen=True, slots=True)
class ItemDraft:
    """The parts of an item in a record. `key` is its own id or ""; `part` the subject within the data set or ""."""

    question: str
    answer: str
    level: int = 0
    options: tuple[str, ...] = ()
    solution: str = ""
    preamble: str = ""
    key: str = ""
    part: str = ""


def gsm8k(record: Record) -> ItemDraft:
    """question, answer: lines of reasoning and `#### 42`. The level is the number of those lines."""
    text = record.text("answer")
    found = _GSM8K_ANSWER.search(text.rstrip())
    if found is None:
        raise record.bad("answer", "must end in #### and a number")
    lines = [_GSM8K_CALCULATION.sub("", line).strip() for line in text[: found.start()].splitlines() if line.strip()]
    answer = found[1].replace(",", "")
    return ItemDraft(record.text("question"), answer, level=len(lines), solution=_worked(lines, f"\\boxed{{{answer}}}"))


def math(record: Record) -> ItemDraft:
    """problem, level ("Level 3"), type (the subject), solution with the answer in its last box."""
    solution = record.text("solution")
    answer = last_boxed(solution.replace("\\fbox", "\\boxed"))
    if answer is None:
        raise record.bad("solution", "has no \\boxed{} answer")
    if not answer:
        raise Unusable("an empty box")
    level = _MATH_LEVEL.fullmatch(record.text("level", "Level ?").strip())
    if level is None:
        raise record.bad("level", 'must read like "Level 3"')
    return ItemDraft(
        record.text("problem"),
        answer,
        level=0 if level[1] == "?" else int(level[1]),
        solution=_worked([" ".join(solution.split())], f"\\boxed{{{answer}}}"),
        part=record.optional_text("type"),
    )


def arc(record: Record, level: int) -> ItemDraft:
    """ARC: id, question, choices {text, label}, answerKey; also the authors' own files, where question holds stem and choices."""
    inner = record.fields.get("question")
    if isinstance(inner, dict):
        record = Record({**record.fields, "question": inner.get("stem"), "choices": inner.get("choices")}, record.where)
    labels, options = _labelled(record)
    key = str(record.fields.get("answerKey"))
    if key not in labels:
        raise record.bad("answerKey", f"must be one of the labels {', '.join(labels)}, not {key!r}")
    answer = option_name(labels.index(key), options)
    return ItemDraft(record.text("question"), answer, level=level, options=options, key=record.optional_text("id"))


def _labelled(record: Record) -> tuple[list[str], tuple[str, ...]]:
    choices = record.fields.get("choices")
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        choices = {key: [choice.get(key) for choice in choices] for key in ("text", "label")}
    if not isinstance(choices, dict) or not isinstance(choices.get("label"), list):
        raise record.bad("choices", "must have the lists text and label")
    labels = [str(label) for label in choices["label"]]
    options = _options(record, choices.get("text"))
    if len(labels) != len(options) or len(set(labels)) != len(labels):
        raise record.bad("choices", "must have one label for each text, all different")
    return labels, options


def mmlu(record: Record) -> ItemDraft:
    """question, subject (in some copies `type`), choices, answer: an index or a letter. The training part may lie in `train`."""
    if isinstance(inner := record.fields.get("train"), dict):
        record = Record(inner, record.where)
    options = _options(record, record.fields.get("choices"))
    answer = record.fields.get("answer")
    if isinstance(answer, str) and re.fullmatch(r"[A-J]", answer.strip()):
        answer = ord(answer.strip()) - ord("A")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(options):
        raise record.bad("answer", f"must be an index from 0 to {len(options) - 1}, or a letter")
    subject = record.optional_text("subject") or record.optional_text("type")
    return ItemDraft(record.text("question"), option_name(answer, options), options=options, part=subject)


def _options(record: Record, texts: object) -> tuple[str, ...]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise record.bad("choices", "must hold a list of texts")
    if not _LEAST_OPTIONS <= len(texts) <= _MOST_OPTIONS:
        raise record.bad("choices", f"must hold {_LEAST_OPTIONS} to {_MOST_OPTIONS} texts, not {len(texts)}")
    return tuple(texts)


def humaneval(record: Record) -> ItemDraft:
    """task_id, prompt, canonical_solution, test, entry_point. The tests end in the call `check(entry_point)`."""
    prompt, entry = record.text("prompt"), record.text("entry_point")
    tests = f"{record.text('test').rstrip()}\n\ncheck({entry})\n"
    program = f"```python\n{prompt}{record.text('canonical_solution').rstrip()}\n```"
    return ItemDraft(
        prompt,
        tests,
        preamble=given_code(record, prompt, entry),
        solution=_worked([f"complete the function {entry}"], f"\n{program}\n"),
        key=record.text("task_id"),
    )


def given_code(record: Record, prompt: str, entry: str) -> str:
    """Everything in the prompt but the function to be written: imports and helper functions, or ""."""
    try:
        nodes = ast.parse(prompt).body
    except (SyntaxError, ValueError) as error:
        raise record.bad("prompt", f"must be Python ({error})") from error
    wanted = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == entry]
    if not wanted:
        raise record.bad("entry_point", f"names no function of the prompt: {entry!r}")
    pieces = [ast.get_source_segment(prompt, node) or "" for node in nodes if node not in wanted]
    return "".join(f"{piece}\n" for piece in pieces)


def taco(record: Record) -> ItemDraft:
    """question, input_output (JSON text: inputs, outputs, fn_name where a function is called), starter_code, difficulty."""
    tests = _taco_tests(record)
    starter = record.optional_text("starter_code").strip()
    call = f"Write the function `{tests['fn_name']}`." if "fn_name" in tests else "Read from standard input and print the answer."
    given = f"\n\nStart from this code:\n```python\n{starter}\n```" if starter else ""
    key = record.fields.get("id")
    return ItemDraft(
        f"{record.text('question').strip()}{given}\n\n{call}",
        json.dumps(tests, ensure_ascii=False),
        level=_TACO_LEVELS.get(record.optional_text("difficulty").strip().upper(), 0),
        key="" if key is None else str(key),
        part=record.optional_text("source"),
    )


def _taco_tests(record: Record) -> dict[str, Any]:
    value = record.fields.get("input_output")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise record.bad("input_output", "must be JSON") from error
        if lone_surrogate(value) is not None:
            raise Unusable("half a character in the tests")
    if not isinstance(value, Mapping) or not all(isinstance(value.get(key), list) for key in ("inputs", "outputs")):
        raise record.bad("input_output", "must have the lists inputs and outputs")
    if len(value["inputs"]) != len(value["outputs"]):
        raise record.bad("input_output", "must have as many outputs as inputs")
    kept = _that_fit(value["inputs"], value["outputs"])
    if not kept:
        raise Unusable("no test, or none of a bearable length")
    name = value.get("fn_name")
    tests = {"inputs": [one for one, _ in kept], "outputs": [other for _, other in kept]}
    return {**tests, "fn_name": name} if isinstance(name, str) and name else tests


def _that_fit(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The pairs in order that fit into MOST_TESTS_CHARS together; a pair that does not fit is passed over."""
    kept, room = [], MOST_TESTS_CHARS
    for pair in zip(inputs, outputs, strict=True):
        length = len(json.dumps(pair, ensure_ascii=False))
        if length <= room:
            kept.append(pair)
            room -= length
    return kept


def _worked(lines: Sequence[str], answer: str) -> str:
    """A worked solution in the response format."""
    steps = "".join(f"Step {number}: {line}\n" for number, line in enumerate(lines, 1))
    return f"<think>\n{steps}</think>\n<answer>{answer}</answer>"


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set. `published` counts its train and test items on the hub.

    `config` and `hub_splits` are where it lies in the hub's parquet branch; `config`, else one of `subfolders`, is what its part is called
    inside a local copy of the whole. `unknown_split` is the split of a file whose name gives none: "hash" holds out one question in ten.
    """

    name: str
    about: str
    task: str
    kind: AnswerKind
    draft: Callable[[Record], ItemDraft]
    columns: tuple[str, ...]
    levels: tuple[int, ...]
    hub: str
    config: str
    published: tuple[int, int]
    hub_splits: tuple[str, ...] = ("train", "test")
    subfolders: tuple[str, ...] = ()
    unknown_split: Literal["hash", "test"] = "hash"

    @property
    def max_steps(self) -> int:
        """The paper's limit of reasoning steps for this task."""
        return STEP_LIMITS[self.task]


_ARC_COLUMNS = ("id", "question", "choices", "answerKey")

_ALL = (
    DataSet(
        name="gsm8k",
        about="grade-school word problems; the level is the number of lines of the reference solution",
        task="math",
        kind=AnswerKind.MATH,
        draft=gsm8k,
        columns=("question", "answer"),
        levels=tuple(range(1, 12)),
        hub="openai/gsm8k",
        config="main",
        published=(7473, 1319),
    ),
    DataSet(
        name="math",
        about="MATH-lighteval, competition problems in seven subjects",
        task="math",
        kind=AnswerKind.MATH,
        draft=math,
        columns=("problem", "level", "type", "solution"),
        levels=(1, 2, 3, 4, 5),
        hub="DigitalLearningGmbH/MATH-lighteval",
        config="default",
        subfolders=("data",),
        published=(7500, 5000),
    ),
    DataSet(
        name="arc-easy",
        about="grade-school science questions, the easy half",
        task="qa",
        kind=AnswerKind.CHOICE,
        draft=partial(arc, level=1),
        columns=_ARC_COLUMNS,
        levels=(1,),
        hub="allenai/ai2_arc",
        config="ARC-Easy",
        published=(2251, 2376),
    ),
    DataSet(
        name="arc-challenge",
        about="grade-school science questions, the half that simple methods get wrong",
        task="qa",
        kind=AnswerKind.CHOICE,
        draft=partial(arc, level=2),
        columns=_ARC_COLUMNS,
        levels=(2,),
        hub="allenai/ai2_arc",
        config="ARC-Challenge",
        published=(1119, 1172),
    ),
    DataSet(
        name="taco",
        about="TACO-verified, programming contests; one question in ten is held out",
        task="code",
        kind=AnswerKind.PROGRAM,
        draft=taco,
        columns=("id", "question", "input_output", "starter_code", "difficulty", "source"),
        levels=(1, 2, 3, 4, 5),
        hub="likaixin/TACO-verified",
        config="default",
        subfolders=("data",),
        published=(12898, 0),
    ),
    DataSet(
        name="mmlu",
        about="57 subjects from school to profession; learns from the auxiliary training set",
        task="qa",
        kind=AnswerKind.CHOICE,
        draft=mmlu,
        columns=("question", "subject", "type", "choices", "answer", "train"),
        levels=(),
        hub="cais/mmlu",
        config="all",
        hub_splits=("auxiliary_train", "test"),
        subfolders=("data",),
        published=(99842, 14042),
    ),
    DataSet(
        name="humaneval",
        about="164 functions to complete; for evaluation only",
        task="code",
        kind=AnswerKind.PROGRAM,
        draft=humaneval,
        columns=("task_id", "prompt", "canonical_solution", "test", "entry_point"),
        levels=(),
        hub="openai/openai_humaneval",
        config="openai_humaneval",
        hub_splits=("test",),
        published=(0, 164),
        unknown_split="test",
    ),
)

DATA_SETS: Mapping[str, DataSet] = {data_set.name: data_set for data_set in _ALL}
"""By the name on the command line."""
