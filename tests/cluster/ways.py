"""The ways to train that each `phalanx submit` must bring about on two hosts."""

import functools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from small_training import IN_MEMORY, SERVED, put_into, weights

EPOCHS, EVERY = 12, 8
SECONDS = 600
SERVERS = "--strategy parameter-server --ps 2"
DATA_WORKERS = "--data-workers 1"
HOROVOD = "--strategy horovod"

IN_STEP = [
    pytest.param("", IN_MEMORY, id="plain"),
    pytest.param(DATA_WORKERS, SERVED, id="data-workers", marks=pytest.mark.full),
    pytest.param(HOROVOD, IN_MEMORY, id="horovod", marks=[pytest.mark.horovod, pytest.mark.full]),
]
"""Options of `phalanx run`, and the data: those that end with the weights of one device."""


def put_small(directory, data=IN_MEMORY):
    return put_into(directory, epochs=EPOCHS, every=EVERY, data=data)


def assert_weights_of_one_device(here, data=IN_MEMORY):
    """Hold the weights that a training in `here` left against those of one device."""
    for got, expected in zip(weights(here), weights_of_one_device(data), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@functools.cache
def weights_of_one_device(data):
    with tempfile.TemporaryDirectory() as place:
        alone = put_small(Path(place) / "alone", data)
        subprocess.run(
            [
                *(sys.executable, "-m", "phalanx", "run", "--cluster", "none"),
                *("--strategy", "single", "--seed", "1"),
                *("--run-dir", str(alone / "runs"), "train.py", str(alone)),
            ],
            cwd=alone,
            timeout=SECONDS,
            check=True,
        )
        return weights(alone)


def assert_path_was_taken(here, options):
    """Whether the workers did what they were asked for, by what they and their launcher wrote."""
    run = here / "runs" / "it"
    logs = [path.read_text() for path in sorted(run.glob("attempts/0/worker-*.log"))]
    assert len(logs) == 2, logs
    if options == HOROVOD:
        (has_started,) = [one for one in _records(here) if one["kind"] == "run_start"]
        assert has_started["strategy"] == "horovod", has_started
    else:
        assert not any("no data service" in log for log in logs), logs
        made_here = [int(n) for log in logs for n in re.findall(r"made here \((\d+) so far\)", log)]
        assert max(made_here, default=0) < 5 * EPOCHS / 2, logs


def launchers_of_servers(here, variable):
    """By which launcher each parameter server was started, as that variable counts them."""
    (started,) = [one for one in _records(here) if one["kind"] == "attempt_start"]
    chief, _, _, *servers = [worker["pid"] for worker in started["workers"]]
    assert psutil.Process(chief).environ()[variable] == "0"
    return [psutil.Process(pid).environ()[variable] for pid in servers]


def wait_for_epoch(here, output):
    """Training has started; it is slow until `hold` is removed again."""
    end = time.monotonic() + SECONDS
    while not (here / "epoch-0").exists():
        assert time.monotonic() < end, output()
        time.sleep(0.1)


def _records(here):
    text = (here / "runs" / "it" / "records" / "launcher.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
