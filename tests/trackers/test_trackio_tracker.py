"""Trackio: its local database is read back."""

import json
import os
import subprocess
import sys

import pytest
from tracked_runs import QUIET, check_series, needs

needs("trackio")

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]

READ = """
import json
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage
(run,) = Api().runs("phalanx")
history = SQLiteStorage.get_logs("phalanx", run.name)
print(json.dumps({"name": run.name, "history": history, "config": run.config}))
"""


def test_a_run_that_failed_and_is_resumed_is_one_run(runs):
    runs.environment["TRACKIO_DIR"] = str(runs.directory / "trackio")
    runs.train("--tracker", "trackio", code=3)
    runs.train("--tracker", "trackio", "--resume")
    env = os.environ | QUIET | runs.environment
    read = subprocess.run(
        [sys.executable, "-c", READ], env=env, check=True, capture_output=True, text=True
    )
    found = json.loads(read.stdout.splitlines()[-1])
    assert found["name"].startswith("r-")
    series = {}
    for row in found["history"]:
        for name, value in row.items():
            if "/" in name and not name.startswith("run/"):
                series.setdefault(name, []).append((row["step"], value))
    check_series(series)
    assert found["config"]["args/lr"] == 0.05
    assert found["history"][-1]["run/status"] == "finished"
