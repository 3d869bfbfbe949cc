"""What the page about one run holds."""

from __future__ import annotations

from phalanx.report import formatting
from phalanx.report.communication import Communication, communication
from phalanx.report.communication_section import communication_section
from phalanx.report.configuration import configuration_tables
from phalanx.report.data_quality import damages, gaps
from phalanx.report.event_formatting import EVENT_STYLES, happened
from phalanx.report.goodput_section import goodput_section
from phalanx.report.html import Page, Section, Table
from phalanx.report.metric_figures import gradient_figures, learning_figures
from phalanx.report.run_data import RunData
from phalanx.report.summary import Summary, summarize
from phalanx.report.timeline_figure import slow_spans, timeline_figure
from phalanx.report.timing_figures import timing_figures
from phalanx.report.workers import WorkerSummary, summarize_workers

TONES = {
    "ended well": "good",
    "saved and stopped": "open",
    "failed": "bad",
    "not ended": "open",
}


def report_page(data: RunData, now: float) -> Page:
    """The page about a run.

    Args:
        data: the run.
        now: seconds since the epoch.
    """
    summary = summarize(data)
    workers = summarize_workers(data)
    timeline = timeline_figure(data)
    sent = communication(data)
    return Page(
        title=data.name,
        subtitle=" · ".join(summary.fits) or "No call of fit was recorded.",
        state=format_state(summary),
        tone=TONES[summary.state],
        cards=cards(summary, sent),
        trouble=summary.report,
        damages=damages(data),
        gaps=gaps(data, now),
        sections=(
            Section(
                title="Learning", figures=learning_figures(data), tables=[metric_table(summary)]
            ),
            Section(title="Gradients", figures=gradient_figures(data)),
            goodput_section(data.goodput),
            Section(title="Speed", figures=timing_figures(data, workers)),
            communication_section(sent),
            Section(title="Workers", tables=[worker_table(workers)]),
            Section(
                title="What happened when",
                figures=[timeline] if timeline else [],
                tables=[formatted_events(data)],
            ),
            Section(title="Configuration and versions", tables=configuration_tables(data)),
        ),
        footer=footer(now),
    )


def footer(now: float) -> str:
    """When the page was made."""
    at = formatting.format_time(now)
    return f"Made by phalanx report at {at}. Times are of the workers' own clocks."


def format_state(summary: Summary) -> str:
    """The state of the run."""
    code = f", exit code {summary.exit_code}" if summary.state == "failed" else ""
    return summary.state + code


def cards(summary: Summary, sent: Communication | None) -> list[tuple[str, str]]:
    """The most important numbers; those that are not known are left out."""
    every = [
        ("began", formatting.format_time(summary.began) if summary.began else None),
        (
            "took" if summary.state != "not ended" else "so far",
            formatting.format_duration(summary.seconds),
        ),
        ("workers", formatting.count(summary.workers)),
        ("replicas", formatting.count(summary.replicas)),
        ("strategy", summary.strategy),
        ("seed", None if summary.seed is None else str(summary.seed)),
        ("steps", formatting.count(summary.steps)),
        ("epochs ended", formatting.count(summary.epochs)),
        *(
            (f"last {each.name}", formatting.format_number(each.last))
            for each in summary.metrics[:6]
        ),
        ("samples a second", formatting.format_number(summary.samples_per_second)),
        ("a mean step", formatting.format_duration(summary.step_seconds)),
        ("goodput", formatting.percent(summary.goodput)),
        ("time of the steps", formatting.parts(summary.time_fractions)),
        (
            "bytes a step",
            formatting.format_bytes(sent.plan.bytes) if sent is not None and sent.plan else None,
        ),
        ("most memory of a worker", formatting.format_bytes(summary.memory_bytes)),
        ("restarts", str(len(summary.restarts))),
        ("checkpoints", str(summary.checkpoints)),
        (
            "clipped steps",
            formatting.percent(summary.clip_fraction),
        ),
        ("critical batch size", formatting.format_number(summary.noise_scale)),
        ("stragglers", ", ".join(f"worker {rank}" for rank in summary.stragglers)),
    ]
    return [(label, value) for label, value in every if value and value != formatting.MISSING]


def metric_table(summary: Summary) -> Table:
    """Each metric's last, lowest and highest value, and where those were."""
    rows = [
        (
            each.name,
            formatting.format_number(each.last),
            formatting.format_number(each.lowest),
            formatting.count(each.lowest_step),
            formatting.format_number(each.highest),
            formatting.count(each.highest_step),
        )
        for each in summary.metrics
    ]
    columns = ("metric", "last", "lowest", "at step", "highest", "at step")
    what = "where epochs end" if summary.epochs else "between the ends of epochs"
    return Table(title=f"Metrics, {what}", columns=columns, rows=rows, numeric=range(1, 6))


def worker_table(workers: list[WorkerSummary]) -> Table:
    """The workers next to each other."""
    rows = [
        (
            str(each.rank),
            each.host or formatting.MISSING,
            _plain(each.pid),
            ", ".join(each.devices) or formatting.MISSING,
            formatting.count(each.step),
            formatting.format_duration(each.step_seconds),
            formatting.format_duration(each.slow_step_seconds),
            formatting.format_bytes(each.memory_bytes),
            str(each.straggled),
            each.ending,
        )
        for each in workers
    ]
    columns = (
        "worker", "host", "process", "devices", "last step", "mean step", "slowest p95",
        "most memory", "times too slow", "ending",
    )  # fmt: skip
    return Table(title="Each worker", columns=columns, rows=rows, numeric=(2, 4, 5, 6, 7, 8))


def formatted_events(data: RunData) -> Table:
    """Restarts, checkpoints, stragglers, stops and the like, in the order of time."""
    found = [(each.t, *happened(each)) for kind in EVENT_STYLES for each in data.of(kind)]
    found += [(data.began + each.start, "straggler", each.text) for each in slow_spans(data)]
    rows = [
        (formatting.format_duration(t - data.began), what, text) for t, what, text in sorted(found)
    ]
    return Table(
        title="Restarts, checkpoints, stragglers", columns=("after", "what", ""), rows=rows
    )


def _plain(value: int | None) -> str:
    return formatting.MISSING if value is None else str(value)
