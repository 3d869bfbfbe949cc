"""All that watches a fit, at once: workers stay together, and train as if no one looked."""

import io
import json
import os

import numpy as np
import pytest

STEPS = 60


def train(directory, execution):
    import keras

    import phalanx

    spec = json.loads(os.environ["PHALANX_WORKER_SPEC"])
    os.environ["PHALANX_WORKER_SPEC"] = json.dumps(
        {**spec, "run_dir": directory and str(directory)}
    )
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    together = {"steps_per_execution": execution}
    model.compile(keras.optimizers.SGD(0.05, global_clipnorm=1.0), "mse", **together)
    x = np.random.default_rng(0).normal(size=(8 * STEPS - 3, 4)).astype("float32")
    callbacks = phalanx.callbacks
    shown = io.StringIO()
    looks = [
        callbacks.GradientLogger(every_n_steps=7, max_overhead=None, histograms=False),
        callbacks.ThroughputMonitor(every_n_seconds=0.005),  # a few steps, however fast they are
        callbacks.StragglerDetector(every_n_seconds=0.005),
        callbacks.AggregatedLogger(every_n_steps=5, spread=True),
        callbacks.DistributedProgress(stream=shown),
    ]
    display = {"callbacks": looks, "verbose": 1} if directory else {"verbose": 0}
    options = {"validation_split": 0.1, **display}
    phalanx.fit(model, x, x[:, :1], batch_size=8, epochs=2, **options)
    measured = [numbers.time_fractions["communication"] for numbers in looks[1].numbers]
    return [w.numpy().tolist() for w in model.weights], measured, shown.getvalue()


@pytest.mark.full
@pytest.mark.parametrize(("workers", "execution"), [(2, 1), (2, 4), (3, 1)])
def test_watching_everything_changes_nothing(tmp_path, workers, execution, pool):
    watched = pool(workers).run(train, args=(tmp_path, execution), deadline=600)
    alone = pool(workers).run(train, args=(None, execution), deadline=600)
    (expected, _, _), *_ = alone
    for weights, _, _ in watched:
        assert weights == watched[0][0]
        for got, as_alone in zip(weights, expected, strict=True):
            np.testing.assert_allclose(got, as_alone, rtol=1e-5, atol=1e-7)
    assert any(share for _, shares, _ in watched for share in shares)
    chief, *others = [shown for _, _, shown in watched]
    assert f"on {workers} workers" in chief
    assert chief.count("val_loss") == 2
    assert others == [""] * (workers - 1)
