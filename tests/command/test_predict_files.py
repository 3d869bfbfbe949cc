"""`phalanx predict` and `phalanx evaluate` on real files, with real workers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

ROWS = (100, 7, 0, 300, 33)
BATCH = 32

MAKE = f"""
import keras
import numpy as np
import phalanx

rng = np.random.default_rng(0)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
model.compile("sgd", "mse", metrics=["mae"])
model.save("model.keras")
x = keras.Input((8,))
outputs = {{"first": keras.layers.Dense(1)(x), "second": keras.layers.Dense(2)(x)}}
several = keras.Model(x, outputs)
several.save("several.keras")
import own
subclassed = own.Subclassed()
subclassed(np.zeros((1, 8), "float32"))
subclassed.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
subclassed.save("subclassed.keras")

for number, rows in enumerate({ROWS}):
    x = rng.normal(size=(rows, 8)).astype("float32")
    np.save(f"rows/part-{{number}}.npy", x)
    expected = np.zeros((0, 3), "float32")
    if rows:
        expected = model.predict(x, batch_size={BATCH}, verbose=0)
    np.save(f"expected/part-{{number}}.npy", expected)
x = np.load("rows/part-3.npy")
np.save("expected/subclassed.npy", subclassed.predict(x, batch_size={BATCH}, verbose=0))
np.savez("expected/several.npz", **several.predict(x, batch_size={BATCH}, verbose=0))

x, y = rng.normal(size=(501, 8)).astype("float32"), rng.normal(size=(501, 3)).astype("float32")
np.savez("test.npz", x=x, y=y)
phalanx.data.write_tfrecords((x, y), "records/test", shards=3)
import json
metrics = model.evaluate(x, y, batch_size={BATCH}, verbose=0, return_dict=True)
open("expected/metrics.json", "w").write(json.dumps(metrics))
import glob
files = sorted(glob.glob("records/*.tfrecord"))
batches = [phalanx.data.pipeline(file, 8, shuffle=False) for file in files]
np.save("expected/records.npy", np.concatenate([model.predict(b, verbose=0) for b in batches]))
"""

OWN = """
import keras

@keras.saving.register_keras_serializable()
class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3, "softmax")
    def call(self, x):
        return self.dense(x)
"""

SLOW = """
import time
import numpy as np

class Rows:
    def __init__(self, path):
        self.rows = np.load(path)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, row):
        time.sleep(0.02)
        return self.rows[row]

