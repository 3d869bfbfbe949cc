"""What the launcher shows, where no one takes it: real pipes, a full device, closed descriptors."""

import io
import os
import subprocess
import sys
import threading

import pytest

from phalanx.launcher.showing import Showing
from phalanx.launcher.tee import Tee

SHOWS = """
import sys
from phalanx.cli.console import error, info
from phalanx.launcher.showing import Showing
sys.stdin.read()  # until the reader of the output has ended
output = Showing(sys.stdout)
for number in range(3):
    output.write(f"line {number}\\n")
    output.flush()
    info("a note")
    error("an error\\nin two lines")
sys.exit(7)
"""


@pytest.fixture
def closed():
    """A pipe that no one reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full():
    with open("/dev/full", "wb", buffering=0) as device:
        yield device.fileno()


@pytest.fixture(params=["closed", "full"])
def refuses(request):
    return request.getfixturevalue(request.param)


def test_what_no_one_takes_is_shown_no_more_and_leaves_nothing_to_flush(refuses):
    stream = os.fdopen(os.dup(refuses), "w")
    showing = Showing(stream)
    for _ in range(2):
        showing.write("a line\n")
        showing.flush()
    assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == os.devnull
    stream.close()


def test_what_is_taken_is_shown():
    stream = io.StringIO()
    showing = Showing(stream)
    showing.write("one\n")
    showing.write("two\n")
    showing.flush()
    assert stream.getvalue() == "one\ntwo\n"
    assert not showing.isatty()


def test_a_reader_that_pauses_holds_nothing_up_and_gets_all_in_order():
    reader, writer = os.pipe()
    lines = [f"line {number} {'.' * 200}\n" for number in range(2000)]  # A pipe has 64 KiB.
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as read:
        showing = Showing(stream)
        for line in lines:
            showing.write(line)
        assert showing.is_behind
        assert [read.readline() for _ in lines] == lines
        showing.write("the end\n")
        assert read.readline() == "the end\n"


def test_a_tee_reads_no_logs_while_the_reader_pauses(tmp_path):
    log = tmp_path / "worker-0.log"
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as read:
        tee = Tee({0: log}, Showing(stream), terminal=False)
        expected = []
        for number in range(200):
            with log.open("a") as worker:
                worker.write(f"{number} {'.' * 1000}\n")
            expected.append(f"[worker 0] {number} {'.' * 1000}\n")
            tee.poll()
        lines = []
        thread = threading.Thread(target=lambda: lines.extend(read.readline() for _ in expected))
        thread.start()
        tee.close()
        thread.join(60)
        assert lines == expected


def test_nothing_to_show_it_on():
    showing = Showing(None)
    showing.write("a line\n")
    showing.flush()
    assert not showing.isatty()


def test_a_tee_continues_where_no_one_takes_its_lines(tmp_path, refuses):
    log = tmp_path / "worker-0.log"
    with os.fdopen(os.dup(refuses), "w") as stream:
        tee = Tee({0: log}, Showing(stream), terminal=False)
        for _ in range(2):
            with log.open("a") as worker:
                worker.write("a line\n")
            tee.poll()
        tee.close()


@pytest.mark.process
@pytest.mark.parametrize("which", ["stdout", "stderr", "both"])
def test_the_exit_code_stays(which, refuses):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    streams |= {name: refuses for name in streams if which in (name, "both")}
    process = subprocess.Popen([sys.executable, "-c", SHOWS], stdin=subprocess.PIPE, **streams)
    out, err = process.communicate(b"", timeout=60)
    assert process.returncode == 7
    if which == "stdout":
        assert err.count(b"a note") == err.count(b"an error") == 3
        assert b"ignored" not in err
    if which == "stderr":
        assert out.count(b"line") == 3


@pytest.mark.process
def test_a_stream_that_was_closed_from_the_start():
    closed = f"exec {sys.executable} -c '{SHOWS}' >&- 2>&- </dev/null"
    assert subprocess.run(["sh", "-c", closed], timeout=60).returncode == 7
