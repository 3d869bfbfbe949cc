"""Scripts that people have run as they are."""

import subprocess
import sys

import pytest

from phalanx.launcher.ports import pick_free_ports

FULL = pytest.mark.full

DATA = """
import numpy as np
x = np.random.default_rng(0).random((48, 3)).astype("float32")
y = x.sum(axis=1, keepdims=True)
"""

TRAIN = """
def build():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model

def train(model):
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    say("loss", history.history["loss"])
    say("weights", [w.tolist() for w in model.get_weights()])
"""

NAMES_NO_STRATEGY = f"""
import keras
{DATA}{TRAIN}
train(build())
"""

USES_OURS = f"""
import keras, phalanx
{DATA}{TRAIN}
with phalanx.strategy().scope():
    model = build()
train(model)
"""

MAKES_ITS_OWN = f"""
import json, os
import keras
import tensorflow as tf
{DATA}{TRAIN}
workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
say("task", [strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id, workers])
say("replicas", strategy.num_replicas_in_sync)
say("own", len(strategy.experimental_local_results(strategy.run(lambda: tf.constant(1.0)))))
keras.backend.clear_session()
with tf.distribute.MirroredStrategy().scope():
    model = build()
train(model)
say("kept", tf.distribute.get_strategy() is strategy)
"""

MAKES_EVERY_OTHER = f"""
import keras
import tensorflow as tf
{DATA}{TRAIN}
before = tf.compat.v1.distribute
makers = dict(
    one_device=lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    central=tf.distribute.experimental.CentralStorageStrategy,
    mirrored_1=before.MirroredStrategy,
    one_device_1=lambda: before.OneDeviceStrategy(device="/cpu:0"),
    central_1=before.experimental.CentralStorageStrategy,
    multi_worker_1=before.experimental.MultiWorkerMirroredStrategy,
)
for name, make in makers.items():
    keras.utils.set_random_seed(5)
    strategy = make()
    with strategy.scope():
        model = build()
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    say(name, [history.history["loss"], strategy.num_replicas_in_sync])
"""

SETS_DEVICES = f"""
import keras
import tensorflow as tf
{DATA}{TRAIN}
cpus = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpus[0], two[:1])
tf.config.set_logical_device_configuration(cpus[0], two)
tf.config.experimental.set_virtual_device_configuration(cpus[0], two)
tf.config.set_visible_devices([], "GPU")
tf.config.set_visible_devices(cpus, "CPU")
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
tf.config.threading.set_intra_op_parallelism_threads(7)
with tf.device("CPU:1"):
    say("elsewhere", float(tf.constant(1.0) + 1))
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = build()
train(model)
"""

HIDES_ITS_DEVICE = """
import tensorflow as tf
try:
    tf.config.set_visible_devices([], "CPU")
except RuntimeError as error:  # as guides of TensorFlow's have it
    say("caught", type(error).__name__)
tf.config.set_visible_devices([], "CPU")
"""

LEGACY = f"""
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tf_keras as keras
import tensorflow as tf
{DATA}
keras.backend.clear_session()
model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
say("weights", [weight.tolist() for weight in model.get_weights()])
say("replicas", tf.distribute.get_strategy().num_replicas_in_sync)
say("fit", type(model).fit.__module__)
"""


@pytest.fixture(scope="module")
def one_device(command_in, tmp_path_factory):
    """What the plain script says with one worker."""
    command = command_in(tmp_path_factory.mktemp("one"))
    finished = command.run("--workers", "1", "--seed", "5", command.script(NAMES_NO_STRATEGY))
    assert finished.code == 0, finished.err
    return finished.output()


def close(value):
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [close(item) for item in value]
    return pytest.approx(value, rel=1e-5, abs=1e-7)


ONE_MIRRORED = f"""
import keras
import tensorflow as tf
{DATA}{TRAIN}
with tf.distribute.MirroredStrategy().scope():
    model = build()
train(model)
"""


@pytest.mark.parametrize(
    ("words", "source"),
    [
        pytest.param(("--strategy", "mirrored"), NAMES_NO_STRATEGY, marks=FULL),
        pytest.param(
            ("--strategy", "mirrored", "--devices-per-worker", "cpu:1"),
            NAMES_NO_STRATEGY,
            marks=FULL,
        ),
        pytest.param(("--strategy", "multiworker"), USES_OURS, marks=FULL),
        ((), ONE_MIRRORED),
    ],
)
def test_one_replica_of_a_strategy_gets_one_devices_answer(command, one_device, words, source):
    finished = command.run("--workers", "1", "--seed", "5", *words, command.script(source))
    assert finished.code == 0, finished.err
    assert finished.output()["loss"] == close(one_device["loss"])
    assert finished.output()["weights"] == [close(weights) for weights in one_device["weights"]]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(NAMES_NO_STRATEGY, marks=FULL),
        pytest.param(USES_OURS, marks=FULL),
        MAKES_ITS_OWN,
    ],
)
def test_three_kinds_of_script_get_one_devices_answer(command, one_device, source):
    finished = command.run("--workers", "2", "--seed", "5", "--tee", "all", command.script(source))
    assert finished.code == 0, finished.err
    for rank in range(2):
        output = finished.output(rank)
        assert output["loss"] == close(one_device["loss"])
        assert output["weights"] == [close(weights) for weights in one_device["weights"]]
        if source is MAKES_ITS_OWN:
            assert output["task"] == ["worker", rank, 2]
            assert (output["replicas"], output["own"], output["kept"]) == (2, 1, True)


