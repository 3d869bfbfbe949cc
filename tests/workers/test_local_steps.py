"""Local steps on two and three workers: what NumPy computes, on resume too."""

import local_training
import numpy as np
import pytest

EPOCHS = 2
DILOCO = {"outer_optimizer": "nesterov", "dtype": "float32"}
MEAN = {"outer_optimizer": "none"}

CASES = {
    # 65 rows in batches of 16: the last batch has one row, so all workers but the first have none.
    "DiLoCo": (DILOCO, {"every": 3}, 65, 16),
    "DiLoCo, other rates": (
        {**DILOCO, "outer_learning_rate": 0.5, "outer_momentum": 0.6}, {"every": 4}, 96, 12,
    ),
    "DiLoCo after steps in step": (DILOCO, {"every": 2, "warmup": 3}, 80, 16),
    "local SGD": (MEAN, {"every": 3}, 65, 16),
    "post-local SGD": (MEAN, {"every": 2, "warmup": 6}, 80, 16),
}  # fmt: skip


def expected(before, workers, options, rows, batch):
    is_mean = options["outer_optimizer"] == "none"
    return local_training.simulate(
        before,
        workers,
        rows,
        batch,
        EPOCHS,
        every=options["every"],
        warmup=options.get("warmup", 0),
        rate=None if is_mean else options.get("outer_learning_rate", 0.7),
        momentum=options.get("outer_momentum", 0.9),
    )


