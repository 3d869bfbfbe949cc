"""One run of the soak, of which `make soak` does five hundred faults."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEED = 3


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_a_disturbed_run_ends_like_the_undisturbed_one(tmp_path):
    """Its faults: see `python benchmarks/soak.py --seed N --runs 1`, which says them all."""
    words = ("--seed", str(SEED), "--runs", "1", "--directory", str(tmp_path / "soak"))
    finished = subprocess.run(
        [sys.executable, BENCHMARKS / "soak.py", *words],
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "1 runs ended like the undisturbed one, 0 did not" in finished.stdout
    assert "Kill" in finished.stdout
    assert "FailWrites" in finished.stdout
    assert "BitRot" in finished.stdout
