"""Write the pictures of the documentation: `python tests/browser/report_images.py`.

Both show made-up records, by the real commands' code: a report of `made_run`, and a moment at
which of four workers one is slow, one unresponsive and one failed.
"""

import sys
import tempfile
import time
from pathlib import Path

from browsing import chromium
from rich.console import Console
from rich.terminal_theme import MONOKAI

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


def main():
    sys.path.insert(0, str(ROOT / "tests"))
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with chromium(1240, 1500) as browser:
            report_image(browser, place)
            watch_image(browser, place)


def report_image(browser, place):
    from made_run import BEGAN, make_run
    from phalanx.report.html import render
    from phalanx.report.run_data import load_run
    from phalanx.report.run_page import report_page

    page = place / "report.html"
    page.write_text(render(report_page(load_run(make_run(place, "made")), BEGAN + 70)))
    browser.get(page.as_uri())
    time.sleep(4)
    browser.save_screenshot(str(IMAGES / "report.png"))
    browser.set_window_size(1240, 1740)
    browser.execute_script("document.getElementById('split').closest('figure').scrollIntoView()")
    time.sleep(2)
    browser.save_screenshot(str(IMAGES / "report-workers.png"))


def watch_image(browser, place):
    from made_run import make_run
    from phalanx.report.live import LiveRun
    from phalanx.report.run_data import load_run
    from phalanx.report.terminal_view import live_page

    data = load_run(make_run(place, "moment", workers=4, restart=False, ended=False))
    now, run = moment(data), LiveRun()
    run.take(event for event in data.events if event.t <= now and not is_hidden(event, now))
    run.take([death_of(data, 3, now - 4.0)])
    console = Console(record=True, width=104, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(live_page(run, name="moment", now=now))
    text = console.export_html(theme=MONOKAI, code_format=PAGE, inline_styles=True)
    (place / "watch.html").write_text(text)
    browser.set_window_size(940, 600)
    browser.get((place / "watch.html").as_uri())
    browser.find_element("tag name", "body").screenshot(str(IMAGES / "watch.png"))


PAGE = """<!DOCTYPE html><meta charset="utf-8"><body style="margin: 0; padding: 14px 18px;
background: {background}; color: {foreground}"><pre style="margin: 0; font: 14px/1.35
'DejaVu Sans Mono', monospace"><code style="font-family: inherit">{code}</code></pre></body>"""


def moment(data):
    """Some seconds after worker 2 was found to be slow."""
    from phalanx.monitoring.events import Straggler

    return next(event.t for event in data.of(Straggler)) + 3.0


def is_hidden(event, now):
    """What would have come from the worker that is unresponsive, and from the one that failed."""
    return (event.writer_rank == 1 and event.t > now - 13.0) or (
        event.writer_rank == 3 and event.t > now - 4.0
    )


def death_of(data, rank, t):
    from phalanx.monitoring.events import WorkerExitEvent

    return WorkerExitEvent(
        t=t, attempt=0, rank=rank, code=-9, signal="SIGKILL", terminated_by_launcher=False,
        summary="killed, often for lack of memory",
    )  # fmt: skip


if __name__ == "__main__":
    main()
