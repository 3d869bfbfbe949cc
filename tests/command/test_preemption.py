"""A preempted run saves at one step and says how to resume, with the real command."""

import json
import os
import signal

import pytest

from phalanx.monitoring.event_log import read_records, records_path

TRAINING = """
import sys, time
import keras
import numpy as np
import phalanx
from phalanx.worker.preemption import guard, is_requested

class SavesAndStops(phalanx.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("trains", flush=True)
        time.sleep(0.1)
        if self.any_worker(is_requested()):
            sys.exit(75)

x = np.ones((64, 2), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
with guard():
    model.fit(x, x[:, :1], batch_size=2, epochs=100, verbose=0, callbacks=[SavesAndStops()])
"""


def steps(command, name):
    """The step at which each worker says that it stopped."""
    files = [records_path(command.directory / "runs" / name, rank) for rank in (0, 1)]
    ends = [r for f in files for r in read_records(f).records if r["kind"] == "worker_end"]
    assert [end["ok"] for end in ends] == [True, True]
    return [end["step"] for end in ends]


def test_the_launcher_is_asked_to_go(command):
    requested = ("--workers", "2", "--name", "it", "--max-restarts", "3")
    process = command.start(*requested, command.script(TRAINING))
    command.wait_until(lambda: command.logs_hold("trains"))
    process.send_signal(signal.SIGUSR1)
    finished = command.finish(process)
    assert finished.code == 75, finished.err
    first, second = steps(command, "it")
    assert first == second > 0
    assert f"every worker has saved and stopped at step {first}; run the same" in finished.err
    assert "restart" not in finished.err
    result = json.loads((command.directory / "runs/it/run.json").read_text())["result"]
    assert (result["exit_code"], result["report"]) == (75, None)


@pytest.mark.full
def test_one_worker_is_asked_to_go(command):
    process = command.start("--workers", "2", "--name", "it", command.script(TRAINING))
    command.wait_until(lambda: command.logs_hold("trains"))
    os.kill(command.workers()[-1].pid, signal.SIGTERM)
    finished = command.finish(process)
    assert finished.code == 75, finished.err
    assert len(set(steps(command, "it"))) == 1


@pytest.mark.full
def test_a_failure_is_not_waited_for_by_those_that_listen(command):
    process = command.start("--workers", "2", "--grace-period", "900", command.script(TRAINING))
    command.wait_until(lambda: command.logs_hold("trains"))
    os.kill(command.workers()[-1].pid, signal.SIGKILL)
    finished = command.finish(process)  # long before the grace is over
    assert finished.code == 137
    assert "failed first: it was killed by SIGKILL" in finished.err
