"""Write the picture of a timeline in Perfetto: `python tests/browser/timeline_image.py`.

It is of a real run: of three workers one is slow to read its data (`slow_input_run.py`).
"""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from browsing import chromium
from perfetto import perfetto, query, zoom

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "timeline.png"
SCRIPT = Path(__file__).with_name("slow_input_run.py")
SHOWN = "step 24", "step 31"
BEGIN = """
select cast((ts - trace_start()) / 1e9 as text) as line from slice join thread_track on
slice.track_id = thread_track.id join thread using (utid) join process using (upid)
where slice.name = '{step}' and process.pid = 1
"""


def main():
    with tempfile.TemporaryDirectory() as directory, chromium(1400, 700) as browser:
        phalanx("run", "--workers", "3", "--run-dir", directory, "--name", "slow", str(SCRIPT))
        phalanx("debug", "trace", "slow", "--run-dir", directory)
        trace = Path(directory) / "slow" / "trace.json"
        trace.write_text(trace.read_text().replace(f"({socket.gethostname()})", "(node)"))
        with perfetto(browser, trace):
            first, last = (begin_of(browser, step) for step in SHOWN)
            zoom(browser, first - 0.02, last + 0.02)
            browser.save_screenshot(str(IMAGE))


def phalanx(*arguments):
    subprocess.run([sys.executable, "-m", "phalanx", *arguments], check=True)


def begin_of(browser, step):
    """When worker 1 began this step, in seconds since the trace begins."""
    return float(query(browser, BEGIN.format(step=step))[0])


if __name__ == "__main__":
    main()
