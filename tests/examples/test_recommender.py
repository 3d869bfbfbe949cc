"""The recommender comes near the best there is, with its tables on two servers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "recommender.py"


@pytest.mark.full
def test_the_recommender_trains_on_servers(tmp_path):
    options = ["--strategy", "parameter-server", "--workers", "2", "--ps", "2", "--seed", "1"]
    sharding = ["--variable-partitioner", "min-size:1KiB"]
    command = [sys.executable, "-m", "phalanx", "run", *options, *sharding, str(SCRIPT), "--quick"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = float(re.search(r"rmse on unseen ratings: ([\d.]+)", done.stdout)[1])
    best, mean = map(float, re.search(r"there is: ([\d.]+); .* ([\d.]+)", done.stdout).groups())
    assert best * 0.97 < found < best * 1.15
    assert found < mean * 0.7
