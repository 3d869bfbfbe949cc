"""MLflow: a database file, and a server that is down for a time."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress

import pytest
from tracked_runs import check_series, needs

MlflowClient = needs("mlflow", "mlflow.tracking").MlflowClient

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]


def only_run(client, experiment="Default"):
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len(found) == 1
    return found[0]


def series(client, run):
    return {
        name: [
            (metric.step, metric.value)
            for metric in sorted(
                client.get_metric_history(run.info.run_id, name), key=lambda m: m.timestamp
            )
        ]
        for name in run.data.metrics
    }


def test_a_database_gets_one_run_with_its_configuration_and_model(runs):
    uri = f"sqlite:///{runs.directory / 'mlflow.db'}"
    runs.environment["MLFLOW_TRACKING_URI"] = uri
    options = ("--tracker", "mlflow", "--tracker-project", "digits", "--tracker-artifacts")
    runs.train("--max-restarts", "1", *options)
    client = MlflowClient(uri)
    run = only_run(client, "digits")
    check_series(series(client, run))
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "r"
    assert run.data.params["args/lr"] == "0.05"
    assert run.data.params["options/workers"] == "2"
    assert run.data.params["versions/keras"]
    assert run.data.tags["restarts"] == "1"
    assert "exit code 3" in run.data.tags["restart_1"]
    assert [file.path for file in client.list_artifacts(run.info.run_id, "model")] == [
        "model/best.keras"
    ]


def test_a_run_that_failed_and_is_resumed_is_one_run(runs):
    uri = f"sqlite:///{runs.directory / 'mlflow.db'}"
    runs.environment["MLFLOW_TRACKING_URI"] = uri
    runs.train("--tracker", "mlflow", code=3)
    client = MlflowClient(uri)
    assert only_run(client).info.status == "FAILED"
    runs.train("--tracker", "mlflow", "--resume")
    run = only_run(client)
    check_series(series(client, run))
    assert run.info.status == "FINISHED"
    assert run.data.tags["resumed/options/resume"] == "True"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def server(directory, port):
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
               "--backend-store-uri", f"sqlite:///{directory / 'server.db'}", "--workers", "1",
               "--artifacts-destination", str(directory / "artifacts")]  # fmt: skip
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=directory, start_new_session=True
        )
    try:
        until = time.monotonic() + 300
        while True:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            assert process.poll() is None, (directory / "server.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(600)
def test_a_server_that_is_down_costs_no_step_and_loses_nothing(runs):
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    runs.environment |= {
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    }
    # Down for the whole run: the run succeeds, and says how to send it later.
    out = runs.train("--max-restarts", "1", "--tracker", "mlflow")
    assert "tracker mlflow cannot be reached, and is tried again" in out
    assert "phalanx report --to mlflow" in out
    with server(runs.directory, port):
        out = runs("report", "r", "--to", "mlflow")
        client = MlflowClient(uri)
        run = only_run(client)
        assert f"{uri}/#/experiments/0/runs/{run.info.run_id}" in out
        check_series(series(client, run))
        assert run.info.status == "FINISHED"
        before = series(client, run)
        runs("report", "r", "--to", "mlflow")
        assert series(client, only_run(client)) == before