def slow(paths):
    (path,) = paths
    return Rows(path)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Models, files, and what one process without Phalanx makes of them."""
    place = tmp_path_factory.mktemp("predict")
    for name in ("rows", "records", "expected"):
        (place / name).mkdir()
    (place / "own.py").write_text(OWN)
    subprocess.run([sys.executable, "-c", MAKE], cwd=place, check=True, timeout=300)
    return place


@pytest.fixture
def predict(command, made):
    """`phalanx predict` in a directory with the files."""
    for name in os.listdir(made):
        (command.directory / name).symlink_to(made / name)
    (command.directory / "slow.py").write_text(SLOW)
    command.words = ("model.keras", "rows", "out", "--batch-size", str(BATCH), "--workers", "2")
    return command


def output(command, name="out"):
    """The bytes of every file of the output."""
    return {path.name: path.read_bytes() for path in (command.directory / name).glob("*.np*")}


def expected(made):
    return {path.name: path.read_bytes() for path in (made / "expected").glob("part-*.npy")}


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)]
)
def test_any_number_of_workers_gives_the_bytes_of_one_process(predict, made, workers):
    finished = predict.run(*predict.words, "--workers", str(workers), command="predict")
    assert finished.code == 0, finished.err
    assert output(predict) == expected(made)
    manifest = json.loads((predict.directory / "out" / "predictions.json").read_text())
    assert manifest["complete"]
    assert manifest["rows"] == sum(ROWS)
    assert [(one["file"], one["rows"]) for one in manifest["outputs"]] == [
        (f"part-{number}.npy", rows) for number, rows in enumerate(ROWS)
    ]
    again = predict.run(*predict.words, command="predict")
    assert again.code == 0
    assert len(list(predict.directory.glob("runs/*"))) == 1, "nothing was left to do"


def complete(command):
    return sorted((command.directory / "out" / ".parts").glob("*.json"))


@pytest.mark.full
def test_a_killed_worker_is_replaced_while_the_other_continues(predict, made):
    process = predict.start(*predict.words, "--source", "slow:slow", command="predict")
    predict.wait_until(lambda: complete(predict))
    first, second = predict.workers()
    first.kill()
    finished = predict.finish(process)
    assert finished.code == 0, finished.err
    assert "starting a replacement" in finished.err
    assert output(predict) == expected(made)
    assert len(list(predict.directory.glob("runs/*/attempts/*"))) == 1
    starts = [
        json.loads(line)
        for path in predict.directory.glob("runs/*/records/*.jsonl")
        for line in path.read_text().splitlines()
        if '"worker_start"' in line
    ]
    pids = [start["pid"] for start in starts]
    assert len(pids) == 3
    assert {first.pid, second.pid} < set(pids)


def test_the_same_command_continues_where_it_was_killed(predict, made):
    words = (*predict.words, "--source", "slow:slow")
    process = predict.start(*words, command="predict")
    predict.wait_until(lambda: complete(predict))
    workers = predict.workers()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    psutil.wait_procs(workers, timeout=60)
    done = {path.stem: stamp(predict, path.stem) for path in complete(predict)}
    assert 0 < len(done) < len(ROWS)
    other = predict.run("several.keras", *words[1:], command="predict")
    assert other.code == 2
    assert "model.keras (sha256 " in other.err
    assert "several.keras (sha256 " in other.err
    finished = predict.run(*words, command="predict")
    assert finished.code == 0, finished.err
    assert output(predict) == expected(made)
    assert {name: stamp(predict, name) for name in done} == done
    assert not list((predict.directory / "out").glob("*.part"))


def stamp(command, name):
    return (command.directory / "out" / f"{name}.npy").stat().st_mtime_ns


@pytest.mark.full
def test_several_outputs_of_one_file_that_workers_share(predict, made):
    words = ("several.keras", "rows/part-3.npy", "out", "--batch-size", str(BATCH))
    finished = predict.run(*words, "--workers", "2", "--parts", "3", command="predict")
    assert finished.code == 0, finished.err
    names = [f"part-3-0000{number}-of-00003.npz" for number in range(3)]
    assert sorted(output(predict)) == names
    parts = [np.load(predict.directory / "out" / name) for name in names]
    whole = np.load(made / "expected" / "several.npz")
    assert sorted(whole) == ["first", "second"]
    for name in whole:
        assert np.concatenate([part[name] for part in parts]).tobytes() == whole[name].tobytes()


@pytest.mark.full
def test_workers_share_fewer_batches_than_they_make_parts(predict, made):
    """10 batches in 16 parts, of a model that does not say what it returns."""
    words = ("subclassed.keras", "rows/part-3.npy", "out", "--batch-size", str(BATCH))
    options = ("--workers", "2", "--import", "own", "--parts", "16")
    finished = predict.run(*words, *options, command="predict")
    assert finished.code == 0, finished.err
    files = sorted((predict.directory / "out").glob("*.npy"))
    assert len(files) == 16
    parts = [np.load(file) for file in files]
    assert [part.shape[1:] for part in parts] == [(3,)] * 16
    whole = np.load(made / "expected" / "subclassed.npy")
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.full
def test_a_metric_of_several_workers_with_a_value_for_each_class(predict, made):
    (predict.directory / "classes.py").write_text(
        "import tensorflow as tf\n"
        "def one_hot(x, y):\n"
        "    return x, tf.one_hot(tf.argmax(y, -1), 3)\n"
    )
    words = ("subclassed.keras", "test.npz", "--import", "own", "--map", "classes:one_hot")
    finished = predict.run(*words, "--workers", "2", "--json", command="evaluate")
    assert finished.code == 0, finished.err
    test = np.load(made / "test.npz")
    script = (
        "import json, keras, numpy as np, own\n"
        "test = np.load('test.npz')\n"
        "y = np.eye(3, dtype='float32')[test['y'].argmax(-1)]\n"
        "model = keras.models.load_model('subclassed.keras')\n"
        "found = model.evaluate(test['x'], y, verbose=0, return_dict=True)\n"
        "print(json.dumps({k: np.asarray(v, float).tolist() for k, v in found.items()}))\n"
    )
    alone = subprocess.run(
        [sys.executable, "-c", script], cwd=made, check=True, timeout=300, capture_output=True
    )
    expected = json.loads(alone.stdout.splitlines()[-1])
    found = json.loads(finished.out)
    assert found["rows"] == len(test["x"])
    assert found["metrics"]["f1_score"] == pytest.approx(expected["f1_score"], rel=1e-5)
    assert found["metrics"]["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.full
def test_records_in_parts_as_csv(predict, made):
    words = ("model.keras", "records", "out", "--format", "csv", "--parts", "4")
    finished = predict.run(*words, "--batch-size", "8", "--workers", "2", command="predict")
    assert finished.code == 0, finished.err
    files = sorted((predict.directory / "out").glob("*.csv"))
    assert len(files) == 12
    lines = [path.read_text().splitlines() for path in files]
    assert {one[0] for one in lines} == {"output_0,output_1,output_2"}
    found = np.array([line.split(",") for one in lines for line in one[1:]], "float32")
    assert found.tobytes() == np.load(made / "expected" / "records.npy").tobytes()


@pytest.mark.full
def test_a_failure_that_comes_again_ends_the_command(predict):
    """The message is the worker's, and what is complete stays."""
    (predict.directory / "broken.py").write_text(
        "import numpy as np\n"
        "def source(paths):\n"
        "    rows = np.load(paths[0])\n"
        "    return rows[:, :3] if 'part-3' in paths[0] else rows\n"
    )
    finished = predict.run(*predict.words, "--source", "broken:source", command="predict")
    assert finished.code == 1
    assert "The same failure came before" in finished.err
    assert "parts are missing" in finished.err
    assert "part-3.npy" not in output(predict)


