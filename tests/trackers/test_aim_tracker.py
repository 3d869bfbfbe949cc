"""Aim: its repository is read back."""

import pytest
from tracked_runs import check_series, needs

aim = needs("aim")

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]


def test_a_run_that_failed_and_is_resumed_is_one_run(runs):
    runs.train("--tracker", "aim", code=3)
    runs.train("--tracker", "aim", "--resume")
    repo = aim.Repo(str(runs.directory))
    (name,) = repo.list_all_runs()
    # Opened for writing: a reader sees nothing before `aim up` has indexed the run.
    run = aim.Run(name, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
    try:
        assert run.name == "r"
        assert run["config", "args/lr"] == 0.05
        assert run["run", "status"] == "finished"
        series = {}
        for metric in run.metrics():
            rows = metric.dataframe().sort_values("idx")
            series[metric.name] = [(int(s), v) for s, v in zip(rows.step, rows.value, strict=True)]
        check_series(series)
    finally:
        run.close()
