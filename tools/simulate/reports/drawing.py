"""Figures as inline SVG that follow the page's colours.

Every colour is drawn as a placeholder and written as a CSS variable, so that one drawing is readable on light and on dark ground. Text
stays text. The same drawing gives the same bytes: no date, a fixed salt, ids of its own.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.errors import EdgeError
from edge.core.install import install_extra

LINES = 8
"""Colours for lines; further ones come again, with another stroke."""
_PLACES = {"ink": "#010203", "soft": "#010204", "line": "#010205", "alarm": "#010206", "good": "#010207"} | {
    f"c{number}": f"#0103{number:02x}" for number in range(LINES)
}
_STROKES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_DASHES = ("", "6 3", "2 2", "7 2 2 2")
_WIDTH_IN, _HEIGHT_IN = 5.2, 3.0
_NEAR = 0.04
"""Share of a figure's width that the number of an event needs."""
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "edge-simulation",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _PLACES["soft"],
    "axes.labelcolor": _PLACES["ink"],
    "text.color": _PLACES["ink"],
    "xtick.color": _PLACES["soft"],
    "ytick.color": _PLACES["soft"],
    "xtick.labelcolor": _PLACES["ink"],
    "ytick.labelcolor": _PLACES["ink"],
    "grid.color": _PLACES["line"],
    "grid.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "path.simplify_threshold": 0.2,
}


@dataclass(frozen=True, slots=True)
class Stroke:
    """How a line looks: the name of a colour of the page and which of the dashes."""

    colour: str
    dash: int = 0

    @property
    def style(self) -> dict[str, Any]:
        """As matplotlib takes it."""
        return {"color": _PLACES[self.colour], "linestyle": _STROKES[self.dash % len(_STROKES)]}

    @property
    def dashes(self) -> str:
        """As `stroke-dasharray` takes it."""
        return _DASHES[self.dash % len(_DASHES)]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of a page. `alt` tells in words what the drawing shows; `legend` names its strokes."""

    title: str
    caption: str
    alt: str
    svg: str
    legend: tuple[tuple[Stroke, str], ...] = ()


def stroke_of(number: int) -> Stroke:
    """That of the line with this number, counted from 0."""
    return Stroke(f"c{number % LINES}", number // LINES)


def colour(name: str) -> str:
    """The placeholder that becomes the page's colour of this name: ink, soft, line, alarm, good, c0 to c7."""
    return _PLACES[name]


def require_matplotlib() -> None:
    """Raises EdgeError where nothing can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise EdgeError("no report: matplotlib is not installed", hint=install_extra("train"))


def drawn(name: str, paint: Callable[[Any], None]) -> str:
    """What `paint` draws on a matplotlib axis, as an <svg> element that takes the size of its place.

    `name` is a word that no other drawing of the page has.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    text = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        figure.patch.set_alpha(0)
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        paint(axis)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue(), name)


def unit_of_time(ends_s: float) -> tuple[float, str]:
    """Seconds and name of the unit in which so much time is shown: hours, or days where they are many."""
    return (3600.0, "hours") if ends_s <= 72 * 3600 else (86400.0, "days")


def time_axis(axis: Any, ends_s: float, events: Sequence[tuple[float, str]]) -> None:
    """The x axis from 0 to `ends_s`, in `unit_of_time`, with a numbered line for each event."""
    from matplotlib.ticker import MaxNLocator, MultipleLocator

    unit_s, name = unit_of_time(ends_s)
    axis.set_xlim(0, ends_s / unit_s)
    axis.set_xlabel(f"{name} since the start")
    hours = ends_s / 3600
    steps = [each for each in (1, 2, 3, 6, 12) if hours / each <= 8]
    axis.xaxis.set_major_locator(MultipleLocator(steps[0]) if unit_s == 3600 and hours > 4 and steps else MaxNLocator(7))
    for at, _ in events:
        axis.axvline(at / unit_s, color=_PLACES["alarm"], linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    for at, label in _event_labels([at for at, _ in events], ends_s):
        axis.annotate(
            label, (at / unit_s, 1.0), xycoords=axis.get_xaxis_transform(), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=10, color=_PLACES["alarm"], annotation_clip=False,
        )  # fmt: skip


def _event_labels(at_s: Sequence[float], ends_s: float) -> list[tuple[float, str]]:
    """(seconds, numbers): those of events that are too near to each other stand together."""
    labels: list[tuple[float, str]] = []
    for number, at in enumerate(at_s, 1):
        if labels and at - labels[-1][0] < _NEAR * ends_s:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}, {number}")
        else:
            labels.append((at, str(number)))
    return labels


def log_axis(axis: Any, written: Callable[[float], str], *, subs: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """A logarithmic x axis with plain numbers at 1, 2, 5, 10 ..., as `written`, and none between."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=subs))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axis.xaxis.set_minor_formatter(NullFormatter())


def from_nothing(axis: Any) -> None:
    """Let the y axis begin at 0 (below where something is), with room above what is highest."""
    low, high = axis.get_ylim()
    axis.set_ylim(min(0.0, low), max(high, high + 0.06 * (high - min(0.0, low))))


def _inline(svg: str, name: str) -> str:
    """Only the element, with the page's colours and fonts and ids that no other drawing has."""
    svg = svg[svg.index("<svg") :].strip()
    head, _, body = svg.partition(">")
    view = re.search(r'viewBox="[^"]+"', head)
    assert view is not None
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'((?: id="|url\(#|href="#))', rf"\g<1>{name}-", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r"font-family: [^;\"]+; ?", "", re.sub(r"font: (\d+(?:\.\d+)?)px [^;\"]+", r"font-size: \1px", body))
    for variable, place in _PLACES.items():
        body = body.replace(place, f"var(--{variable})")
    return f'<svg {view[0]} aria-hidden="true" focusable="false">{body}'
