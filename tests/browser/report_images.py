"""Write the pictures of a report and of `phalanx watch`: `python tests/browser/report_images.py`.

Both are of real runs of `faulty_run.py`: three workers, of which one is slow and one is killed
once; and four, of which at the moment of the picture one is slow, one unresponsive and one failed.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browsing import chromium
from rich.console import Console
from rich.terminal_theme import MONOKAI

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCRIPT = Path(__file__).with_name("faulty_run.py")
SILENT_SECONDS = 13.0
DEADLINE = 900.0


def main():
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        runs = Path("runs")
        with chromium(1240, 1500) as browser:
            report_image(browser, runs)
            watch_image(browser, runs)


def phalanx(*words):
    return [sys.executable, "-m", "phalanx", *map(str, words)]


def report_image(browser, runs):
    words = ["--workers", 3, "--seed", 7, "--max-restarts", 1, "--run-dir", runs, "--name", "three"]
    subprocess.run(phalanx("run", *words, SCRIPT, "kill"), check=True, timeout=DEADLINE)
    subprocess.run(phalanx("report", "three", "--run-dir", runs), check=True, timeout=DEADLINE)
    browser.get((runs / "three" / "report.html").absolute().as_uri())
    time.sleep(4)
    browser.save_screenshot(str(IMAGES / "report.png"))
    browser.set_window_size(1240, 1740)
    browser.execute_script("document.getElementById('split').closest('figure').scrollIntoView()")
    time.sleep(2)
    browser.save_screenshot(str(IMAGES / "report-workers.png"))


def watch_image(browser, runs):
    from phalanx.report.live import LiveRun
    from phalanx.report.run_data import load_run
    from phalanx.report.terminal_view import live_page

    words = ["--workers", 4, "--seed", 7, "--run-dir", runs, "--name", "four"]
    launcher = subprocess.Popen(phalanx("run", *words, SCRIPT, "freeze"))
    try:
        kill_when_one_is_silent(runs / "four", launcher)
        launcher.wait(DEADLINE)
    finally:
        launcher.terminate()
        launcher.wait(DEADLINE)
    data = load_run(runs / "four")
    now = next(e.t for e in data.events if e.KIND == "worker_exit" and e.rank == 3) + 0.1
    run = LiveRun()
    run.take(event for event in data.events if event.t <= now)
    console = Console(record=True, width=104, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(live_page(run, name="four", now=now))
    text = console.export_html(theme=MONOKAI, code_format=PAGE, inline_styles=True)
    (runs / "watch.html").write_text(text)
    browser.set_window_size(940, 600)
    browser.get((runs / "watch.html").absolute().as_uri())
    browser.find_element("tag name", "body").screenshot(str(IMAGES / "watch.png"))


def kill_when_one_is_silent(run, launcher):
    """Kill worker 3 when the frozen worker has not reported for a while."""
    from phalanx.report.run_data import load_run

    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and launcher.poll() is None:
        time.sleep(1)
        if not (run / "records" / "worker-1.jsonl").exists():
            continue
        events = load_run(run).events
        seen = [e.t for e in events if e.writer_rank == 1]
        trained = any(e.KIND == "straggler" for e in events)
        if trained and seen and time.time() - max(seen) > SILENT_SECONDS:
            (started,) = (e for e in events if e.KIND == "attempt_start")
            os.kill(started.workers[3]["pid"], signal.SIGKILL)
            return
    raise SystemExit("no worker was slow and none unresponsive in time")


PAGE = """<!DOCTYPE html><meta charset="utf-8"><body style="margin: 0; padding: 14px 18px;
background: {background}; color: {foreground}"><pre style="margin: 0; font: 14px/1.35
'DejaVu Sans Mono', monospace"><code style="font-family: inherit">{code}</code></pre></body>"""


if __name__ == "__main__":
    main()