@pytest.mark.parametrize(
    ("workers", "name"),
    [
        pytest.param(n, name, marks=() if (n, name) == (2, "DiLoCo") else pytest.mark.full)
        for n in (2, 3)
        for name in CASES
    ],
)
def test_ends_as_numpy_computes(workers, name, pool):
    outer, when, rows, batch = CASES[name]
    options = {**outer, **when}
    args = [options, rows, batch, EPOCHS]
    of_each = pool(workers).run(local_training.train, args=args, deadline=300)
    weights, slots = expected(of_each[0]["before"], workers, options, rows, batch)
    for found in of_each:
        for one, other in zip(found["after"], weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        # Where a fit ends, all have the mean of the workers' slots.
        kernel = found["optimizer"][2]
        np.testing.assert_allclose(kernel, slots[:-1], rtol=1e-4, atol=1e-6)
        assert found["steps"] == EPOCHS * -(-rows // batch)
        assert found["history"] == of_each[0]["history"]
        np.testing.assert_array_equal(found["after"][0], of_each[0]["after"][0])


STREAMS = [
    # (workers, H, delay, mixing, rows): the last step of an epoch sends a fragment, or does not;
    # one is under way then, or none.
    (2, 4, 2, 0.5, 145),
    (2, 4, 0, 0.5, 128),
    (2, 4, 3, 0.0, 128),
    (3, 3, 1, 0.25, 129),
]


@pytest.mark.parametrize(
    ("workers", "every", "delay", "mixing", "rows"),
    [STREAMS[0], *(pytest.param(*one, marks=pytest.mark.full) for one in STREAMS[1:])],
)
def test_fragments_that_arrive_later_end_as_numpy_computes(
    workers, every, delay, mixing, rows, pool
):
    options = {**DILOCO, "every": every, "fragments": 2, "delay": delay, "mixing": mixing}
    args = [options, rows, 16, EPOCHS]
    of_each = pool(workers).run(local_training.train, args=args, deadline=300)
    weights = local_training.simulate_streaming(
        of_each[0]["before"], workers, rows, 16, EPOCHS, every=every, delay=delay, mixing=mixing
    )
    for found in of_each:
        for one, other in zip(found["after"], weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert found["history"] == of_each[0]["history"]


def recurrent(optimizer):
    """A model whose states go from batch to batch."""
    import keras

    keras.utils.set_random_seed(4)
    layers = [keras.layers.Reshape((5, 1)), keras.layers.GRU(3, stateful=True)]
    made = keras.Sequential([*layers, keras.layers.Dense(1)])
    made.compile(optimizer, "mse")
    return made


def sized(optimizer):
    """A model that needs the number of rows in Python, so that a step has it as a constant."""
    import keras
    import tensorflow as tf

    class SizeInLayer(keras.layers.Layer):
        def call(self, x):
            return x + tf.zeros((int(x.shape[0]), 1))

    keras.utils.set_random_seed(4)
    made = keras.Sequential([SizeInLayer(), keras.layers.Dense(1)])
    made.compile(optimizer, "mse")
    return made


def in_step_and_every_step(model, rows, batch):
    """SGD without momentum: a mean of the weights is the step of the mean gradient."""
    import keras

    import phalanx

    results = []
    for options in ({}, {"every": 1, **MEAN}):
        local_training.use(**options)
        phalanx.enable()
        made = model(keras.optimizers.SGD(0.05))
        x, y = local_training.data(rows)
        history = made.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0).history
        results.append((made.get_weights(), history["loss"]))
    return results


@pytest.mark.parametrize(
    ("model", "rows"),
    [(local_training.model, 65), (sized, 64), pytest.param(recurrent, 64, marks=pytest.mark.full)],
)
def test_a_mean_after_each_step_of_sgd_is_training_in_step(model, rows, pool):
    arguments = [model, rows, 16]
    for in_step, local in pool(2).run(in_step_and_every_step, args=arguments, deadline=300):
        for one, other in zip(in_step[0], local[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(in_step[1], local[1], rtol=1e-5)


def broken_off_and_whole(directory, every):
    import os

    import keras
    import resume_cases

    import phalanx

    local_training.use(every=every, outer_optimizer="nesterov")

    def case(train):
        x, y = resume_cases.data()
        made = resume_cases.classifier(keras.optimizers.Adam(1e-2))
        train(made, x, y, batch_size=8)

    phalanx.enable()
    resume_cases.CASES["local_steps"] = case
    whole = resume_cases.run("local_steps", os.path.join(directory, "whole"), every=4)
    broken = os.path.join(directory, "broken")
    assert resume_cases.run("local_steps", broken, every=4, break_at=9) is None
    saved = sorted(name for name in os.listdir(broken) if name.startswith("step"))
    return whole, resume_cases.run("local_steps", broken, every=4), saved


@pytest.mark.full
def test_resumes_bit_by_bit(tmp_path, pool):
    """A checkpoint is due after step 4 and taken at the sync after step 5."""
    of_each = pool(2).run(broken_off_and_whole, args=[str(tmp_path), 5], deadline=300)
    for whole, again, saved in of_each:
        assert [int("".join(filter(str.isdigit, name))) for name in saved] == [5]
        for what in ("weights", "optimizer"):
            for one, other in zip(whole[what], again[what], strict=True):
                np.testing.assert_array_equal(one, other, err_msg=what)
        assert again["history"] == whole["history"]


def epochs_with_checkpoints(directory, options, rows, batch, break_at):
    import keras
    import resume_cases

    import phalanx
    from phalanx.callbacks import Checkpoint, every_n_epochs

    local_training.use(**options)
    phalanx.enable()
    made = local_training.model()
    before = made.get_weights()
    callbacks = [Checkpoint(directory, every=every_n_epochs(1), async_save=False)]
    if break_at is not None:
        callbacks.append(resume_cases.breaks_off(break_at))
    x, y = local_training.data(rows)
    try:
        made.fit(x, y, batch, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    except resume_cases.BrokenOffError:
        return before
    assert isinstance(made.optimizer, keras.optimizers.SGD)
    return made.get_weights()


@pytest.mark.full
@pytest.mark.parametrize("after", [1, 3])
def test_continues_with_another_number_of_workers(tmp_path, after, pool):
    """The weights and the outer momentum are those of the checkpoint, the slots their mean."""
    options, rows, batch = {**DILOCO, "every": 2}, 80, 16
    args = [str(tmp_path), options, rows, batch]
    before = pool(2).run(epochs_with_checkpoints, args=[*args, 6], deadline=300)[0]
    of_each = pool(after).run(epochs_with_checkpoints, args=[*args, None], deadline=300)
    weights, _ = local_training.simulate(before, [2, after], rows, batch, 2, every=2, rate=0.7)
    for found in of_each:
        for one, other in zip(found, weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def with_callbacks(directory):
    import os

    import keras

    import phalanx

    seen = []

    class Watch(keras.callbacks.Callback):
        """Stops on the last worker alone; looks at weights where batches and epochs end."""

        def on_train_batch_end(self, batch, logs=None):
            steps = int(self.model.optimizer.iterations.numpy())
            seen.append((steps, float(logs["loss"]), self.model.get_weights()[0].sum()))
            if steps == 13 and self.model.name == "stops":
                self.model.stop_training = True

        def on_epoch_end(self, epoch, logs=None):
            seen.append((f"epoch {epoch}", logs["val_loss"], self.model.get_weights()[0].sum()))

    local_training.use(every=3, **DILOCO)
    phalanx.enable()
    made = local_training.model(keras.optimizers.Adam(0.05))
    made.name = "stops" if phalanx.rank() == 1 else "goes-on"
    x, y = local_training.data(80)
    callbacks = [
        Watch(),
        keras.callbacks.ReduceLROnPlateau("val_loss", min_delta=100.0, patience=0, factor=0.5),
        keras.callbacks.ModelCheckpoint(os.path.join(directory, "{epoch}.keras")),
    ]
    made.fit(x, y, 10, epochs=3, validation_data=(x, y), verbose=0, callbacks=callbacks)
    saved = {
        name: keras.models.load_model(os.path.join(directory, name)).get_weights()[0].sum()
        for name in sorted(os.listdir(directory))
    }
    return seen, saved, float(made.optimizer.learning_rate.numpy())


def test_callbacks_act_on_what_all_workers_have(tmp_path, pool):
    one, other = pool(2).run(with_callbacks, args=[str(tmp_path)], deadline=300)
    steps = [step for step, *_ in one[0]]
    # Worker 1 stops at step 13, which is between two syncs: all stop at the next one.
    assert steps == [*range(1, 9), "epoch 0", *range(9, 15), "epoch 1"]
    seen, others = ({step: found for step, *found in worker[0]} for worker in (one, other))
    for step in (3, 6, 8, "epoch 0", 11, 14, "epoch 1"):
        assert seen[step] == others[step], step
    assert seen[4][1] != others[4][1], "each trains on its own between two syncs"
    assert seen[4][0] == seen[3][0], "the last reading"
    assert one[2] == other[2] == pytest.approx(0.025)
    assert one[1] == {"1.keras": seen["epoch 0"][1], "2.keras": seen["epoch 1"][1]}


def with_a_bad_row(policy):
    import keras
    import numpy as np

    import phalanx
    from phalanx.errors import NonFiniteError

    local_training.use(every=4, outer_optimizer="nesterov")
    phalanx.enable()
    optimizer = keras.optimizers.SGD(0.05)
    if policy is not None:
        phalanx.clip.attach(optimizer, on_nonfinite=policy)
    made = local_training.model(optimizer)
    x, y = local_training.data(80)
    x[15] = np.nan  # the last row of step 2, which is worker 1's
    try:
        made.fit(x, y, 8, epochs=1, shuffle=False, verbose=0)
    except NonFiniteError as error:
        return str(error), int(optimizer.iterations.numpy())
    return made.get_weights()[0], int(optimizer.iterations.numpy())


def test_a_bad_gradient_of_one_worker_ends_all_at_the_next_sync(pool):
    for message, steps in pool(2).run(with_a_bad_row, args=[None], deadline=300):
        assert "at step 2; it came from worker 1" in message
        assert steps <= 4


@pytest.mark.full
@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_a_bad_gradient_is_left_out_by_its_worker(policy, pool):
    (one, steps), (other, _) = pool(2).run(with_a_bad_row, args=[policy], deadline=300)
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(one, other)
    assert steps >= 9
