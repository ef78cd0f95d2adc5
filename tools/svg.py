"""Figures as small SVG files: text stays text, and the same drawing gives the same bytes."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable
from typing import Any

from edge.core.errors import EdgeError
from edge.core.install import install_extra

COLOURS = ("#1f6fb4", "#d9730d", "#2a8c4a", "#8a4fb0", "#0f8b8d", "#b08900", "#b3261e", "#4a4a4a")
GREY = "#666666"
_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "tools.experiments",
}
_TAG = re.compile(rb"<[^>]*>")
_LONG_NUMBER = re.compile(rb"(?<=[ML\d\s\"(,-])(\d+\.\d{2})\d+")


def require_matplotlib() -> None:
    """Raises EdgeError where nothing can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise EdgeError("no figures: matplotlib is not installed", hint=install_extra("train"))


def drawn(paint: Callable[[Any], None], width_in: float, height_in: float) -> bytes:
    """What `paint` draws on a matplotlib figure of this size."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width_in, height_in), dpi=90, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return _rounded(svg.getvalue())


def _rounded(svg: bytes) -> bytes:
    """Round coordinates to a hundredth of a point, which halves the bytes; text and its numbers stay."""
    lines = _TAG.sub(lambda tag: _LONG_NUMBER.sub(rb"\1", tag[0]), svg).split(b"\n")
    return b"\n".join(line.rstrip() for line in lines)
