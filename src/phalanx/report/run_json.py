"""A run for machines: what the page shows, as one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from phalanx.monitoring.events import ReductionPlan, ThroughputEvent, field_names
from phalanx.report.communication import communication
from phalanx.report.compare import distinct_names
from phalanx.report.configuration import configuration, versions_of
from phalanx.report.data_quality import damages, gaps
from phalanx.report.goodput import Goodput
from phalanx.report.metric_figures import TAGS
from phalanx.report.run_data import RunData
from phalanx.report.series import Series, gradients, learning_rate, metrics, throughput
from phalanx.report.summary import summarize
from phalanx.report.timeline_figure import slow_spans, spans
from phalanx.report.workers import summarize_workers

SCHEMA = 1
"""Grows when a program that reads an older one would misread it."""


def to_json(runs: Sequence[RunData], now: float) -> str:
    """The runs as a JSON document; numbers that are not finite are "nan", "inf" and "-inf"."""
    document = {
        "schema": SCHEMA,
        "runs": [
            run_document(name, data, now)
            for name, data in zip(distinct_names(runs), runs, strict=True)
        ],
    }
    return json.dumps(plain(document), indent=2, allow_nan=False)


def run_document(name: str, data: RunData, now: float) -> dict[str, Any]:
    """One run: summary, workers, all curves with every point, spans of time, configuration."""
    rates = [
        series
        for rank in data.ranks
        for series in throughput(data, rank, _rate, name=f"samples a second, worker {rank}")
    ]
    return {
        "name": name,
        "summary": asdict(summarize(data)),
        "workers": [asdict(each) for each in summarize_workers(data)],
        "goodput": goodput_document(data.goodput),
        "communication": communication_document(data),
        "metrics": _series(metrics(data)),
        "learning_rate": _series(learning_rate(data)),
        "gradients": {tag: _series(gradients(data, tag)) for tag, _, _ in TAGS},
        "throughput": _series(rates),
        "spans": [asdict(each) for each in (*spans(data), *slow_spans(data))],
        "configuration": configuration(data),
        "versions": versions_of(data),
        "not_recorded": gaps(data, now),
        "not_readable": damages(data),
    }


def goodput_document(found: Goodput | None) -> dict[str, Any] | None:
    """The fraction that trained, and the seconds and fraction of each row."""
    if found is None:
        return None
    rows = {
        row: {"seconds": seconds, "fraction": found.fraction(row)}
        for row, seconds in found.rows.items()
    }
    return {**asdict(found), "goodput": found.goodput, "rows": rows}


def communication_document(data: RunData) -> dict[str, Any] | None:
    """What a step sends, its seconds, and what would help; None if that does not apply."""
    found = communication(data)
    if found is None:
        return None
    plan, costs = found.plan, found.costs
    return {
        "plan": plan and {name: getattr(plan, name) for name in field_names(ReductionPlan)},
        "share": found.share,
        "waiting_seconds": found.waiting,
        "step": costs and {**asdict(costs), "seconds": costs.step, "transfer": costs.transfer},
        "advice": [asdict(each) for each in found.advice],
        "shares_cores": found.shares_cores,
    }


def _rate(event: ThroughputEvent) -> float | None:
    return event.samples_per_second


def _series(found: Sequence[Series]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


def plain(value: Any) -> Any:
    """The value with what JSON has no word for written as records do."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
