"""Clocks that are set, and processes that are stopped, while a run continues: the real command."""

import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import psutil
import pytest

HOUR = 3600
HANG_TIMEOUT = 60
"""Less than an hour, and more than a first step takes on a busy machine."""

TRAIN = """
import pathlib, time
import keras
import numpy as np
import tensorflow as tf

rank = tf.distribute.get_strategy().cluster_resolver.task_id

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.1)

class Own(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            pathlib.Path(f"trains-{{rank}}").touch()
            wait_for("continue")
        {act}

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((80, 2), "float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)
options = tf.data.Options()
options.autotune.enabled = False  # see below
model.fit(data.with_options(options), epochs=1, verbose=0, callbacks=[Own()])
print("trained", time.time(), flush=True)
"""
# Autotuning is off because its thread waits by the wall clock, and can miss that its iterator is
# deleted: `CancellationManager` wakes it before it says that it is cancelled. `del iterator` waits
# for that thread: up to a period of autotuning, and an hour more where the clock was set back by
# one (TensorFlow 2.21, with one device too).


@pytest.fixture(scope="module")
def shifting(tmp_path_factory):
    """The library that shifts the wall clock of a process."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    made = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    source = Path(__file__).parent / "wall_clock.c"
    words = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(made), str(source)]
    subprocess.run([*words, "-ldl", "-lpthread"], check=True)
    return made


class WallClock:
    """The wall clock of a command and all that it starts."""

    def __init__(self, command, library):
        # Only the file is read at each call, so the clock can move at any moment.
        self.file = command.directory / "clock"
        self.file.write_bytes(struct.pack("<q", 0))
        command.environment |= {"LD_PRELOAD": str(library), "PHALANX_TEST_CLOCK": str(self.file)}

    def move(self, seconds):
        with self.file.open("r+b") as file:
            file.write(struct.pack("<q", seconds))


@pytest.fixture
def wall_clock(cold_command, shifting):
    return WallClock(cold_command, shifting)


def start(command, *options, act="time.sleep(0.25)"):
    script = command.script(TRAIN.format(act=act))
    requested = ("--workers", "2", "--hang-timeout", str(HANG_TIMEOUT), *options)
    process = command.start(*requested, script)
    # Both have trained some steps, and wait within one.
    command.wait_until(lambda: len(list(command.directory.glob("trains-*"))) == 2)
    return process


@pytest.mark.full
@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_run_completes_when_the_clock_is_set_in_its_middle(cold_command, wall_clock, step):
    process = start(cold_command)
    wall_clock.move(step)
    time.sleep(3)  # so that TensorFlow's checks and the launcher's see it while workers wait
    (cold_command.directory / "continue").touch()
    finished = cold_command.finish(process)
    assert finished.code == 0, finished.err
    (line,) = [line for line in finished.out.splitlines() if "trained" in line]
    off = float(line.split()[-1]) - time.time()
    assert off == pytest.approx(step, abs=120), "the workers' clock was set"


@pytest.mark.full
def test_a_run_that_was_stopped_as_a_whole_continues(cold_command):
    process = start(cold_command)
    (cold_command.directory / "continue").touch()
    launcher = psutil.Process(process.pid)
    everybody = [launcher, *launcher.children(recursive=True)]
    for each in everybody:
        os.kill(each.pid, signal.SIGSTOP)
    time.sleep(HANG_TIMEOUT + 15)
    for each in reversed(everybody):
        os.kill(each.pid, signal.SIGCONT)
    finished = cold_command.finish(process)
    assert finished.code == 0, finished.err
    assert "trained" in finished.out


@pytest.mark.full
@pytest.mark.parametrize("off", [HOUR, -HOUR])
def test_a_hang_is_found_in_time_where_the_workers_clock_is_off(cold_command, shifting, off):
    # As on another host: the workers' clock is an hour from the launcher's.
    clock = cold_command.directory / "clock"
    clock.write_bytes(struct.pack("<q", off))
    options = ("--env", f"LD_PRELOAD={shifting}", "--env", f"PHALANX_TEST_CLOCK={clock}")
    process = start(cold_command, *options, act="time.sleep(1000 * (rank == 1 and batch == 6))")
    began = time.monotonic()
    (cold_command.directory / "continue").touch()
    finished = cold_command.finish(process)
    assert finished.code == 124, finished.err
    assert time.monotonic() - began < HOUR / 4, "far less than the clocks are apart"
    assert "worker 1 never reached step 8: in a callback for " in finished.err
