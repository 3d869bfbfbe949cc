"""Callbacks of one's own under several workers, and what Keras's do where workers differ."""

import os
import re

import numpy as np
import pytest
from callback_cases import data, files_in, small_model, train

from phalanx.cluster.spec import WorkerSpec
from phalanx.testing import WorkerGroupFailedError, run_workers


def rank():
    return WorkerSpec.from_environment(os.environ).rank


def see(workers_logs):
    """A callback of Keras's kind that knows nothing of workers."""
    import keras

    class Sees(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            workers_logs.append((batch, dict(logs)))

        def on_epoch_end(self, epoch, logs=None):
            workers_logs.append((epoch, dict(logs)))

    return Sees()


def own_callbacks():
    """An ordinary callback; one that all-reduces and agrees; one on the chief alone."""
    import phalanx

    seen, output, on_chief = [], [], []

    class Joins(phalanx.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            place = self.cluster.rank, self.cluster.workers, self.cluster.replicas
            here = {"mine": rank() + 1, "pair": np.array([rank(), 1.0])}
            output.append((place[1:], self.all_reduce(here)))
            output.append(self.all_reduce({"mine": rank()}, how="max"))
            output.append(self.any_worker(rank() == 1))
            output.append(self.all_workers(rank() == 1))

    class OnChief(phalanx.callbacks.Callback):
        runs_on = "chief"

        def on_epoch_end(self, epoch, logs=None):
            on_chief.append((epoch, self.cluster.rank, self.cluster.is_chief))

    joins = Joins()
    trained = train(phalanx.fit, [see(seen), joins, OnChief()], epochs=2)
    return trained, seen, output, on_chief, joins.cluster.workers


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_callbacks_of_ones_own(workers, pool):
    results = pool(workers).run(own_callbacks, deadline=600)
    for result in results:
        np.testing.assert_equal(result[:3], results[0][:3])
    _, seen, output, on_chief, workers_afterwards = results[0]
    assert len(seen) == 2 * (5 + 1)
    place, reduced = output[0]
    assert place == (workers, workers)
    assert reduced["mine"] == sum(range(workers + 1))
    assert reduced["pair"].tolist() == [sum(range(workers)), workers]
    assert output[1:4] == [{"mine": workers - 1}, True, False]
    assert on_chief == [(0, 0, True), (1, 0, True)]
    assert [result[3] for result in results[1:]] == [[]] * (workers - 1)
    assert workers_afterwards == 1, "what a call lent is taken back"


def local_decisions(root):
    """Callbacks that decide by what only this worker knows."""
    import keras

    import phalanx

    class StopsAtABatch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if rank() == 1 and batch == 2:
                self.model.stop_training = True

    class StopsBehindOurBack(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if rank() == 1 and batch == 2:
                stop(self.model)

    class StopsEvaluating(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = rank() == 1

        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = rank() == 1

    def steps_of(callbacks, **options):
        model = small_model()
        trained = train(phalanx.fit, callbacks, model, **options)
        return trained["epochs"], int(model.optimizer.iterations.numpy())

    found = {
        "at a batch": steps_of([StopsAtABatch()]),
        "behind our back": steps_of([StopsBehindOurBack()]),
        "on one worker": steps_of([StopsAtABatch()] if rank() == 1 else []),
    }
    model = small_model()
    x, y = data(40)
    options = {"batch_size": 8, "verbose": 0, "callbacks": [StopsEvaluating()]}
    found["evaluate"] = phalanx.evaluate(model, x, y, **options)
    found["first eight"] = phalanx.evaluate(model, x[:8], y[:8], batch_size=8, verbose=0)
    found["predict"] = len(phalanx.predict(model, x, **options))

    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + rank() + epoch))
    found["rate"] = train(phalanx.fit, [scheduler])
    model = small_model()
    late = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model.optimizer, "learning_rate", 0.1 * rank())
    )
    train(phalanx.fit, [late], model, epochs=2)
    found["late rate"] = float(model.optimizer.learning_rate.numpy())

    path = os.path.join(root, "given.weights.h5")
    model = small_model()
    listed = keras.callbacks.CallbackList(
        [keras.callbacks.ModelCheckpoint(path, save_weights_only=True)],
        add_history=True,
        model=model,
    )
    given = list(listed.callbacks)
    train(phalanx.fit, listed, model)
    assert listed.callbacks == given
    return found