def test_every_other_strategy_of_a_script_is_the_launchers(command, one_device):
    script = command.script(MAKES_EVERY_OTHER)
    finished = command.run("--workers", "2", "--seed", "5", "--tee", "all", script)
    assert finished.code == 0, finished.err
    first, second = finished.output(0), finished.output(1)
    assert len(first) == 6
    for name, (loss, replicas) in [*first.items(), *second.items()]:
        assert (name, replicas) == (name, 2)
        assert loss == close(one_device["loss"]), name


@pytest.mark.full
def test_devices_that_a_script_sets_too_late_are_the_launchers_business(command, one_device):
    script = command.script(SETS_DEVICES)
    finished = command.run("--workers", "2", "--seed", "5", "--tee", "all", script)
    assert finished.code == 0, finished.err
    for rank in range(2):
        assert finished.output(rank)["loss"] == close(one_device["loss"])
        assert finished.output(rank)["elsewhere"] == 2.0
    mark = "[worker 0] phalanx: phalanx run decides what"
    shown = [line for line in finished.out.splitlines() if line.startswith(mark)]
    assert len(shown) == 2, finished.out  # once each
    assert (
        "1 logical CPU device here, where set_logical_device_configuration asks for 2" in shown[0]
    )
    assert "its threads are those of --threads-per-worker, where the script asks for 7" in shown[1]


def test_a_script_with_one_worker_sets_its_devices(command):
    finished = command.run(
        *("--workers", "1"),
        command.script(
            "import tensorflow as tf\n"
            "(cpu,) = tf.config.list_physical_devices('CPU')\n"
            "two = [tf.config.LogicalDeviceConfiguration()] * 2\n"
            "tf.config.set_logical_device_configuration(cpu, two)\n"
            "say('replicas', tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])"
            ".num_replicas_in_sync)\n"
        ),
    )
    assert finished.code == 0, finished.err
    assert finished.output() == {"replicas": 2}


def test_a_script_that_hides_what_its_worker_runs_on_is_refused(command):
    script = command.script(HIDES_ITS_DEVICE)
    finished = command.run("--workers", "2", "--tee", "all", script)
    assert finished.code == 1
    # The first that fails ends the other, which may not have come so far.
    assert {"caught": "StartedError"} in (finished.output(0), finished.output(1))
    assert (
        "failed first: StartedError: Asked for no CPU by set_visible_devices; found that phalanx "
        "run had started TensorFlow on CPU:0, before the script began. Take the line out."
    ) in finished.err


@pytest.mark.full
def test_two_replicas_on_one_cpu(command, one_device):
    finished = command.run(
        *("--strategy", "mirrored", "--devices-per-worker", "cpu:2", "--seed", "5"),
        command.script(NAMES_NO_STRATEGY),
    )
    assert finished.code == 0, finished.err
    assert finished.output()["loss"] == close(one_device["loss"])


@pytest.mark.full
def test_legacy_keras_is_left_alone(command):
    finished = command.run("--workers", "2", "--tee", "all", command.script(LEGACY))
    assert finished.code == 0, finished.err
    first, second = finished.output(0), finished.output(1)
    assert first == second
    assert first["replicas"] == 2
    assert first["fit"].startswith("tf_keras.")


@pytest.mark.full
def test_a_module_and_one_multiworker(command):
    package = command.directory / "shop"
    package.mkdir()
    command.script(
        "import sys\nfrom shop.prices import price\n"
        "from tensorflow import distribute\n"
        "say('argv', sys.argv[1:])\nsay('price', price)\n"
        "say('kind', type(distribute.get_strategy()).__name__)\nsys.exit(0)\n",
        "shop/train.py",
    )
    (package / "prices.py").write_text("price = 3\n")
    finished = command.run("--strategy", "multiworker", "-m", "shop.train", "--workers", "9")
    assert finished.code == 0, finished.err
    assert finished.output() == {
        "argv": ["--workers", "9"],
        "price": 3,
        "kind": "MultiWorkerStrategy",
    }


BY_HAND = """
import json, os, sys
addresses, index = sys.argv[1].split(","), int(sys.argv[2])
task = {"type": "worker", "index": index}
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras, numpy as np
import phalanx
from phalanx.errors import ConfigurationError
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    phalanx.fit(model, np.ones((8, 3)), np.ones((8, 1)), verbose=0)
except ConfigurationError as error:
    print("REFUSED", 'phalanx.strategy("multiworker")' in str(error), flush=True)
os._exit(0)
"""


@pytest.mark.full
def test_tensorflows_own_strategy_on_several_workers_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BY_HAND)
    addresses = ",".join(f"127.0.0.1:{port}" for port in pick_free_ports(2))
    words = [sys.executable, str(script), addresses]
    workers = [
        subprocess.Popen([*words, str(index)], stdout=subprocess.PIPE, text=True)
        for index in range(2)
    ]
    output = [worker.communicate(timeout=300)[0] for worker in workers]
    assert all("REFUSED True" in text for text in output)
