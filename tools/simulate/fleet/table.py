"""The scenario's schema as a table for the README; `python -m tools.simulate.fleet.table` prints it."""

from __future__ import annotations

from pydantic import BaseModel

from edge.config.reference import Key, keys_of, terms
from tools.simulate.fleet.scenario import Scenario

_ELSEWHERE = "coordinator."


def schema_table(schema: type[BaseModel]) -> str:
    """A row for each key, with what it may be and what it means; the coordinator's own sections are described elsewhere."""
    rows = [_row(key) for key in keys_of(schema) if not key.path.startswith(_ELSEWHERE)]
    return "\n".join(["| key | may be | meaning |", "|---|---|---|", *rows])


def _row(key: Key) -> str:
    kind = "section" if key.has_keys else terms(key)
    return f"| `{key.path}` | {_safe(kind)} | {_safe(key.description)} |"


def _safe(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


if __name__ == "__main__":
    print(schema_table(Scenario))
