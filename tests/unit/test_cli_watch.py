"""`phalanx watch`: as a page in a terminal, as plain text elsewhere, until the run ends."""

import io
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

import phalanx.cli.watch as command
from made_run import make_run
from phalanx.cli.app import app
from phalanx.monitoring.event_log import RecordWriter, launcher_records_path, records_path
from phalanx.report.live import Watched


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "ended")
    return tmp_path / "runs"


def test_a_run_that_has_ended_is_shown_once(runs):
    result = CliRunner().invoke(app, ["watch", "ended"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("run ended: ended well") == 1
    assert re.search(r"^goodput +\d+%; starting \d+%", result.stdout, re.MULTILINE)


def test_once(runs):
    make_run(runs, "open", ended=False)
    result = CliRunner().invoke(app, ["watch", "open", "--once"])
    assert result.exit_code == 0
    assert result.stdout.startswith("run open: unresponsive")


class Growing:
    """A run to which something happens whenever the page sleeps."""

    def __init__(self, path):
        self.writer = RecordWriter(records_path(path, 0))
        self.launcher = RecordWriter(launcher_records_path(path))
        self.writer.write("worker_start", attempt=0)
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.writer.write("heartbeat", phase="compute", step=len(self.slept))
        if len(self.slept) == 3:
            self.launcher.write("run_end", exit_code=0)


@pytest.mark.parametrize("follow", [command.follow_live, command.follow_plainly])
def test_it_follows_a_run_to_its_end(tmp_path, follow):
    growing = Growing(tmp_path / "made")
    console = Console(
        file=io.StringIO(), width=120, height=40, force_terminal=follow is command.follow_live
    )
    follow(Watched(tmp_path / "made"), console, 0.5, sleep=growing.sleep)
    text = console.file.getvalue()
    assert growing.slept == [0.5] * 3
    assert text.count("rank") in (4, 5)  # The last page is drawn once more, to stay.
    assert "ended well" in text
    assert ("\x1b[" in text) == (follow is command.follow_live)


@pytest.mark.process
@pytest.mark.timeout(30)
def test_control_c_ends_the_page_cleanly(runs):
    make_run(runs, "open", ended=False)
    words = [sys.executable, "-m", "phalanx", "watch", "open", "--interval", "0.2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:
        try:
            assert process.stdout.readline().startswith("run open: unresponsive")
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")


def test_a_bad_interval_is_refused(runs):
    assert CliRunner().invoke(app, ["watch", "--interval", "0"]).exit_code == 2
