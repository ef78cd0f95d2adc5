"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, its columns aligned so that it can be read as it is."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *rest = ("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells)
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rest]
