"""Two workers whose samples differ: the global metric is the mean, the spread names both."""

import logging

import pytest

ROWS = 8  # worker 0 takes the first four of each batch: its error is 1, the other's is 3


def train(execution):
    import keras
    import numpy as np

    import phalanx

    lines = []
    logger = logging.getLogger("test")
    logger.setLevel("INFO")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    y = np.repeat(np.array([[1.0], [3.0]], "float32"), ROWS // 2, axis=0)
    y = np.concatenate([y] * 4)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    together = {"steps_per_execution": execution}
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"], **together)
    callback = phalanx.callbacks.AggregatedLogger(every_n_steps=2, spread=True, logger=logger)
    x = np.ones_like(y)
    options = {"validation_data": (x, 0 * y), "shuffle": False, "verbose": 0}
    phalanx.fit(model, x, y, batch_size=ROWS, callbacks=[callback], **options)
    return lines


@pytest.mark.parametrize("execution", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_spread_of_two_workers(execution, pool):
    spread = "loss 5 (1 on worker 0 to 9 on worker 1), mae 2 (1 on worker 0 to 3 on worker 1)"
    chief, other = pool(2).run(train, args=(execution,), deadline=600)
    assert chief == [
        f"epoch 1, batch 2: {spread}",
        f"epoch 1, batch 4: {spread}",
        f"epoch 1: {spread}, val_loss 0, val_mae 0",
    ]
    assert other == []
