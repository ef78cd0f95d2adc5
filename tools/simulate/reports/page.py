"""The report of a run as one HTML file: nothing is loaded, nothing runs."""

from __future__ import annotations

import base64
from pathlib import Path

from tools.places import put
from tools.simulate.reports import tables
from tools.simulate.reports.charts import charts_of
from tools.simulate.reports.quantities import several
from tools.simulate.reports.result import SimulationResult
from tools.svg import require_matplotlib

_TEMPLATES = Path(__file__).parent / "templates"


def write_report(result: SimulationResult, path: Path) -> None:
    """Write the report of a run in one move; the same result gives the same bytes. Raises EdgeError without matplotlib."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    require_matplotlib()
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"hours": hours, "several": several, "base64": lambda svg: base64.b64encode(svg).decode()}
    heads, rows = tables.group_columns(result)
    page = environment.get_template("report.html").render(
        result=result,
        overview=tables.overview(result),
        heads=heads,
        rows=rows,
        reasons=tables.reasons(result),
        charts=charts_of(result),
    )
    put(page.encode(), path)


def hours(seconds: float) -> str:
    """A time of a run, as 36 h 15 min."""
    whole, minutes = divmod(round(seconds / 60), 60)
    return f"{whole} h {minutes} min" if minutes else f"{whole} h"
