"""The numbers that the paper published, for reference beside ours. Knows two CSV files; where they are not, there is no reference."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from edge.core.errors import EdgeError

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "paper"
METHODS = {
    "edge-only": "Edge Tuning Only",
    "naive-router": "Edge Tuning w/ Naive Router",
    "router": "Edge Tuning w/ Router",
    "grpo": "GRPO",
    "gvpo": "GVPO",
    "gapg": "GAPG",
    "da-grpo": "DA-GRPO",
}
"""What the paper calls the rows."""
NAMES = {**METHODS, "da-grpo-paper": "DA-GRPO, paper's rule"}
"""What tables call them; DA-GRPO by the paper's integral rule of λ has a row of its own."""
MODELS = {"nano-edge": "Qwen2.5-1.5B-Instruct", "nano-edge-llama": "Llama-3.2-3B-Instruct"}
"""The paper's SLM of the same architecture."""


@dataclass(frozen=True, slots=True)
class Published:
    """The rows of one of the paper's tables by (responses, model, method)."""

    rows: dict[tuple[str, str, str], dict[str, str]]

    def cell(self, responses: str, model: str, method: str, column: str) -> str:
        """One number as the paper prints it, in percent; "" where it has none."""
        row = self.rows.get((responses, MODELS.get(model, model), METHODS.get(method, method)), {})
        return row.get(column) or ""


def read_published(folder: Path, name: str) -> Published | None:
    """`table1` or `table2`; None where the folder has no such file. Raises EdgeError for one that cannot be read."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = {(row["responses"], row["model"], row["method"]): row for row in csv.DictReader(file)}
    except (OSError, KeyError, UnicodeDecodeError, csv.Error) as error:
        raise EdgeError(f"{path}: not a table of the paper ({error})") from error
    return Published(rows)
