"""wandb offline: its file is read back."""

import json
import struct
import time

import psutil
import pytest
from tracked_runs import check_series, needs

from phalanx.monitoring.events import EpochMetrics
from phalanx.report.event_reader import RunReader

Record = needs("wandb", "wandb.proto.wandb_internal_pb2").Record

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]

BLOCK = 32768
HEADER = 7


def records(path):
    """The records of a .wandb file: the format of LevelDB's log, after a header of its own.

    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, whole = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        part = data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            yield Record.FromString(whole)


def read(directory):
    """The runs' ids, the metrics, the configuration, the summary and the files, in all files."""
    ids, series, config, summary = set(), {}, {}, {}
    for path in sorted(directory.glob("offline-run-*/*.wandb")):
        for record in records(path):
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config |= {
                    item.key: json.loads(item.value_json) for item in record.run.config.update
                }
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            step = values.pop("step", None)
            for name, value in values.items():
                if not name.startswith("_"):
                    series.setdefault(name, []).append((step, value))
            for item in record.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return ids, series, config, summary


def test_a_run_that_failed_and_is_resumed_is_one_run(runs):
    runs.train("--tracker", "wandb", "--tracker-project", "p", code=3)
    out = runs.train("--tracker", "wandb", "--resume")
    directory = runs.directory / "runs" / "r" / "trackers" / "wandb"
    assert "tracker wandb: wandb sync" in out
    assert len(list(directory.glob("offline-run-*"))) == 2
    ids, series, config, summary = read(directory)
    assert len(ids) == 1
    check_series(series)
    assert config["args/lr"] == 0.05
    assert config["options/workers"] == 2
    assert summary["run/status"] == "finished"
    assert summary["run/attempts"] == 2


SLOW = """
import time, keras, numpy as np
x = np.ones((64, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
wait = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(1))
model.fit(x, x[:, :1], batch_size=32, epochs=1000, callbacks=[wait], verbose=0)
"""


def test_no_process_of_wandb_outlives_a_launcher_that_is_killed(runs):
    (runs.directory / "slow.py").write_text(SLOW)
    process = runs.start("run", "--workers", "1", "--name", "r", "--tracker", "wandb", "slow.py")
    reader = RunReader(runs.directory / "runs" / "r")
    trained = []

    def has_trained():
        trained.extend(each.step for each in reader.poll() if isinstance(each, EpochMetrics))
        return len(trained) >= 3

    def below_it():
        return psutil.Process(process.pid).children(recursive=True)

    wait_until(has_trained)
    wait_until(lambda: any("wandb-core" in each.name() for each in below_it()))
    below = below_it()
    process.kill()
    process.communicate()
    wait_until(lambda: not any(each.is_running() for each in below))
    runs("report", "r", "--to", "wandb")
    directory = runs.directory / "runs" / "r" / "trackers" / "wandb"
    ids, series, _, _ = read(directory)
    assert len(ids) == 1
    # What was sent before the kill may have arrived, and is sent again.
    steps = sorted({step for step, _ in series["epoch/loss"]})
    assert steps == list(range(2, 2 * len(steps) + 1, 2))
    assert steps[-1] >= trained[-1]


def wait_until(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


OWN = """
import keras
import numpy as np
import wandb
from wandb.integration.keras import WandbMetricsLogger
{start}
x = np.ones((64, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=32, epochs=2, callbacks=[WandbMetricsLogger()], verbose=0)
wandb.finish()
"""
CHIEF = 'import phalanx\nwandb.init(project="p", mode=None if phalanx.is_chief() else "disabled")'


@pytest.mark.parametrize(("start", "count"), [('wandb.init(project="p")', 2), (CHIEF, 1)])
def test_a_script_with_wandb_of_its_own(runs, start, count):
    """As docs/trackers.md says: a run for each worker, or one with the line that it names."""
    (runs.directory / "own.py").write_text(OWN.format(start=start))
    runs("run", "--workers", "2", "own.py")
    files = list((runs.directory / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == count
