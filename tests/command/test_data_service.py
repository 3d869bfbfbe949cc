"""`phalanx run --data-workers`: servers make the batches, and one of them is killed."""

import psutil
import pytest

pytestmark = pytest.mark.full

SCRIPT = """
import os, signal, sys
import keras, numpy as np, psutil
import phalanx

x = np.random.default_rng(0).normal(size=(640, 8)).astype("float32")
rows = {"x": x, "y": x[:, :1]}
data = phalanx.data.pipeline(
    (rows["x"], rows["y"]), 32, seed=5, map=lambda x, y: (2 * x, y), service=True
)

class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and os.environ["PHALANX_WORKER_SPEC"].startswith('{"rank": 0'):
            servers = [
                p.pid for p in psutil.Process(os.getppid()).children()
                if "phalanx.worker.data_server" in p.cmdline() and "worker" in p.cmdline()
            ]
            say("servers", len(servers))
            for pid in servers[:1]:
                os.kill(pid, signal.SIGKILL)

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(data, epochs=6, verbose=0, callbacks=[Kill()])
say("losses", history.history["loss"])
say("weights", [float(w) for v in model.get_weights() for w in v.ravel()])
"""


def test_a_killed_data_worker_changes_nothing(cold_command):
    command = cold_command  # the servers are the launcher's children, as the workers are
    script = command.script(SCRIPT)
    served = command.run("--workers", "2", "--data-workers", "2", "--tee", "all", script)
    assert served.code == 0, served.err
    assert served.output()["servers"] == 2
    assert "ended with -9; starting a replacement" in served.err
    alone = command.run("--workers", "2", "--tee", "all", script)
    assert alone.output()["servers"] == 0
    assert "no data service" in alone.out
    for name in ("losses", "weights"):
        assert served.output()[name] == pytest.approx(alone.output()[name], rel=1e-6)
    assert servers_in(command.directory) == []


def servers_in(directory):
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if "phalanx.worker.data_server" in words and process.cwd() == str(directory):
                found.append(process)
        except psutil.Error:
            continue
    return found
