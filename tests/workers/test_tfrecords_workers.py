"""TFRecords read by real workers: the answer of one, and every sample once an epoch."""

import numpy as np
import pytest

from phalanx.testing import run_single, run_workers

SAMPLES = 150


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from phalanx.data.sources.tfrecords.write import write_tfrecords

    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    path = str(tmp_path_factory.mktemp("records") / "part")
    return write_tfrecords((x, x @ np.ones((4, 1), "float32")), path, shards=4)


def trained(files, index):
    """The losses and the weights of two epochs, and the features that this worker was given."""
    import keras

    import phalanx

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    source = phalanx.data.tfrecords(files, index=index)
    data = phalanx.data.pipeline(source, 16, seed=5, shuffle_buffer=40)
    history = phalanx.fit(model, data, epochs=2, verbose=0)
    given = [x.numpy() for x, _ in phalanx.data.pipeline(source, 16, seed=5)]
    return history.history["loss"], model.get_weights(), np.concatenate(given)


@pytest.fixture(scope="module")
def one_device(files):
    """What one device gives, reading by the index and not."""
    return run_single(lambda: [trained(files, True), trained(files, False)], deadline=600)


@pytest.mark.full
def test_workers_train_as_one_and_leave_nothing_out(files, one_device):
    alone, _, whole = one_device[0]
    found = run_workers(trained, 3, args=(files, True), deadline=600)
    for losses, weights, _ in found:
        assert losses == pytest.approx(alone, rel=1e-5)
        for ours, first in zip(weights, found[0][1], strict=True):
            assert (ours == first).all()
    assert same_rows([given for _, _, given in found], [whole])


@pytest.mark.full
def test_streams_of_each_workers_own_files_leave_nothing_out(files, one_device):
    _, _, whole = one_device[1]
    found = run_workers(trained, 2, args=(files, False), deadline=600)
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert same_rows([given for _, _, given in found], [whole])


def same_rows(ours, theirs):
    one, other = (sorted(map(tuple, np.concatenate(parts))) for parts in (ours, theirs))
    return one == other
