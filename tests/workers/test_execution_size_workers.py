"""Several steps in one call on two workers: the same bits, and one number for all."""

import numpy as np
from callback_cases import data, small_model

from phalanx.testing import run_workers

STEPS, BATCH = 40, 8


def train(watched_on=()):
    """The sizes of the executions of `fit`, its history, and all variables."""
    import os

    import keras

    import phalanx
    from phalanx.cluster.spec import WorkerSpec
    from phalanx.training import execution_size
    from phalanx.training.step_function import StepFunction

    execution_size.FIRST_READING, execution_size.SECOND_READING = 1, 3
    execution_size._SECONDS_SAVED, execution_size.LEAST_STEPS = 1e9, 0
    # The workers measure different times; the chief's number is for all.
    rank = WorkerSpec.from_environment(os.environ).rank
    execution_size.SECONDS = 10.0 if rank == 0 else 1e-9
    sizes, plain = [], StepFunction.on_iterator

    def on_iterator(self, iterator, steps):
        sizes.append(steps)
        return plain(self, iterator, steps)

    class EveryBatch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    StepFunction.on_iterator = on_iterator
    callbacks = [EveryBatch()] if rank in watched_on else []
    model = small_model()
    x, y = data(STEPS * BATCH - 3)
    options = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "callbacks": callbacks}
    history = phalanx.fit(model, x, y, **options).history
    variables = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    return sizes, history, variables


def test_the_chiefs_number_holds_for_all_and_the_bits_are_the_same():
    together = run_workers(train, workers=2, deadline=600)
    one_by_one = run_workers(train, workers=2, args=[(1,)], deadline=600)
    for sizes, *_ in together:
        assert sizes == [1, 1, 1, 1, STEPS - 4, STEPS]
    for sizes, *_ in one_by_one:
        assert set(sizes) == {1}, "a callback of one worker that needs each batch is enough"
    for (_, history, found), (_, expected_history, expected) in zip(
        together, one_by_one, strict=True
    ):
        assert history == expected_history
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
