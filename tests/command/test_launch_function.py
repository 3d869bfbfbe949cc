"""`phalanx.launch` from a Python process; tests/examples/test_notebooks.py has kernels."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def python(tmp_path, shared_fork_server):
    """Runs a program that calls `phalanx.launch`; gives what it says, and all it prints."""

    def run(source, *words):
        (tmp_path / "program.py").write_text(source)
        done = subprocess.run(
            [sys.executable, "program.py", *words],
            cwd=tmp_path,
            env={**os.environ, **shared_fork_server},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed = [line[4:] for line in done.stdout.splitlines() if line.startswith("SAY ")]
        return json.loads(printed[-1]), done.stdout

    return run


BEGIN = """
import json
import phalanx

def say(value):
    print("SAY", json.dumps(value), flush=True)
"""

# What a notebook has in the first cell.
STARTED = """
import keras
import numpy as np
import tensorflow as tf

assert tf.reduce_sum(tf.ones(4)) == 4.0
"""

TRAIN = """
def train(units, epochs):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    model = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(x, x.sum(axis=1), batch_size=16, epochs=epochs)
    print("workers", phalanx.world_size())
    return {"model": model, "history": history, "sample": x[:2], "answer": model(x[:2]).numpy()}
"""


def test_a_model_comes_back_where_tensorflow_has_started(python):
    printed, output = python(
        f"{BEGIN}{STARTED}{TRAIN}"
        """
back = phalanx.launch(train, args=(8,), kwargs={"epochs": 2}, workers=2)
prediction = back["model"].predict(back["sample"], verbose=0)
say({
    "same": bool(np.allclose(prediction, back["answer"], rtol=1e-5)),
    "epoch": back["history"].epoch,
    "losses": len(back["history"].history["loss"]),
    "steps": back["history"].params["steps"],
})
"""
    )
    assert printed == {"same": True, "epoch": [0, 1], "losses": 2, "steps": 4}
    assert "[worker 0] workers 2" in output


@pytest.mark.full
def test_the_process_imports_tensorflow_only_for_a_value_that_needs_it(python):
    printed, _ = python(
        f"{BEGIN}"
        """
import sys

def train():
    import keras
    import numpy as np
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 2))
    return model.fit(x, x[:, :1], batch_size=4, verbose=0)

history = phalanx.launch(train, workers=2)
say([len(history.history["loss"]), sorted({"tensorflow", "keras"} & set(sys.modules))])
"""
    )
    assert printed == [1, []]


CUSTOM = """
@keras.saving.register_keras_serializable("own")
class Registered(keras.layers.Layer):
    def call(self, x):
        return x * 2.0

class Plain(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
    def call(self, x):
        return x * self.scale

class Own(keras.Model):
    def __init__(self, units=1, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(units)
    def call(self, x):
        return self.dense(x)
"""


@pytest.mark.full
def test_models_of_the_notebooks_own_classes_come_back(python):
    printed, _ = python(
        f"{BEGIN}{STARTED}{CUSTOM}"
        """
def train():
    x = np.ones((8, 2), "float32")
    first = keras.Sequential([keras.Input((2,)), Plain(), Registered()])
    second = Own(1)
    for model in (first, second):
        model.compile("sgd", "mse")
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
    third = keras.Sequential([keras.Input((2,)), Registered()])
    third.save("third.keras")
    loaded = keras.models.load_model("third.keras")
    return first, second, float(np.abs(loaded(x) - third(x)).max())

first, second, difference = phalanx.launch(train, workers=2)
say([
    isinstance(first.layers[0], Plain),
    isinstance(first.layers[1], Registered),
    isinstance(second, Own),
    first.predict(np.ones((1, 2)), verbose=0).shape,
    second.predict(np.ones((1, 2)), verbose=0).shape,
    difference,
])
"""
    )
    assert printed == [True, True, True, [1, 2], [1, 1], 0.0]


@pytest.mark.full
def test_a_tf_function_with_a_branch_finds_its_source(python):
    """AutoGraph reads the source of a function, which for a cell is in the kernel only."""
    printed, _ = python(
        f"{BEGIN}"
        """
import linecache

source = '''
def train():
    import tensorflow as tf

    @tf.function
    def positive(x):
        if x > 0:
            return x
        return -x

    return float(positive(tf.constant(-3.0)))
'''
file = "<cell 1>"
linecache.cache[file] = (len(source), None, source.splitlines(True), file)
exec(compile(source, file, "exec"), globals())
say(phalanx.launch(train, workers=1))
"""
    )
    assert printed == 3.0


@pytest.mark.full
def test_a_value_that_cannot_come_back_loses_no_run(python):
    printed, _ = python(
        f"{BEGIN}"
        """
import threading
from phalanx.errors import ReturnValueError

def train():
    return threading.Lock()

def leave():
    raise SystemExit(0)

found = []
for function in (train, leave):
    try:
        phalanx.launch(function, workers=1, name=function.__name__)
    except ReturnValueError as error:
        found.append(str(error))
say(found)
"""
    )
    lock, left = printed
    assert "_thread.lock" in lock
    assert "runs/train" in lock
    assert "has not returned" in left


@pytest.mark.full
def test_an_error_names_worker_and_line(python, tmp_path):
    printed, _ = python(
        f"{BEGIN}"
        """
from phalanx.errors import RunFailedError

def train():
    if phalanx.rank() == 1:
        raise ValueError("a bad label")  # HERE
    phalanx.barrier()

try:
    phalanx.launch(train, workers=2, name="failed")
except RunFailedError as error:
    say([error.rank, error.type, error.exit_code, error.file, error.line, str(error.run_dir)])
"""
    )
    program = tmp_path / "program.py"
    lines = program.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# HERE" in text)
    run_dir = str(tmp_path / "runs" / "failed")
    assert printed == [1, "ValueError", 1, str(program), line, run_dir]


@pytest.mark.full
def test_a_script_and_a_restart(python, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, pathlib, sys\n"
        "import phalanx\n"
        "mark = pathlib.Path(f'mark-{phalanx.rank()}')\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        "    sys.exit(3)\n"
        "print('words', sys.argv[1:], os.environ['OWN'])\n"
    )
    printed, output = python(
        f"{BEGIN}"
        """
env = {"OWN": "a=b"}
say(phalanx.launch("train.py", args=["--epochs", 2], workers=1, max_restarts=1, env=env))
"""
    )
    assert printed is None
    assert "words ['--epochs', '2'] a=b" in output
