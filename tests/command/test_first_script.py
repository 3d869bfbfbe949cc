"""The script of `phalanx init`: the commands that it prints, as they stand, and plain Python."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from phalanx import checkpoint


def ran(command, *words):
    return subprocess.run(
        [sys.executable, *words],
        cwd=command.directory,
        env={**os.environ, **command.environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


def numbers(text):
    """The losses and accuracies of each epoch."""
    return [float(value) for value in re.findall(r"(?:loss|accuracy): (\d\S*)", text)]


@pytest.mark.full
def test_the_three_commands(command):
    printed = ran(command, "-m", "phalanx", "init").stdout.splitlines()
    one, two, report = (ran(command, "-m", *shlex.split(line)) for line in printed)
    assert len(numbers(one.stdout)) == 4 * 4
    assert numbers(one.stdout) == pytest.approx(numbers(two.stdout), rel=1e-2)
    assert numbers(one.stdout)[-2] > 0.8  # The accuracy of validation: it has learned.
    newest = max((command.directory / "runs").iterdir())
    assert (newest / "report.html").exists(), report.stderr
    assert {path.name for path in (newest / "tensorboard").iterdir()} == {
        "global",
        "worker-0",
        "worker-1",
    }
    assert checkpoint.list(newest / "checkpoints")[-1].step == 4 * 32


@pytest.mark.full
def test_plain_python(command):
    ran(command, "-m", "phalanx", "init", "plain.py")
    finished = ran(command, "plain.py", "--epochs", "1", "--samples", "500")
    assert len(numbers(finished.stdout)) == 4
    assert [path.name for path in command.directory.iterdir()] == ["plain.py"]
