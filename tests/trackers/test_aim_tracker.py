"""Aim: its repository is read back."""

import pytest
from tracked_runs import check_series, needs

aim = needs("aim")

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]


def test_a_run_that_failed_and_is_resumed_is_one_run(runs):
    runs.train("--tracker", "aim", code=3)
    runs.train("--tracker", "aim", "--resume")
    (run,) = aim.Repo(str(runs.directory)).iter_runs()
    assert run.name == "r"
    assert run["config", "args/lr"] == 0.05
    assert run["run", "status"] == "finished"
    series = {}
    for metric in run.metrics():
        steps, values = metric.values.sparse_numpy()
        series[metric.name] = list(zip(steps.tolist(), values.tolist(), strict=True))
    check_series(series)
