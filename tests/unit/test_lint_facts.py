"""What rules take for granted of TensorFlow and Keras, held against them."""

import json
import os
import socket

import pytest

from phalanx.diagnostics.lint.check import check_text
from phalanx.testing import run_single

STARTS = (
    "tf.Variable(1.0)",
    "tf.constant(1.0)",
    "tf.data.Dataset.range(3)",
    "tf.config.list_logical_devices()",
    "keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])",
    "keras.layers.Dropout(0.1)",
    "keras.optimizers.Adam()",
    "keras.metrics.Mean()",
    "keras.ops.ones(3)",
)
DOES_NOT = (
    "tf.random.set_seed(1)",
    "tf.config.list_physical_devices()",
    "tf.TensorSpec((1,))",
    "keras.Sequential([keras.layers.Dense(1)])",
    "keras.Input((2,))",
    "keras.optimizers.schedules.CosineDecay(0.1, 10)",
    "keras.losses.MeanSquaredError()",
    "keras.utils.set_random_seed(1)",
)


@pytest.mark.parametrize("call", [*STARTS, *DOES_NOT])
def test_which_calls_are_taken_to_start_the_runtime(call):
    made = "tf.distribute.MultiWorkerMirroredStrategy()"
    text = f"import tensorflow as tf\nimport keras\n{call}\n{made}\n"
    found = {finding.rule for finding in check_text(text, "a.py")}
    assert ("strategy-after-ops" in found) is (call in STARTS)


@pytest.mark.full
@pytest.mark.process
def test_which_calls_start_the_runtime():
    """Each call in a process of its own, forked from one that has imported TensorFlow."""

    def refused_after():
        import keras  # noqa: F401
        import tensorflow as tf  # noqa: F401

        return [call for call in (*STARTS, *DOES_NOT) if not in_a_fork(call)]

    assert run_single(refused_after, deadline=280) == list(STARTS)


def in_a_fork(call):
    """Whether a multi-worker strategy can be made after the call."""
    import keras
    import tensorflow as tf

    child = os.fork()
    if child == 0:
        try:
            eval(call, {"tf": tf, "keras": keras})
            with socket.socket() as free:
                free.bind(("localhost", 0))
                address = f"localhost:{free.getsockname()[1]}"
            task = {"type": "worker", "index": 0}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": task})
            tf.distribute.MultiWorkerMirroredStrategy()
            os._exit(0)
        except RuntimeError as error:
            os._exit(1 if "must be configured at program startup" in str(error) else 2)
        finally:
            os._exit(3)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1), f"{call} ended with {code}"
    return code == 0
