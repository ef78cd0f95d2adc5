"""Small made-up files with the exact schema of the public data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def gsm8k_rows(count: int, first: int = 0) -> Rows:
    return [
        {
            "question": f"Ida has {n} pens and buys 2 more. How many pens has she?",
            "answer": f"She buys <<2=2>>2.\nShe has {n}+2=<<{n}+2={n + 2}>>{n + 2} pens.\n#### {n + 2:,}",
        }
        for n in range(first, first + count)
    ]


def math_rows(count: int, first: int = 0) -> Rows:
    return [
        {
            "problem": f"What is $\\frac{{{n}}}{{7}}$ doubled?",
            "level": f"Level {n % 5 + 1}",
            "type": "Prealgebra",
            "solution": f"We double: $2\\cdot\\frac{{{n}}}{{7}} = \\boxed{{\\frac{{{2 * n}}}{{7}}}}$.",
        }
        for n in range(first, first + count)
    ]


def arc_rows(count: int, first: int = 0) -> Rows:
    def choices(n: int) -> Mapping[str, Sequence[str]]:
        labels = ["1", "2", "3", "4"] if n % 2 else ["A", "B", "C", "D"]
        return {"text": [f"rock {n}", f"leaf {n}", f"lamp {n}", f"cup {n}"], "label": labels}

    return [
        {
            "id": f"Mercury_{n}",
            "question": f"Which thing number {n} grows?",
            "choices": choices(n),
            "answerKey": "2" if n % 2 else "B",
        }
        for n in range(first, first + count)
    ]


def mmlu_rows(count: int, first: int = 0) -> Rows:
    return [
        {"question": f"Which number is {n}?", "subject": "counting", "choices": [str(n), "x", "y", "z"], "answer": 0}
        for n in range(first, first + count)
    ]


def taco_rows(count: int, first: int = 0) -> Rows:
    def row(n: int) -> Mapping[str, Any]:
        tests: dict[str, Any] = {"inputs": [f"{n}\n", "3\n"], "outputs": [f"{n + 1}\n", "4\n"]}
        starter = ""
        if n % 2:
            tests = {"fn_name": "next_one", "inputs": [[n], [3]], "outputs": [[n + 1], [4]]}
            starter = "def next_one(x):\n\t"
        return {
            "id": n,
            "question": f"Print the number after x. Story {n}.",
            "solutions": ["print(int(input()) + 1)"],
            "starter_code": starter,
            "input_output": json.dumps(tests),
            "difficulty": ("EASY", "MEDIUM", "MEDIUM_HARD", "HARD", "VERY_HARD", "UNKNOWN_DIFFICULTY")[n % 6],
            "raw_tags": "[]",
            "name": None,
            "source": "codewars" if n % 2 else "codeforces",
            "tags": "[]",
            "skill_types": "[]",
            "url": None,
            "Expected Auxiliary Space": None,
            "time_limit": None,
            "date": None,
            "picture_num": None,
            "memory_limit": None,
            "Expected Time Complexity": None,
        }

    return [row(n) for n in range(first, first + count)]


def humaneval_rows(count: int) -> Rows:
    return [
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef add_{n}(x: int) -> int:\n    """Add {n}."""\n',
            "canonical_solution": f"    return x + {n}\n",
            "test": f"\n\ndef check(candidate):\n    assert candidate(1) == {1 + n}\n\n",
            "entry_point": f"add_{n}",
        }
        for n in range(count)
    ]


def write_jsonl(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: Rows) -> Path:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def hub_folder(root: Path, name: str) -> Path:
    """The data set `name` as the hub's parquet branch lays it out: CONFIG/SPLIT/0000.parquet. Returns the CONFIG folder."""
    config, splits = {
        "gsm8k": ("main", {"train": gsm8k_rows(60), "test": gsm8k_rows(30, 1000)}),
        "math": ("default", {"train": math_rows(60), "test": math_rows(30, 1000)}),
        "arc-easy": ("ARC-Easy", {"train": arc_rows(60), "validation": arc_rows(9, 500), "test": arc_rows(30, 1000)}),
        "arc-challenge": ("ARC-Challenge", {"train": arc_rows(60), "test": arc_rows(30, 1000)}),
        "taco": ("default", {"train": taco_rows(120)}),
        "mmlu": ("all", {"auxiliary_train": mmlu_rows(60), "dev": mmlu_rows(5, 500), "test": mmlu_rows(30, 1000)}),
        "humaneval": ("openai_humaneval", {"test": humaneval_rows(30)}),
    }[name]
    for split, rows in splits.items():
        write_parquet(root / config / split / "0000.parquet", rows)
    return root / config
