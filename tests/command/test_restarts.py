"""A worker dies, and the run resumes from where it was saved, with the real command."""

import signal

import psutil
import pytest

TRAINING = """
import os, signal, sys
import keras
import numpy as np

class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        rank = self.model.distribute_strategy.cluster_resolver.task_id
        if epoch == 2 and rank == 1 and not os.path.exists("died") and "dies" in sys.argv:
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
callbacks = [keras.callbacks.BackupAndRestore("backup" + sys.argv[1]), Dies()]
model.fit(x, y, batch_size=8, epochs=4, callbacks=callbacks, verbose=0)
say("epochs", model.history.epoch)
say("weights", [float(np.abs(w).sum()) for w in model.get_weights()])
"""


def test_a_killed_worker_is_started_again_and_continues_from_the_backup(command):
    script = command.script(TRAINING)
    requested = ("--workers", "2", "--seed", "5", "--max-restarts", "1", script)
    undisturbed = command.run(*requested, "whole")
    finished = command.run(*requested, "dies")
    assert finished.code == undisturbed.code == 0
    assert "worker 1 failed: it was killed by SIGKILL" in finished.err
    assert "restart 1 of 1" in finished.err
    assert finished.output()["epochs"] == [2, 3]
    assert finished.output()["weights"] == undisturbed.output()["weights"]
    assert finished.output(0)["weights"] == undisturbed.output(0)["weights"]


STEADY = """
import time
import keras
import numpy as np

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)

x = np.ones((64, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=2, epochs=1000, callbacks=[Slow()], verbose=0)
"""


@pytest.mark.full
def test_a_restart_is_forked_from_the_process_that_holds_ready(cold_command):
    command = cold_command
    process = command.start("--workers", "2", "--max-restarts", "3", command.script(STEADY))
    run = command.directory / "runs"

    def trained(attempt):
        return len(list(run.glob(f"*/attempts/{attempt}/worker-*.first_step"))) == 2

    def warm():
        launcher = psutil.Process(process.pid)
        return [each for each in launcher.children() if each.name() == "phalanx-prefork"]

    command.wait_until(lambda: trained(0) and warm())
    (ready,) = warm()
    assert "phalanx.worker.forkserver" in ready.cmdline()
    command.workers()[-1].kill()
    command.wait_until(lambda: trained(1))
    assert {worker.ppid() for worker in command.workers()} == {ready.pid}
    assert [worker.nice() for worker in command.workers()] == [psutil.Process().nice()] * 2
    ready.kill()  # Its workers go with it, and fresh ones come.
    command.wait_until(lambda: trained(2))
    assert {worker.ppid() for worker in command.workers()} == {process.pid}
    process.send_signal(signal.SIGINT)
    finished = command.finish(process)
    assert finished.code == 130
    assert finished.err.count("restart") == 2
    assert not ready.is_running()