def stop(model):
    model.stop_training = True


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_decisions_are_common(workers, tmp_path, pool):
    results = pool(workers).run(local_decisions, args=(str(tmp_path),), deadline=600)
    for result in results:
        np.testing.assert_equal(result, results[0])
    found = results[0]
    assert found["at a batch"] == ([0], 3)
    assert found["behind our back"] == ([0], 5), "not within the epoch, but no one hangs"
    assert found["on one worker"] == ([0], 3)
    assert found["evaluate"] == found["first eight"]
    assert found["predict"] == 8
    assert found["rate"]["history"]["learning_rate"] == pytest.approx([0.1, 0.05, 0.1 / 3])
    assert found["late rate"] == 0.0
    assert sorted(files_in(tmp_path)) == ["given.weights.h5"]


def files_of_the_chief_alone(root):
    """Workers without a common file system: the chief's files are nowhere else."""
    import keras

    import phalanx

    own = os.path.join(root, f"disk-{rank()}")

    class Breaks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def backup():
        return keras.callbacks.BackupAndRestore(own, delete_checkpoint=False)

    try:
        train(phalanx.fit, [backup(), Breaks()], epochs=4)
    except InterruptedError:
        left = files_in(own)
    callback = backup()
    trained = train(phalanx.fit, [callback] if rank() == 0 else [], epochs=4)
    return sorted(left), trained, os.path.basename(callback.backup_dir)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_all_continue_from_the_files_of_the_chief(workers, tmp_path, pool):
    results = pool(workers).run(files_of_the_chief_alone, args=(str(tmp_path),), deadline=600)
    lefts, trained, directories = zip(*results, strict=True)
    assert lefts[0] == ["latest.weights.h5", "training_metadata.json"]
    assert set(map(tuple, lefts[1:])) == {()}
    assert directories == tuple(f"disk-{each}" for each in range(workers)), "given back afterwards"
    for other in trained:
        np.testing.assert_equal(other, trained[0])
    assert trained[0]["epochs"] == [2, 3]


def variables_that_all_must_read(root):
    """A layer that counts on each replica; only all together know the sum."""
    import keras

    import phalanx

    class Counts(keras.layers.Layer):
        def build(self, shape):
            self.count = keras.Variable(
                0.0, trainable=False, synchronization="on_read", aggregation="sum", name="count"
            )

        def call(self, x):
            self.count.assign(self.count + 1.0)
            return x

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), Counts(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    path = os.path.join(root, "{epoch}.weights.h5")
    callbacks = [
        keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        keras.callbacks.TensorBoard(os.path.join(root, "board"), histogram_freq=1),
        keras.callbacks.EarlyStopping("loss", patience=0, restore_best_weights=True),
    ]
    return train(phalanx.fit, callbacks, model)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_saving_what_all_must_read_hangs_no_one(workers, tmp_path, pool):
    results = pool(workers).run(variables_that_all_must_read, args=(str(tmp_path),), deadline=600)
    for result in results:
        np.testing.assert_equal(result, results[0])
    saved = {name for name in files_in(tmp_path) if "board" not in name}
    assert saved == {f"{epoch}.weights.h5" for epoch in (1, 2, 3)}


def test_a_callback_that_raises_on_one_worker_is_named():
    def function():
        import keras

        import phalanx

        class Raises(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if rank() == 1 and batch == 1:
                    raise LookupError("no such thing on worker one")

        train(phalanx.fit, [Raises()])

    with pytest.raises(WorkerGroupFailedError) as caught:
        run_workers(function, deadline=600)
    assert (caught.value.rank, caught.value.first.type_name) == (1, "LookupError")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("self.all_reduce({'a' if self.cluster.rank else 'b': 1})", r"worker\(s\) \[\d\] gave"),
        ("self.all_reduce({}, how='product')", "knows sum, mean, min, max; found how='product'"),
    ],
)
def test_what_cannot_be_reduced_is_said(body, message, pool):
    def function(body):
        import phalanx
        from phalanx.errors import PhalanxError

        class Own(phalanx.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                exec(body, {"self": self})

        with pytest.raises(PhalanxError) as caught:
            train(phalanx.fit, [Own()])
        return str(caught.value)

    for output in pool(2).run(function, args=(body,), deadline=600):
        assert re.search(message, output)
