"""Three workers, one of them really slow: it is named, with the reason, and resolved again."""

import json
import os

import pytest

SLEEP = 0.2  # so long that what a loaded machine adds to every worker's step is little beside it
LEAST = 0.01  # a step's least, so that the steps after the slow ones fill some windows
SLOW_STEPS, STEPS = 30, 300
BATCH = 6


def rank():
    return json.loads(os.environ["PHALANX_WORKER_SPEC"])["rank"]


def train(slow_in, directory):
    """Train with worker 1 slow in its `slow_in` for its first steps."""
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx

    spec = json.loads(os.environ["PHALANX_WORKER_SPEC"])
    os.environ["PHALANX_WORKER_SPEC"] = json.dumps({**spec, "run_dir": str(directory)})
    slow_steps = SLOW_STEPS if rank() == 1 else 0

    def seconds(kind, step):
        return SLEEP if slow_in == kind and step < slow_steps else LEAST

    def rows():
        for step in range(STEPS):
            time.sleep(seconds("input", step))
            yield np.full((BATCH, 4), step, "float32"), np.ones((BATCH, 1), "float32")

    def sleep(x):
        time.sleep(seconds("compute", x[0, 0]))
        return x

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            slept = tf.py_function(sleep, [x], x.dtype)
            slept.set_shape(x.shape)
            return super().train_step((slept, y))

    model = Model()
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    spec = (tf.TensorSpec((BATCH, 4)), tf.TensorSpec((BATCH, 1)))
    data = tf.data.Dataset.from_generator(rows, output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(STEPS))
    callback = phalanx.callbacks.StragglerDetector(every_n_seconds=0.4)
    throughput = phalanx.callbacks.ThroughputMonitor(every_n_seconds=0.4)
    phalanx.fit(model, data, epochs=1, verbose=0, callbacks=[callback, throughput])
    return [w.numpy().tolist() for w in model.weights], throughput.numbers


def records(directory, kind, rank=0):
    from phalanx.monitoring.event_log import read_records, records_path

    found = read_records(records_path(directory, rank))
    assert found.damaged == []
    return [record for record in found.records if record["kind"] == kind]


@pytest.mark.full
@pytest.mark.parametrize("slow_in", ["input", "compute"])
def test_a_slow_worker_is_found_and_ended_again(slow_in, tmp_path, pool):
    results = pool(3).run(train, args=(slow_in, tmp_path), deadline=600)
    found = [record for record in records(tmp_path, "straggler") if record["rank"] == 1]
    assert [record["resolved"] for record in found[:2]] == [False, True]
    assert found[0]["cause"] == slow_in
    assert found[0]["factor"] > 1.5
    assert found[0]["since_step"] <= 20
    assert found[1]["step"] > SLOW_STEPS
    assert not records(tmp_path, "straggler", rank=1), "the chief writes them"
    weights = [weights for weights, _ in results]
    assert weights[0] == weights[1] == weights[2]
    waited = []
    for own, (_, numbers) in enumerate(results):
        slow = next(each for each in numbers if each.step > 10)
        waited.append(slow.time_fractions["communication"])
        assert [each.rank for each in slow.workers] == [0, 1, 2]
        assert len(records(tmp_path, "throughput", own)) == len(numbers)
    assert waited[1] < 0.4
    assert min(waited[0], waited[2]) > 2 * waited[1], "others wait for worker 1, it for no one"
