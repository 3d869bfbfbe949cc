"""Several runs on one page: their curves over each other, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from phalanx.monitoring.events import ThroughputEvent
from phalanx.report import formatting
from phalanx.report.configuration import configuration, versions_of
from phalanx.report.data_quality import damages
from phalanx.report.figure_style import Figure, colour, line, not_finite_note, plot_of
from phalanx.report.html import Page, Section, Table
from phalanx.report.metric_figures import TAGS, safe
from phalanx.report.run_data import RunData
from phalanx.report.run_page import footer, format_state
from phalanx.report.series import (
    TOTAL,
    Series,
    gradients,
    learning_rate,
    metrics,
    throughput,
)
from phalanx.report.summary import Summary, summarize

Curves = Sequence[tuple[str, Sequence[Series]]]
"""(a run's name, its lines) for each run."""

_LAYOUT: dict[str, dict[str, Any]] = {
    "step": {"width": 1.2, "opacity": 0.7},
    "epoch": {"width": 2.2, "mode": "lines+markers"},
    "validation": {"width": 2.0, "dash": "dash", "mode": "lines+markers"},
}


def compare_page(runs: Sequence[RunData], now: float) -> Page:
    """The page on which runs lie over each other; the first is what others are held against."""
    named = list(zip(distinct_names(runs), runs, strict=True))
    summaries = [(name, summarize(data)) for name, data in named]
    return Page(
        title=" · ".join(name for name, _ in named),
        subtitle=f"{len(named)} runs compared. Each run's time begins with the run.",
        state="comparison",
        tone="open",
        cards=[],
        trouble=None,
        damages=[f"{name}: {text}" for name, data in named for text in damages(data)],
        gaps=[],
        sections=(
            Section(
                title="In numbers", tables=[summary_table(summaries), metrics_table(summaries)]
            ),
            Section(title="Learning", figures=_learning(named)),
            Section(title="Gradients of the total", figures=_gradients(named)),
            Section(title="Speed", figures=_speed(named)),
            Section(
                title="What differs",
                tables=[
                    differences("Configuration", {n: configuration(d) for n, d in named}),
                    differences("Versions", {n: versions_of(d) for n, d in named}),
                ],
            ),
        ),
        footer=footer(now),
    )


def distinct_names(runs: Sequence[RunData]) -> list[str]:
    """The runs' names; where two are the same, with a number."""
    names = [data.name for data in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]


def summary_table(summaries: Sequence[tuple[str, Summary]]) -> Table:
    """The runs' numbers next to each other."""
    rows: list[tuple[str, Callable[[Summary], str]]] = [
        ("state", format_state),
        ("what", lambda s: "; ".join(s.fits) or formatting.MISSING),
        ("workers", lambda s: formatting.count(s.workers)),
        ("replicas", lambda s: formatting.count(s.replicas)),
        ("strategy", lambda s: s.strategy or formatting.MISSING),
        ("seed", lambda s: formatting.MISSING if s.seed is None else str(s.seed)),
        ("time", lambda s: formatting.format_duration(s.seconds)),
        ("steps", lambda s: formatting.count(s.steps)),
        ("epochs ended", lambda s: formatting.count(s.epochs)),
        ("samples a second", lambda s: formatting.format_number(s.samples_per_second)),
        ("a mean step", lambda s: formatting.format_duration(s.step_seconds)),
        ("goodput", lambda s: formatting.percent(s.goodput)),
        ("time of the steps", lambda s: formatting.parts(s.time_fractions) or formatting.MISSING),
        ("most memory of a worker", lambda s: formatting.format_bytes(s.memory_bytes)),
        ("restarts", lambda s: str(len(s.restarts))),
        ("checkpoints", lambda s: str(s.checkpoints)),
        ("clipped steps", lambda s: formatting.percent(s.clip_fraction)),
        ("critical batch size", lambda s: formatting.format_number(s.noise_scale)),
    ]
    names = [name for name, _ in summaries]
    return Table(
        title="The runs",
        columns=("", *names),
        rows=[(label, *(say(summary) for _, summary in summaries)) for label, say in rows],
        numeric=range(1, len(names) + 1),
    )


def metrics_table(summaries: Sequence[tuple[str, Summary]]) -> Table:
    """The last value of each metric, and how far each run's is from the first run's."""
    names = [name for name, _ in summaries]
    last = [{each.name: each.last for each in summary.metrics} for _, summary in summaries]
    rows = []
    for metric in dict.fromkeys(name for each in last for name in each):
        first = last[0].get(metric)
        cells = [formatting.format_number(each.get(metric)) for each in last]
        apart = [formatting.difference(each.get(metric), first) for each in last[1:]]
        rows.append((metric, *cells, *apart))
    columns = ("metric, last", *names, *(f"{name} - {names[0]}" for name in names[1:]))
    return Table(title="Metrics", columns=columns, rows=rows, numeric=range(1, 2 * len(names)))


def differences(title: str, by_run: Mapping[str, Mapping[str, str]]) -> Table:
    """The rows in which the runs differ."""
    rows = []
    for key in dict.fromkeys(key for each in by_run.values() for key in each):
        values = [each.get(key, formatting.MISSING) for each in by_run.values()]
        if len(set(values)) > 1:
            rows.append((key, *values))
    return Table(title=f"{title}: what differs", columns=("", *by_run), rows=rows)


def _learning(named: Sequence[tuple[str, RunData]]) -> list[Figure]:
    curves = [(name, [s for s in metrics(data) if s.kind in _LAYOUT]) for name, data in named]
    found = [
        _over_each_other(
            f"metric-{safe(metric)}", metric,
            [(name, [s for s in series if s.of == metric]) for name, series in curves],
        )
        for metric in dict.fromkeys(s.of for _, series in curves for s in series)
    ]  # fmt: skip
    rates = [(name, learning_rate(data)) for name, data in named]
    return [*found, *_figures("learning-rate", "Learning rate", rates, from_zero=True)]


def _gradients(named: Sequence[tuple[str, RunData]]) -> list[Figure]:
    found = []
    for tag, title, unit in TAGS:
        totals = [
            (name, [s for s in gradients(data, tag) if s.of == TOTAL]) for name, data in named
        ]
        found += _figures(safe(tag), title, totals, y=unit)
    return found


def _speed(named: Sequence[tuple[str, RunData]]) -> list[Figure]:
    rates = [
        (name, throughput(data, min(data.ranks, default=0), _rate, name="samples a second"))
        for name, data in named
    ]
    return _figures("throughput", "Throughput, all workers", rates, y="samples / s", from_zero=True)


def _rate(event: ThroughputEvent) -> float | None:
    return event.samples_per_second


def _figures(
    key: str, title: str, curves: Curves, *, y: str = "", from_zero: bool = False
) -> list[Figure]:
    if not any(lines for _, lines in curves):
        return []
    figure = _over_each_other(key, title, curves, y=y)
    if from_zero:
        figure.plot.update_yaxes(rangemode="tozero")
    return [figure]


def _over_each_other(key: str, title: str, curves: Curves, *, y: str = "") -> Figure:
    """One colour for each run, one look for each kind of line."""
    traces: list[object] = []
    notes: list[str] = []
    for i, (run, series) in enumerate(curves):
        own = [replace(each, name=f"{run}: {each.name}") for each in series]
        traces += [line(each, colour=colour(i), **_LAYOUT[each.kind]) for each in own]
        notes += not_finite_note(own)
    plot = plot_of(traces, y=y or title, height=340)
    plot.update_layout(showlegend=True)
    return Figure(key=key, title=title, plot=plot, notes=tuple(notes))
