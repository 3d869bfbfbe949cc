"""The time line: workers from start to end, restarts, checkpoints, epochs, stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from phalanx.monitoring.events import EpochMetrics, Event, Straggler, WorkerExitEvent, WorkerStart
from phalanx.report.event_formatting import EVENT_STYLES
from phalanx.report.figure_style import QUIET, Figure, escape, plot_of
from phalanx.report.formatting import format_epoch, formatted
from phalanx.report.run_data import RunData

_COLOURS = {
    "ended well": "#228833",
    "saved and stopped": "#4477aa",
    "failed": "#cc3311",
    "stopped by the launcher": "#ccbb44",
    "no end recorded": QUIET,
    "held up the others": "#ee7733",
}


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of one worker's time, in seconds since the run began."""

    row: str
    kind: str
    start: float
    end: float
    text: str


def timeline_figure(data: RunData) -> Figure | None:
    """All that happened to the run and its workers; None where no worker began."""
    found = [*spans(data), *slow_spans(data)]
    if not found:
        return None
    rows = list(dict.fromkeys(each.row for each in found))
    traces: list[object] = [
        go.Bar(
            y=[each.row for each in found if each.kind == kind],
            x=[each.end - each.start for each in found if each.kind == kind],
            base=[each.start for each in found if each.kind == kind],
            width=0.3 if kind == "held up the others" else 0.6,
            hovertext=[escape(each.text) for each in found if each.kind == kind],
            hoverinfo="text", name=kind, orientation="h", marker={"color": colour},
        )
        for kind, colour in _COLOURS.items()
        if any(each.kind == kind for each in found)
    ]  # fmt: skip
    epochs = formatted(data.of(EpochMetrics), format_epoch)
    shown = [_marks(data, "epochs", "line-ns-open", "#4477aa", epochs)] if epochs else []
    shown += [
        _marks(data, kind.row, kind.symbol, kind.colour, formatted(events, kind.say))
        for kind, events in ((kind, data.of(event)) for event, kind in EVENT_STYLES.items())
        if events
    ]
    rows += [str(mark.name) for mark in shown]
    plot = plot_of(
        [*traces, *shown],
        x="seconds since the run began",
        height=130 + 30 * len(rows),
        barmode="overlay",
    )
    plot.update_yaxes(
        type="category", categoryorder="array", categoryarray=rows, autorange="reversed"
    )
    plot.update_xaxes(rangemode="tozero")
    plot.update_layout(margin={"l": 90}, showlegend=True)
    return Figure(key="timeline", title="Time line", plot=plot, has_steps=False, wide=True)


def spans(data: RunData) -> list[Span]:
    """Each worker in each attempt, from its start to its end or to the last sign of life."""
    found = []
    last: dict[tuple[int | None, int], float] = {}
    for event in data.events:
        place = event.writer_rank, event.attempt
        last[place] = max(last.get(place, event.t), event.t)
    for start in data.of(WorkerStart):
        exits = [
            each
            for each in data.of(WorkerExitEvent)
            if (each.rank, each.attempt) == (start.writer_rank, start.attempt)
        ]
        kind = _kind(exits[-1]) if exits else "no end recorded"
        text = f"worker {start.writer_rank}, attempt {start.attempt}: {kind}"
        if exits and exits[-1].summary:
            text += f" ({exits[-1].summary})"
        end = exits[-1].t if exits else last[start.writer_rank, start.attempt]
        found.append(
            Span(
                row=f"worker {start.writer_rank}", kind=kind, start=data.seconds(start),
                end=end - data.began, text=text,
            )
        )  # fmt: skip
    return found


def slow_spans(data: RunData) -> list[Span]:
    """When a worker held up the others."""
    found: list[Span] = []
    open_: dict[int, Straggler] = {}
    for each in data.of(Straggler):
        if not each.resolved:
            open_.setdefault(each.rank, each)
        elif each.rank in open_:
            found.append(_slow(data, open_.pop(each.rank), each.t))
    return found + [_slow(data, each, data.last) for each in open_.values()]


def _slow(data: RunData, found: Straggler, until: float) -> Span:
    factor = "" if found.factor is None else f", {found.factor:.2g} times as long as the others"
    text = f"worker {found.rank} held up the others from step {found.since_step}{factor}"
    return Span(
        row=f"worker {found.rank}", kind="held up the others", start=data.seconds(found),
        end=until - data.began, text=f"{text} ({found.cause or 'unknown cause'})",
    )  # fmt: skip


def _kind(exit_: WorkerExitEvent) -> str:
    if exit_.has_saved:
        return "saved and stopped"
    if exit_.terminated_by_launcher:
        return "stopped by the launcher"
    return "failed" if exit_.is_failure else "ended well"


def _marks(
    data: RunData, name: str, symbol: str, colour: str, events: Sequence[tuple[Event, str]]
) -> go.Scatter:
    return go.Scatter(
        x=[data.seconds(event) for event, _ in events],
        y=[name] * len(events),
        name=name,
        mode="markers",
        marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2}},
        hovertext=[escape(words) for _, words in events],
        hoverinfo="x+text",
        showlegend=False,
    )
