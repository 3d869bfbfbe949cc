"""The first command of the README, as a user starts it: each worker imports all that it needs."""

from pathlib import Path

import pytest
from running import accuracy, ran

MNIST = Path(__file__).parents[2] / "examples" / "mnist.py"


def run(directory, workers):
    words = ["phalanx", "run", "--workers", str(workers), "--seed", "7", str(MNIST)]
    return accuracy(ran(directory, "-m", *words, "--limit", "960", "--epochs", "1"))


def test_two_workers_started_cold_learn_what_one_does(tmp_path):
    alone = run(tmp_path, 1)
    assert alone > 0.3
    assert run(tmp_path, 2) == pytest.approx(alone, abs=0.01)