@pytest.mark.parametrize(
    ("workers", "given"),
    [
        pytest.param(1, "test.npz", marks=pytest.mark.full),
        (2, "test.npz"),
        pytest.param(2, "records", marks=pytest.mark.full),
    ],
)
def test_metrics_are_those_of_one_process(predict, made, workers, given):
    words = ("model.keras", given, "--workers", str(workers), "--batch-size", str(BATCH))
    finished = predict.run(*words, "--json", "--output", "metrics.json", command="evaluate")
    assert finished.code == 0, finished.err
    found = json.loads(finished.out)
    assert found["rows"] == 501
    assert found["metrics"] == pytest.approx(
        json.loads((made / "expected" / "metrics.json").read_text()), rel=1e-5
    )
    assert json.loads((predict.directory / "metrics.json").read_text()) == found
    (run,) = (predict.directory / "runs").iterdir()
    assert json.loads(Path(run / "evaluation.json").read_text()) == found


@pytest.mark.full
def test_a_metric_that_is_not_finite_is_null_in_json(predict):
    with np.load(predict.directory / "test.npz") as rows:
        np.savez(predict.directory / "bad.npz", x=rows["x"], y=rows["y"] * np.nan)
    words = ("model.keras", "bad.npz", "--workers", "1")
    finished = predict.run(*words, "--json", command="evaluate")
    assert finished.code == 0, finished.err
    assert json.loads(finished.out, parse_constant=pytest.fail)["metrics"]["loss"] is None
    assert "loss: not finite" in predict.run(*words, command="evaluate").out
