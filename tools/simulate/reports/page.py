"""Reports as one HTML file each: nothing is loaded, nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.places import put
from tools.simulate.reports import tables
from tools.simulate.reports.charts import Book
from tools.simulate.reports.drawing import Chart, require_matplotlib
from tools.simulate.reports.quantities import several
from tools.simulate.reports.result import SimulationResult

_TEMPLATES = Path(__file__).parent / "templates"


def write_report(result: SimulationResult, path: Path) -> None:
    """Write the report of a run; the same result gives the same bytes. Raises EdgeError without matplotlib."""
    heads, rows = tables.group_columns(result)
    write_page(
        path,
        "report.html",
        result=result,
        overview=tables.overview(result),
        heads=heads,
        rows=rows,
        reasons=tables.reasons(result),
        charts=Book(result).charts,
    )


def write_page(path: Path, template: str, *, charts: Any, **values: Any) -> None:
    """Fill a template and put it in its place in one move. `charts` is called where matplotlib is there."""
    require_matplotlib()
    drawn: Sequence[Chart] = charts()
    page = _environment().get_template(template).render(charts=drawn, **values)
    put(page.encode(), path)


def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["hours"] = hours
    environment.filters["several"] = several
    environment.filters["drawing"] = Markup  # by matplotlib, which escapes the texts it is given
    return environment


def hours(seconds: float) -> str:
    """A time of a run, as 36 h 15 min."""
    whole, minutes = divmod(round(seconds / 60), 60)
    return f"{whole} h {minutes} min" if minutes else f"{whole} h"
