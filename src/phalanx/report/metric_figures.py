"""Figures of what was learned: losses and metrics, learning rate, gradients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.monitoring.events import Gradients
from phalanx.report.figure_style import QUIET, Figure, colour, line, not_finite_note, plot_of
from phalanx.report.run_data import RunData
from phalanx.report.series import TOTAL, Series, gradients, learning_rate, metrics

_LAYOUT: dict[str, dict[str, Any]] = {
    "step": {"colour": colour(0), "width": 1.2, "opacity": 0.65},
    "lost": {"colour": "#ee7733", "dash": "dot", "width": 2.0},
    "epoch": {"colour": colour(0), "mode": "lines+markers", "width": 2.2},
    "validation": {"colour": colour(1), "mode": "lines+markers", "width": 2.2},
}

TAGS = (
    ("gradients/norm", "Gradient norm, before clipping", "L2 norm"),
    ("gradients/clipped_norm", "Gradient norm, after clipping", "L2 norm"),
    ("gradients/clip_fraction", "Share of sampled steps that were clipped", "share"),
    ("gradients/cosine_similarity", "Agreement of each worker with the total", "cosine"),
    ("gradients/noise_scale", "Gradient noise scale: the critical batch size", "samples"),
)


def learning_figures(data: RunData) -> list[Figure]:
    """Every metric, and the learning rate."""
    found = [
        metric_figure(name, [each for each in series if each.of == name])
        for series in [metrics(data)]
        for name in dict.fromkeys(each.of for each in series)
    ]
    rates = learning_rate(data)
    if rates:
        traces = [line(each, colour=colour(i)) for i, each in enumerate(rates)]
        plot = plot_of(traces, y="learning rate")
        plot.update_yaxes(rangemode="tozero")  # Else a constant one is drawn between -1 and 1.
        found.append(Figure(key="learning-rate", title="Learning rate", plot=plot))
    return found


def metric_figure(name: str, series: Sequence[Series]) -> Figure:
    """One metric: every reading, every epoch, validation, and what a restart undid."""
    ordered = sorted(series, key=lambda each: list(_LAYOUT).index(each.kind))
    return Figure(
        key=f"metric-{safe(name)}",
        title=name,
        plot=plot_of([line(each, **_LAYOUT[each.kind]) for each in ordered], y=name),
        notes=not_finite_note(ordered),
    )


def gradient_figures(data: RunData) -> list[Figure]:
    """What the gradient logger recorded of the whole, and how each variable's norm moved."""
    found = []
    for tag, title, unit in TAGS:
        series = gradients(data, tag)
        if series:
            traces = list(_of_runs(series))
            notes = not_finite_note(series)
            found.append(_figure(tag, title, plot_of(traces, y=unit), notes))
    names = variables(data)
    every = [(name, gradients(data, f"gradient_norm/{name}")) for name in names]
    total = [(name, each) for name, series in every for each in series if each.of == TOTAL]
    if total:
        traces = [line(each, colour=colour(i), name=name) for i, (name, each) in enumerate(total)]
        plot = plot_of(traces, y="L2 norm", height=420)
        plot.update_yaxes(type="log")
        plot.update_layout(legend={"orientation": "v", "x": 1.01, "y": 1.0, "yanchor": "top"})
        title = "Gradient norm of each variable, of the total"
        found.append(Figure(key="variables", title=title, plot=plot, wide=True))
    return found


def variables(data: RunData) -> list[str]:
    """The variables whose gradients' norms were recorded."""
    mark = "gradient_norm/"
    tags = dict.fromkeys(tag for point in data.of(Gradients) for tag in point.values)
    return [tag.removeprefix(mark) for tag in tags if tag.startswith(mark)]


def safe(name: str) -> str:
    """A name as a part of an HTML id; different names stay different."""
    return re.sub(r"[^A-Za-z0-9]", lambda found: f"-{ord(found[0]):x}-", name)


def _figure(tag: str, title: str, plot: object, notes: tuple[str, ...]) -> Figure:
    return Figure(key=safe(tag), title=title, plot=plot, notes=notes)


def _of_runs(series: Iterable[Series]) -> Iterable[object]:
    """Each worker thin in a colour of its own, the total thick over them."""
    workers = 0
    for each in series:
        if each.of == TOTAL:
            yield line(each, colour=QUIET, width=3.2)
        else:
            yield line(each, colour=colour(workers), width=1.3)
            workers += 1
