"""Two launchers with process ids of their own, as on two hosts: a hang, and processes of others."""

import os
import re
import shlex
import subprocess
import sys

import pytest

OTHERS = 400
"""Processes of another user on the leader's side, with all low process ids."""

TRAIN = """
import time
import keras
import numpy as np
import tensorflow as tf

rank = tf.distribute.get_strategy().cluster_resolver.task_id

class Own(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == 1 and batch == 2:
            time.sleep(1000)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((16, 2), "float32")
model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[Own()])
"""

LEADER = f"""
for number in $(seq {OTHERS}); do setpriv --reuid 65534 --clear-groups sleep 1000 & done
{{command}}
echo code $?
echo left $(pgrep -c -u 65534 sleep)
"""


def separate(script):
    """Run a shell script as the first process of a namespace of process ids."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of process ids need root")
def test_stacks_come_from_the_worker_there_and_no_process_here_gets_a_signal(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    def command(rank):
        options = ("--hosts", "127.0.0.1,localhost", "--node-rank", str(rank), "--name", "it")
        words = [sys.executable, "-m", "phalanx", "run", *options, "--hang-timeout", "20"]
        return f"cd {tmp_path}; {shlex.join([*words, 'train.py'])}"

    leader = separate(LEADER.format(command=command(0)))
    follower = separate(command(1))
    out, err = leader.communicate(timeout=600)
    follower.communicate(timeout=60)
    assert f"code 124\nleft {OTHERS}\n" in out, out + err
    assert follower.returncode == 124
    assert re.search(r"it is at .*train\.py:\d+, in on_train_batch_end", err), err
    stacks = tmp_path / "runs" / "it" / "attempts" / "0" / "worker-1.stacks.txt"
    assert "in on_train_batch_end" in stacks.read_text()
