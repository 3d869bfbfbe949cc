"""TensorBoard, which is always installed: a run with a restart, and sent later."""

import json

import pytest
from tracked_runs import check_series

from phalanx.monitoring.tensorboard_files import read_scalars


@pytest.mark.full
def test_a_run_with_a_restart_is_one_run(runs):
    options = ("--max-restarts", "1", "--log-gradients", "--tracker", "tensorboard")
    out = runs.train(*options, gradients="none")
    run = runs.directory / "runs" / "r"
    assert f"tracker tensorboard: tensorboard --logdir {run / 'tensorboard'}" in out
    found = read_scalars(run / "tensorboard" / "run")
    check_series(found, gradients=(1, 9))  # the first step of each attempt
    state = json.loads((run / "trackers" / "tensorboard.json").read_text())
    assert state["status"] == "finished"
    runs("report", "r", "--to", "tensorboard")
    assert read_scalars(run / "tensorboard" / "run") == found
