"""What a TPU would not take of a script, found on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.testing import run_single

pytestmark = pytest.mark.full


def found_in_every_case():
    import keras
    import numpy as np
    import tensorflow as tf

    from phalanx.diagnostics.doctor.tpu_report import findings

    class Calling(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32), x.shape)

        def compute_output_shape(self, shape):
            return shape

    class OfAnySize(keras.layers.Layer):
        def call(self, x):
            return x * tf.cast(tf.size(tf.unique(tf.reshape(x, [-1]))[0]), x.dtype)

    class NotInXla(keras.layers.Layer):
        def call(self, x):
            return x + tf.abs(tf.linalg.eigvals(tf.matmul(x, x, transpose_b=True)))[:, None]

    class Looking(keras.Model):
        def train_step(self, data):
            if float(data[0][0, 0]) > 0:
                return {}
            return super().train_step(data)

    def model(*layers, cls=keras.Sequential):
        made = cls([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made

    def looking():
        inputs = keras.Input((4,))
        made = Looking(inputs, keras.layers.Dense(1)(inputs))
        made.compile("sgd", "mse")
        return made

    x = np.ones((32, 4), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    cases = {
        "fine": (model(keras.layers.Dense(3), keras.layers.Dropout(0.2)), x, x[:, :1], 16),
        "partial": (model(), x[:30], x[:30, :1], 16),
        "remainder": (model(), data.batch(16)),
        "no remainder": (model(), data.batch(16, drop_remainder=True)),
        "python": (model(Calling()), x, x[:, :1], 16),
        "unique": (model(OfAnySize()), x, x[:, :1], 16),
        "xla": (model(NotInXla()), x, x[:, :1], 16),
        "values": (looking(), x, x[:, :1], 16),
        "float64": (model(), x.astype("float64"), x[:, :1], 16),
        "float64 dataset": (model(), data.map(lambda a, b: (tf.cast(a, tf.float64), b)).batch(16)),
    }
    return {name: [str(one) for one in findings(*case)] for name, case in cases.items()}


@pytest.fixture(scope="module")
def found():
    return run_single(found_in_every_case, deadline=600)


@pytest.mark.parametrize("case", ["fine", "no remainder"])
def test_nothing_wrong(found, case):
    assert found[case] == []


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("partial", "The last batch has 14 samples, the others have 16."),
        ("remainder", "may differ in size"),
        ("python", "a call back into Python, which a TPU has not"),
        ("unique", "a result whose size depends on the values"),
        ("xla", "XLA does not compile the step"),
        ("values", "The step cannot be traced"),
        ("float64 dataset", "x is float64"),
    ],
)
def test_what_is_wrong(found, case, says):
    assert any(says in text for text in found[case]), found[case]


@pytest.mark.parametrize("case", ["python", "unique", "xla", "values"])
def test_the_line_of_the_users_code(found, case):
    lines = Path(__file__).read_text().splitlines()
    marks = {"python": "numpy_function", "unique": "unique(", "xla": "eigvals", "values": "data[0]"}
    mark = marks[case]
    number = next(i for i, line in enumerate(lines, 1) if mark in line)
    assert found[case][0].startswith(f"test_tpu_report.py:{number}: ")


SCRIPT = """
import sys
import keras, numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.ones((32, 4), "float32")
print("argument", sys.argv[1])
if sys.argv[1] != "none":
    model.fit(x, x[:, :1], batch_size=int(sys.argv[1]), epochs=1000)
    print("trained")
"""


def doctor(tmp_path, argument):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["doctor", "--target", "tpu", "train.py", argument]
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("argument", "code", "says"),
    [
        ("16", 0, "Found nothing in train.py that a TPU would not take"),
        ("20", 1, "The last batch has 12 samples, the others have 20."),
        ("none", 2, "train.py calls no fit"),
    ],
)
def test_the_command(tmp_path, argument, code, says):
    done = doctor(tmp_path, argument)
    assert done.returncode == code, done.stderr
    assert says in done.stdout
    assert f"argument {argument}" in done.stdout
    assert "trained" not in done.stdout


def test_another_kind_of_machine(tmp_path):
    from typer.testing import CliRunner

    from phalanx.cli.app import app

    result = CliRunner().invoke(app, ["doctor", "--target", "abacus", "train.py"])
    assert "--target must be one of tpu; found 'abacus'" in str(result.exception)
