"""What a worker prints while the disk of its log is full."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PRINTS = """
import sys
from phalanx.worker.standard_output import survive_full_disk
if sys.argv[1] == "survives":
    survive_full_disk()
print("a line that the disk does not take", flush=True)
sys.stdout.write("another")
sys.stdout.buffer.write(b"bytes")
print("to standard error", file=sys.stderr)
sys.exit(7)
"""


def code_of(word, log):
    with open(log, "w") as output:
        return subprocess.run(
            [sys.executable, "-u", "-c", PRINTS, word], stdout=output, stderr=subprocess.DEVNULL
        ).returncode


def test_a_print_that_the_disk_does_not_take_is_dropped():
    assert code_of("survives", "/dev/full") == 7
    assert code_of("fails", "/dev/full") == 1


def test_what_the_disk_takes_is_in_order(tmp_path):
    assert code_of("survives", tmp_path / "log") == 7
    assert (tmp_path / "log").read_text() == "a line that the disk does not take\nanotherbytes"
