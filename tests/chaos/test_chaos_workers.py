"""Faults in workers that train together, by the callback."""

import pytest

from phalanx.testing import WorkerGroupFailedError, chaos, run_workers

pytestmark = pytest.mark.full


def train(plan, directory=None, epochs=2):
    import keras
    import numpy as np

    import phalanx
    from phalanx.testing import chaos

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((16, 2), "float32")
    seen = []
    after = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs=None: seen.append(b))
    callbacks = [chaos.Chaos(plan, directory), after]
    phalanx.fit(model, x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)
    return len(seen)


def test_a_callback_kills_the_worker_at_its_step():
    with pytest.raises(WorkerGroupFailedError) as caught:
        run_workers(train, args=[(chaos.Kill(worker=1, step=6),)], deadline=600)
    assert caught.value.rank == 1
    assert "SIGKILL" in caught.value.failures[1].message


def test_a_dropped_network_ends_both():
    with pytest.raises(WorkerGroupFailedError) as caught:
        run_workers(train, args=[(chaos.DropNetwork(worker=1, step=3),), None, 5000], deadline=600)
    assert "UnavailableError" in str(caught.value)


def test_what_happened_before_happens_no_more(tmp_path):
    plan = (chaos.Raise(worker=0, step=2, message="on purpose"),)
    with pytest.raises(WorkerGroupFailedError, match="on purpose"):
        run_workers(train, args=[plan, str(tmp_path / "marks")], deadline=600)
    assert run_workers(train, args=[plan, str(tmp_path / "marks")], deadline=600) == [8, 8]
