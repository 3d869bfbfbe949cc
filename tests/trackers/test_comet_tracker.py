"""Comet offline: its archives are read back."""

import json
import zipfile

import pytest
from tracked_runs import check_series, needs

needs("comet_ml")

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]


def test_a_run_that_failed_and_is_resumed_is_one_experiment(runs):
    runs.train("--tracker", "comet", code=3)
    runs.train("--tracker", "comet", "--tracker-artifacts", "--resume")
    directory = runs.directory / "runs" / "r" / "trackers" / "comet"
    archives = sorted(directory.glob("*.zip"), key=lambda path: path.stat().st_mtime_ns)
    assert len(archives) == 2
    keys, series, parameters, others, files = set(), {}, {}, {}, []
    for archive in archives:
        with zipfile.ZipFile(archive) as opened:
            keys.add(json.loads(opened.read("experiment.json"))["offline_id"])
            for line in opened.read("messages.json").splitlines():
                message = json.loads(line)
                payload = message["payload"]
                if message["type"] == "metric_msg":
                    metric = payload["metric"]
                    if not metric["metricName"].startswith("sys."):
                        points = series.setdefault(metric["metricName"], [])
                        points.append((metric["step"], float(metric["metricValue"])))
                elif message["type"] == "parameter_msg":
                    parameters[payload["param"]["paramName"]] = payload["param"]["paramValue"]
                elif message["type"] == "log_other":
                    others[payload["key"]] = payload["value"]
                elif message["type"] == "file_upload":
                    files.append(payload["additional_params"]["fileName"])
    assert len(keys) == 1
    check_series(series)
    assert float(parameters["args/lr"]) == 0.05
    assert others["run/status"] == "finished"
    assert "best.keras" in files
