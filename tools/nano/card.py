"""The tables of the model cards, written from the reports of `edge-agent eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge.core.errors import UsageError
from edge.tasks.practice import FAMILIES
from tools.markdown import table_lines

COLUMNS = ("format", "asks help", "kept accuracy", "forced-local accuracy", "tokens")


def card(reports: Sequence[Path]) -> str:
    """One table for each report, in the order given. Raises UsageError on a file that is not a report."""
    tables = []
    for path in reports:
        try:
            tables.append(table(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, LookupError, TypeError) as error:
            hint = "edge-agent eval --json-out FILE writes one"
            raise UsageError(f"{path} is no report of held-out scores ({error})", hint=hint) from None
    return "\n".join(tables)


def table(report: Mapping[str, Any]) -> str:
    """The scores of one report: all families, each family, each of its levels."""
    head = f"T = {report['temperature']:g}, n = {report['scores']['items']}"
    rows = [row("**all families**", report["scores"])]
    for family in report["families"]:
        rows.append(row(f"**{family['family']}**, usual mix", family["scores"]))
        bands = FAMILIES[family["family"]].bands
        rows += [row(f"{family['family']} {one['level']}, {bands[one['level']]}", one["scores"]) for one in family["levels"]]
    return "\n".join([*table_lines((head, *COLUMNS), rows), ""])


def row(name: str, scores: Mapping[str, Any]) -> list[str]:
    """The cells of one line; shares in per cent, forced-local accuracy with its 95 % interval."""
    low, high = scores["intervals"]["forced_local_accuracy"]
    return [
        name,
        percent(scores["format_ok"]),
        percent(scores["assist_rate"]),
        percent(scores["kept_accuracy"]),
        f"{percent(scores['forced_local_accuracy'])} [{percent(low)}, {percent(high)}]",
        f"{scores['mean_response_tokens']:.0f}",
    ]


def percent(share: float | None) -> str:
    """`84.5`, or a dash where nothing was counted."""
    return "-" if share is None else f"{100 * share:.1f}"
