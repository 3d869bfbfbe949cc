"""What Keras's callbacks remember comes back into fresh ones, which then do the same."""

import json

import keras
import numpy as np
import pytest

from phalanx.checkpoint.callback_state import CallbackStates

LOSSES = [0.9, 0.8, 0.75, 0.7, 0.2, 0.19]


class Model:
    """What a callback asks of a model."""

    def __init__(self):
        self.optimizer = keras.optimizers.SGD(0.1)
        self.stop_training = False


def plateau():
    return keras.callbacks.ReduceLROnPlateau(
        "loss", mode="min", factor=0.5, patience=1, min_delta=0.15
    )


def early():
    return keras.callbacks.EarlyStopping("loss", mode="min", patience=4, min_delta=0.3)


def begin(make):
    callback = make()
    callback.set_model(Model())
    callback.on_train_begin()
    return callback, CallbackStates([callback])


def train(callback, epochs):
    """What the callback has decided by the end of each epoch."""
    reported = []
    for epoch in epochs:
        callback.on_epoch_end(epoch, {"loss": LOSSES[epoch]})
        rate = float(callback.model.optimizer.learning_rate)
        reported.append((rate, callback.wait, callback.best, callback.model.stop_training))
    return reported


@pytest.mark.parametrize("make", [plateau, early])
@pytest.mark.parametrize("after", range(1, len(LOSSES)))
def test_a_fresh_callback_continues_as_the_old_one(make, after):
    whole = train(begin(make)[0], range(len(LOSSES)))
    first, states = begin(make)
    reported = train(first, range(after))
    document, arrays = states.read()
    second, states = begin(make)
    states.write(document, arrays)
    second.model.optimizer.learning_rate = reported[-1][0]  # the optimizer's, not the callback's
    assert reported + train(second, range(after, len(LOSSES))) == whole


class Holder(keras.callbacks.Callback):
    best_weights = None
    rate = None


def test_weights_in_bfloat16_are_remembered():
    first, second = Holder(), Holder()
    states = CallbackStates([first])
    first.best_weights = [np.arange(3).astype("bfloat16"), np.float32(2)]
    first.rate = np.ones((), "bfloat16")[()]
    document, arrays = states.read()
    CallbackStates([second]).write(json.loads(json.dumps(document)), arrays)
    for one, other in zip(first.best_weights, second.best_weights, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert (second.rate, second.rate.dtype) == (1, np.dtype("bfloat16"))
    assert states.read()[1].keys() == arrays.keys()
    unchanged = CallbackStates([first]).read()
    assert unchanged == ({"Holder/0": {}}, {})


def test_what_a_process_has_started_is_not_remembered(tmp_path):
    callback = keras.callbacks.TensorBoard(str(tmp_path))
    states = CallbackStates([callback])
    callback._is_tracing = callback._profiler_started = True
    callback._global_train_batch = 7
    assert states.read()[0] == {"TensorBoard/0": {"_global_train_batch": 7}}
