"""The style of figures: colours for colour-blind people too, lines, and escaped texts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from phalanx.report.series import Series, thinned

PALETTE = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#ee8866")
QUIET = "#8a8f98"
SHARE_COLOURS = {
    "input": "#ee6677",
    "compute": "#4477aa",
    "communication": "#ccbb44",
    "callbacks": "#aa3377",
    "checkpoint": "#228833",
}
MOST_POINTS = 2000
"""Of one line; more cannot be distinguished on a screen."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the page.

    Attributes:
        key: its name in the page, made of letters, digits and "-".
        title: what it shows, in plain text.
        plot: the figure itself; text from the run in it is escaped.
        notes: what to know about it.
        has_steps: whether its lines can be drawn over steps and over time: their `x` holds
            the steps, their `customdata` the seconds.
        wide: whether it takes the page's whole width.
    """

    key: str
    title: str
    plot: go.Figure
    notes: tuple[str, ...] = ()
    has_steps: bool = True
    wide: bool = False


def escape(text: str) -> str:
    """Text of the run for a figure, where Plotly takes some HTML for markup."""
    return html.escape(text, quote=False)  # Plotly knows no entity for a quotation mark.


def colour(index: int) -> str:
    """The colour of the `index`-th of several equals."""
    return PALETTE[index % len(PALETTE)]


def line(
    series: Series, *, colour: str, name: str | None = None, mode: str = "lines", **style: Any
) -> go.Scatter:
    """One curve, thinned to what a screen can show; where it is not finite it has a gap."""
    short = thinned(series, MOST_POINTS)
    return go.Scatter(
        x=list(short.steps),
        y=[value if math.isfinite(value) else None for value in short.values],
        customdata=[round(second, 3) for second in short.seconds],
        name=escape(series.name if name is None else name),
        mode=mode if len(short.values) > 1 else "markers",
        line={"color": colour, "width": style.get("width", 1.6), "dash": style.get("dash")},
        marker={"color": colour, "size": style.get("size", 7)},
        opacity=style.get("opacity", 1.0),
        hovertemplate="%{y:.5g} at %{x:.6~g}",
    )


def plot_of(
    traces: Sequence[Any], *, y: str = "", x: str = "step", height: int = 300, **layout: Any
) -> go.Figure:
    """A figure with the page's looks; the page's script gives it the colours of its theme."""
    plot = go.Figure(data=list(traces))
    plot.update_layout(
        template="none",
        height=height,
        margin={"l": 58, "r": 16, "t": 12, "b": 42},
        hovermode="closest",
        showlegend=len(traces) > 1,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0.0},
        xaxis={"title": {"text": x}, "zeroline": False},
        yaxis={"title": {"text": escape(y)}, "zeroline": False, "automargin": True},
        **layout,
    )
    return plot


def not_finite_note(series: Sequence[Series]) -> tuple[str, ...]:
    """A sentence for the lines that hold NaN or infinities."""
    return tuple(
        f"{each.name}: not finite at {len(each.not_finite)} of {len(each.values)} points, "
        f"first at step {each.not_finite[0]}."
        for each in series
        if each.not_finite
    )
