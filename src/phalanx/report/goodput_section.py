"""The part of the page about goodput: a bar, and a table of what the time was spent on."""

from __future__ import annotations

import plotly.graph_objects as go

from phalanx.report import formatting
from phalanx.report.figure_style import QUIET, SHARE_COLOURS, Figure, plot_of
from phalanx.report.goodput import ROWS, Goodput
from phalanx.report.html import Section, Table

_COLOURS = {
    "training": SHARE_COLOURS["compute"],
    "input": SHARE_COLOURS["input"],
    "waiting": SHARE_COLOURS["communication"],
    "callbacks": SHARE_COLOURS["callbacks"],
    "validation": "#66ccee",
    "saving": SHARE_COLOURS["checkpoint"],
    "starting": "#b8bfca",
    "first_step": "#8f97a3",
    "repeated": "#ee8866",
    "failures": "#cc3311",
    "outside": QUIET,
}


def goodput_section(found: Goodput | None) -> Section:
    """What the time of the run was spent on; empty if nothing is known of it."""
    if found is None or found.seconds <= 0:
        return Section(title="Goodput")
    return Section(
        title=f"Goodput {formatting.percent(found.goodput)}",
        figures=[_bar(found)],
        tables=[_table(found)],
    )


def _bar(found: Goodput) -> Figure:
    traces = [
        go.Bar(
            y=["time"], x=[found.rows[row]], name=name, orientation="h",
            marker={"color": _COLOURS[row]}, hovertemplate="%{x:.4g} s",
        )
        for row, name in ROWS.items()
        if found.rows[row] > 0
    ]  # fmt: skip
    plot = plot_of(traces, x="seconds", height=170, barmode="stack")
    plot.update_yaxes(showticklabels=False)
    plot.update_layout(margin={"l": 16}, showlegend=True, legend={"traceorder": "normal"})
    return Figure(
        key="goodput",
        title="What the time of the run was spent on, over all attempts",
        plot=plot,
        notes=notes(found),
        has_steps=False,
        wide=True,
    )


def notes(found: Goodput) -> tuple[str, ...]:
    """What to know about the rows."""
    lines = []
    if found.not_measured:
        names = " and ".join(ROWS[row] for row in found.not_measured)
        lines.append(f"Not measured, so counted as training: {names}.")
    if found.steps_repeated:
        lines.append(f"{found.steps_repeated:,} steps were trained again after a restart.")
    if found.not_running > 0:
        apart = formatting.format_duration(found.not_running)
        lines.append(f"Not counted: {apart} in which the run had stopped and was not yet resumed.")
    return tuple(lines)


def _table(found: Goodput) -> Table:
    rows = [
        (name, formatting.format_duration(found.rows[row]), f"{found.fraction(row):.1%}")
        for row, name in ROWS.items()
        if found.rows[row] > 0 or row == "training"
    ]
    rows.append(("the run, over all attempts", formatting.format_duration(found.seconds), "100.0%"))
    return Table(title="Goodput", columns=("", "time", "share"), rows=rows, numeric=(1, 2))
