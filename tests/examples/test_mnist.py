"""The first command of the README, as a user starts it: each worker imports all that it needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from running import accuracy

MNIST = Path(__file__).parents[2] / "examples" / "mnist.py"


def run(directory, workers):
    words = ["phalanx", "run", "--workers", str(workers), "--seed", "7", str(MNIST)]
    done = subprocess.run(
        [sys.executable, "-m", *words, "--limit", "960", "--epochs", "2"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return accuracy(done.stdout)


def test_two_workers_started_cold_learn_what_one_does(tmp_path):
    alone = run(tmp_path, 1)
    assert alone > 0.6
    assert run(tmp_path, 2) == pytest.approx(alone, abs=0.01)
