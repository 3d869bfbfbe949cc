"""Figures of speed: throughput, where the time went, and the workers next to each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from phalanx.monitoring.events import HeartbeatEvent, ThroughputEvent
from phalanx.report.figure_style import SHARE_COLOURS, Figure, colour, line, plot_of
from phalanx.report.run_data import RunData
from phalanx.report.series import Series, throughput
from phalanx.report.summary import SHARES
from phalanx.report.workers import WorkerSummary

MOST_WORKERS = 8
"""So many get a split over time; a page of hundreds would be unreadable."""


def timing_figures(data: RunData, workers: list[WorkerSummary]) -> list[Figure]:
    """Everything about speed that was recorded."""
    rates = data.of(ThroughputEvent)
    if not rates:
        return memory_figures(data)
    chief = min(each.writer_rank for each in rates if each.writer_rank is not None)
    samples = throughput(data, chief, lambda e: e.samples_per_second, name="samples a second")
    found = []
    if samples:
        plot = plot_of([line(each, colour=colour(0)) for each in samples], y="samples / s")
        plot.update_yaxes(rangemode="tozero")
        found.append(Figure(key="throughput", title="Throughput, all workers", plot=plot))
    found += _step_seconds(data)
    split = [
        rank
        for rank in data.ranks
        if any(e.time_fractions for e in data.of_worker(ThroughputEvent, rank))
    ]
    if split:
        found.append(split_over_time(data, split))
        found.append(side_by_side([each for each in workers if each.time_fractions]))
    return found + memory_figures(data)


def _step_seconds(data: RunData) -> list[Figure]:
    traces = []
    for i, rank in enumerate(data.ranks):
        for quantile, dash in (("p50", None), ("p95", "dot")):
            series = throughput(data, rank, _quantile(quantile), name=f"worker {rank}, {quantile}")
            traces += [line(each, colour=colour(i), dash=dash) for each in series]
    if not traces:
        return []
    plot = plot_of(traces, y="seconds")
    plot.update_yaxes(rangemode="tozero")
    title = "Seconds a step: the middle one (p50) and the slow ones (p95)"
    return [Figure(key="step-seconds", title=title, plot=plot)]


def _quantile(name: str) -> Callable[[ThroughputEvent], float | None]:
    return lambda event: event.step_seconds.get(name)


def split_over_time(data: RunData, ranks: list[int]) -> Figure:
    """Where the time of the steps went, worker by worker, as stacked fractions."""
    shown = ranks[:MOST_WORKERS]
    plot = make_subplots(rows=len(shown), cols=1, shared_xaxes=True, vertical_spacing=0.03)
    for row, rank in enumerate(shown, start=1):
        for share in SHARES:
            for series in throughput(data, rank, _share(share), name=share):
                trace = line(series, colour=SHARE_COLOURS[share])
                trace.update(
                    stackgroup="time", mode="lines", legendgroup=share, showlegend=row == 1,
                    line={"width": 0.5, "shape": "hv"}, fillcolor=SHARE_COLOURS[share],
                )  # fmt: skip
                plot.add_trace(trace, row=row, col=1)
        plot.update_yaxes(title_text=f"worker {rank}", range=[0, 1], tickvals=[0.5], row=row)
    layout_options = plot_of([]).layout
    plot.update_layout(
        template="none",
        height=90 + 100 * len(shown),
        margin=layout_options.margin,
        legend=layout_options.legend,
    )
    plot.update_xaxes(title_text="step", row=len(shown))
    left_out = len(ranks) - len(shown)
    notes = _unmeasured(data)
    if left_out:
        notes += (f"The first {len(shown)} workers; {left_out} more are in the comparison.",)
    return Figure(
        key="split", title="Where the time of the steps went", plot=plot, notes=notes, wide=True
    )


def _share(name: str) -> Callable[[ThroughputEvent], float | None]:
    return lambda event: event.time_fractions.get(name)


def _unmeasured(data: RunData) -> tuple[str, ...]:
    missing = [
        share
        for share in SHARES
        if not any(share in e.time_fractions for e in data.of(ThroughputEvent))
    ]
    return (f"Not measured, so not shown: {', '.join(missing)}.",) if missing else ()


def side_by_side(workers: list[WorkerSummary]) -> Figure:
    """A bar for each worker: its mean step, parted into what it was spent on."""
    names = [f"worker {each.rank}" for each in workers]
    traces = []
    for share in SHARES:
        known = [each.step_seconds is not None and share in each.time_fractions for each in workers]
        if any(known):
            seconds = [
                (each.step_seconds or 0.0) * each.time_fractions.get(share, 0.0) for each in workers
            ]
            traces.append(
                go.Bar(
                    y=names, x=seconds, name=share, orientation="h",
                    marker={"color": SHARE_COLOURS[share]}, hovertemplate="%{x:.4g} s",
                )
            )  # fmt: skip
    plot = plot_of(traces, x="seconds a step", height=140 + 26 * len(workers), barmode="stack")
    plot.update_yaxes(autorange="reversed", type="category")
    plot.update_layout(margin={"l": 80})
    return Figure(key="workers", title="A mean step of each worker", plot=plot, has_steps=False)


def memory_figures(data: RunData) -> list[Figure]:
    """What each worker held, over time."""
    traces = []
    for i, rank in enumerate(data.ranks):
        beats = [
            (each.step or 0, data.seconds(each), each.memory_bytes / 1e9)
            for each in data.of_worker(HeartbeatEvent, rank)
            if each.memory_bytes is not None and math.isfinite(each.memory_bytes)
        ]
        if beats:
            steps, seconds, values = zip(*beats, strict=True)
            name = f"worker {rank}"
            series = Series(
                name=name, of=name, kind="step", steps=steps, seconds=seconds, values=values
            )
            trace = line(series, colour=colour(i))
            trace.update(x=trace.customdata, customdata=None)
            traces.append(trace)
    if not traces:
        return []
    plot = plot_of(traces, y="GB", x="seconds since the run began")
    plot.update_xaxes(rangemode="tozero")
    plot.update_yaxes(rangemode="tozero")
    plot.update_layout(showlegend=True)
    return [Figure(key="memory", title="Memory of each worker", plot=plot, has_steps=False)]
