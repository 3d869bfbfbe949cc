"""What a person sees who opens a timeline in Perfetto: `phalanx debug trace` wrote it."""

import json

import pytest
from perfetto import perfetto, query
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.monitoring.flight_ring import Ring
from phalanx.monitoring.mapped_pages import MappedPages

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("browser")]

RANKS = range(4)
SLOW = 1
STEPS = 12
WRONG = "select name || ' ' || value as line from stats where severity != 'info' and value > 0"
SLICES = """
select process.name || '; ' || thread.name || '; ' || slice.name || '; ' ||
  ((slice.ts - trace_start()) / 1000000) || ' + ' || (slice.dur / 1000000) || ' ms' as line
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid) order by slice.id
"""


def fly(run, rank):
    """Steps of 100 ms each: the slow worker waits for its data, the others for it."""
    now = 1_000_000_000
    paths = AttemptPaths(run=run, attempt=0)
    paths.directory.mkdir(parents=True, exist_ok=True)
    ring = Ring(MappedPages(paths.flight(rank)), clock=lambda: now)
    ring.introduce(rank=rank, attempt=0, workers=len(RANKS), pid=100 + rank, host="node")
    ring.phase(ring.text("start"), now, now + 500_000_000, -1, -1)
    now += 500_000_000
    started = ring.text("compute"), now, -1, 0
    for step in range(1, STEPS + 1):
        event = ring.begin("train", 0, step=step, epoch=0, steps=1, done=0)
        event.done, event.came = 1, now + (90_000_000 if rank == SLOW else 1_000_000)
        now += 100_000_000
        ring.end(event)
    ring.phase(started[0], started[1], now, *started[2:])
    ring.now(started[0], started[1], *started[2:])  # As it stands when a worker ends on its own.
    gather = ring.begin("collective", ring.text("gather"), step=STEPS, epoch=0, size=16)
    now += 5_000_000
    ring.end(gather)
    ring.alive(ended=True)


@pytest.fixture(scope="module")
def timeline(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    (home / "slow" / "records").mkdir(parents=True)
    for rank in RANKS:
        fly(home / "slow", rank)
    done = CliRunner().invoke(app, ["debug", "trace", "slow", "--run-dir", str(home)])
    assert done.exit_code == 0, done.output
    return home / "slow" / "trace.json"


def test_each_worker_has_its_rows_and_nothing_was_left_out(timeline, browser, tmp_path):
    with perfetto(browser, timeline):
        shown = browser.execute_script("return document.body.innerText")
        slices = query(browser, SLICES)
        wrong = query(browser, WRONG)
        browser.save_screenshot(str(tmp_path / "perfetto.png"))
    assert wrong == []
    made = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == len(made) == len(RANKS) * (3 + 3 * STEPS)
    for rank in RANKS:
        assert f"worker {rank} (node) {rank}" in shown
        waited = 90 if rank == SLOW else 1
        for reported in (
            "phases; start; 0 + 500 ms",
            "steps; step 12; 1600 + 100 ms",
            f"steps; input; 1600 + {waited} ms",
            f"steps; compute and all-reduce; {1600 + waited} + {100 - waited} ms",
            "collectives of the host; gather; 1700 + 5 ms",
        ):
            assert f"worker {rank} (node); {reported}" in slices
    assert shown.count("phases") >= len(RANKS)
    assert "main thread" not in shown  # It would be drawn above the others, whatever it shows.
