"""What happens to a run now and then: on its page, in its time line, and while it runs."""

import io

import pytest
from rich.console import Console

from phalanx.monitoring.event_log import RecordWriter, launcher_records_path, records_path
from phalanx.monitoring.events import EVENT_TYPES
from phalanx.report.event_formatting import EVENT_STYLES, happened
from phalanx.report.live import Watched
from phalanx.report.run_data import load_run
from phalanx.report.run_page import formatted_events
from phalanx.report.terminal_view import live_page
from phalanx.report.timeline_figure import timeline_figure

RECORDS = {
    "checkpoint": {
        "step": 5,
        "epoch": 0,
        "path": "checkpoints/5",
        "seconds": 0.2,
        "bytes": 2e6,
    },
    "checkpoint_failed": {"step": 6, "error": "OSError: no space left"},
    "restart": {"attempt": 1, "rank": 1, "cause": "killed by SIGKILL", "seconds": 1.0},
    "resize": {"attempt": 1, "workers": [0, 2], "cause": "worker 1 cannot start"},
    "worker_replaced": {"attempt": 1, "rank": 1, "cause": "killed by SIGKILL", "pid": 7},
    "stall": {"attempt": 1, "message": "worker 1 never reached step 9"},
    "preemption": {"attempt": 1, "signal": "SIGTERM"},
    "early_stop": {"step": 9, "epoch": 0, "reason": "EarlyStopping"},
}
OF_WORKERS = ("checkpoint", "checkpoint_failed", "early_stop")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "eventful"
    now = iter(range(100, 200))
    clock = lambda: float(next(now))  # noqa: E731
    launcher = RecordWriter(launcher_records_path(path), clock=clock)
    worker = RecordWriter(records_path(path, 0), clock=clock)
    worker.write("worker_start", attempt=0, rank=0, workers=3)
    for kind, fields in RECORDS.items():
        (worker if kind in OF_WORKERS else launcher).write(kind, **fields)
    return path


def test_every_kind_is_reported_on_the_page(run, snapshot):
    assert {kind.KIND for kind in EVENT_STYLES} == set(RECORDS)
    rows = [row[1:] for row in formatted_events(load_run(run)).rows]
    assert [name for name, _ in rows] == [EVENT_STYLES[EVENT_TYPES[kind]].name for kind in RECORDS]
    snapshot("happenings", "\n".join(f"{name}: {what}" for name, what in rows))


def test_every_kind_has_a_row_in_the_time_line(run):
    names = {trace.name for trace in timeline_figure(load_run(run)).plot.data}
    assert names >= {kind.row for kind in EVENT_STYLES.values()}


def test_every_kind_is_reported_while_the_run_continues(run):
    watched = Watched(run)
    watched.update()
    console = Console(file=io.StringIO(), width=120)
    console.print(live_page(watched.run, name="eventful", now=120.0))
    reported = console.file.getvalue()
    last = [": ".join(happened(event)) for event in watched.run.notable[-3:]]
    assert [each in reported for each in last] == [True] * 3
    assert [EVENT_TYPES[kind] for kind in RECORDS] == [type(event) for event in watched.run.notable]
