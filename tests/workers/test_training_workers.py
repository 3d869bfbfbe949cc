"""Training by several processes: equal on all, in order, one collective a step."""

import os

import numpy as np
import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.testing import run_single, run_workers


def rank():
    return WorkerSpec.from_environment(os.environ).rank


def features(n, seed=0, width=4):
    return np.random.default_rng(seed).normal(size=(n, width)).astype("float32")


def targets(n, seed=0):
    return np.random.default_rng(seed + 100).normal(size=(n, 1)).astype("float32")


def small_model(**compile_options):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    options = {"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", "metrics": ["mae"]}
    model.compile(**{**options, **compile_options})
    return model


def bits(model):
    return [v.numpy().tobytes() for v in [*model.variables, *model.optimizer.variables]]


def refusal(function, *args, **kwargs):
    """What a call raises, as text."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def assert_all_equal(results):
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_all_workers_hold_the_same_to_the_last_bit(workers, pool):
    def function():
        import phalanx

        model = small_model()
        held_out = (features(10, seed=1), targets(10, seed=1))
        history = phalanx.fit(
            model, features(29), targets(29), batch_size=8, epochs=3, verbose=0,
            validation_data=held_out,
        ).history  # fmt: skip
        evaluations = [
            phalanx.evaluate(model, features(n), targets(n), batch_size=4, verbose=0)
            for n in (1, 6, 7)
        ]
        return history, evaluations, bits(model)

    results = pool(workers).run(function, deadline=600)
    history, evaluations, _ = results[0]
    assert sorted(history) == ["loss", "mae", "val_loss", "val_mae"]
    assert all(len(column) == 3 for column in history.values())
    assert np.isfinite(evaluations).all()
    assert_all_equal(results)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_every_row_is_predicted_once_in_order_on_every_worker(workers, pool):
    def function():
        import keras

        import phalanx

        inputs = keras.Input((1,))
        outputs = {"same": keras.layers.Identity()(inputs), "pair": [inputs + 1, inputs * 2]}
        model = keras.Model(inputs, outputs)
        results = []
        for n in range(1, 8):
            x = np.arange(n, dtype="float32")[:, None]
            results.append(phalanx.predict(model, x, batch_size=3, verbose=0))
        on_batch = phalanx.predict(model, np.ones((1, 1)), verbose=0)["same"]
        return results, on_batch.tolist()

    for results, on_batch in pool(workers).run(function, deadline=600):
        assert on_batch == [[1.0]]
        for n, predicted in enumerate(results, start=1):
            rows = np.arange(n)
            assert predicted["same"][:, 0].tolist() == rows.tolist()
            assert predicted["pair"][0][:, 0].tolist() == (rows + 1).tolist()
            assert predicted["pair"][1][:, 0].tolist() == (rows * 2).tolist()


def test_outputs_of_other_shapes_come_together_on_every_worker(pool):
    def function():
        import keras
        import tensorflow as tf

        import phalanx

        class Shapes(keras.Model):
            def call(self, x):
                twice = keras.ops.repeat(x, 2, axis=0)
                return {"twice": twice, "same": x, "sum": keras.ops.sum(x)}

        model = Shapes()
        model.compile("sgd", "mse")
        lengths = tf.data.Dataset.range(1, 8).map(lambda n: tf.fill((n, 1), tf.cast(n, "float32")))
        predicted = phalanx.predict(model, lengths.padded_batch(3), verbose=0)
        ragged = [predicted[name].to_list() for name in ("twice", "same")]
        return *ragged, predicted["sum"].tolist()

    results = pool(2).run(function, deadline=600)
    assert_all_equal(results)
    twice, same, sums = results[0]
    assert [len(row) for row in same] == [3, 3, 3, 6, 6, 6, 7]
    assert [row[0] for row in same] == [[float(n)] for n in range(1, 8)]
    assert twice == [row for row in same for _ in range(2)]
    assert sums == [1 + 4 + 9, 16 + 25 + 36, 49]


def test_every_workers_metrics_hold_what_all_have_counted(pool):
    def function(plain=False):
        import keras

        import phalanx
        from phalanx.training.batch_methods import train_on_batch

        methods = keras.Model if plain else phalanx
        states = []

        class Asks(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 1:  # Keras has one set of metrics, and counts on from here
                    methods.evaluate(self.model, features(5), targets(5), verbose=0)
                    ask(self.model)

            def on_epoch_end(self, epoch, logs=None):
                ask(self.model)
                states.append(list(logs.values()))

        def ask(model):
            states.append([float(value) for value in model.get_metrics_result().values()])
            states.append([float(v.numpy()) for m in model.metrics for v in m.variables])

        model = small_model()
        methods.fit(
            model, features(19), targets(19), batch_size=4, epochs=2, verbose=0, callbacks=[Asks()],
            shuffle=False, validation_data=(features(7), targets(7)), validation_freq=2,
        )  # fmt: skip
        ask(model)
        methods.evaluate(model, features(7), targets(7), batch_size=3, verbose=0)
        ask(model)
        on_batch = keras.Model.train_on_batch if plain else train_on_batch
        on_batch(model, features(3), targets(3))
        ask(model)
        return states

    results = pool(2).run(function, deadline=600)
    assert_all_equal(results)
    for got, expected in zip(results[0], function(plain=True), strict=True):
        assert sorted(got) == pytest.approx(sorted(expected), rel=1e-5)


def test_arrays_of_different_lengths_are_named_by_worker(pool):
    def function():
        import phalanx

        n = 8 if rank() == 0 else 21
        return refusal(phalanx.fit, small_model(), features(n), targets(n), batch_size=4, verbose=0)

    for output in pool(2).run(function, deadline=600):
        assert output.startswith("WorkerMismatchError: ")
        assert "number of samples" in output
        assert "worker 0: 8, worker 1: 21" in output


def test_shards_of_equal_length_are_not_taken_for_the_complete(pool):
    def function():
        import phalanx

        mine = slice(rank(), None, 2)  # what a hand-written shard looks like
        x, y = features(8)[mine], targets(8)[mine]
        return refusal(phalanx.fit, small_model(), x, y, batch_size=4, verbose=0)

    for output in pool(2).run(function, deadline=600):
        assert output.startswith("WorkerMismatchError: ")
        assert "the same data on every worker" in output


def test_one_worker_may_stop_the_training_of_all(pool):
    def function():
        import keras

        import phalanx

        class StopsAlone(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = rank() == 1 and epoch == 1

        history = phalanx.fit(
            small_model(), features(8), targets(8), epochs=5, verbose=0, callbacks=[StopsAlone()]
        )
        return len(history.epoch)

    assert pool(2).run(function, deadline=600) == [2, 2]


def test_models_that_train_something_else_are_named_by_worker(pool):
    def function():
        import phalanx

        model = small_model()
        model.layers[0].trainable = rank() != 2
        return refusal(phalanx.fit, model, features(8), targets(8), verbose=0)

    for output in pool(3).run(function, deadline=600):
        assert output.startswith("WorkerMismatchError: ")
        assert "model" in output
        assert "worker(s) [2] differ from worker 0" in output


def test_different_calls_are_named(pool):
    def function():
        import phalanx

        call = phalanx.fit if rank() == 0 else phalanx.evaluate
        return refusal(call, small_model(), features(8), targets(8), verbose=0)

    for output in pool(2).run(function, deadline=600):
        assert output.startswith("WorkerMismatchError: ")


@pytest.mark.full
def test_each_worker_may_pass_its_own_data(pool):
    """`distribute_datasets_from_function`: here uneven, and the same 8 samples in all."""

    def function():
        import keras
        import tensorflow as tf

        import phalanx

        strategy = tf.distribute.get_strategy()
        rows = slice(0, 5) if rank() == 0 else slice(5, 8)

        def dataset(context):
            assert context.input_pipeline_id == rank()
            return tf.data.Dataset.from_tensors((features(8)[rows], targets(8)[rows])).repeat()

        data = strategy.distribute_datasets_from_function(dataset)
        model = small_model(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=0.1))
        history = phalanx.fit(model, data, steps_per_epoch=1, epochs=3, verbose=0).history
        return history, [v.numpy() for v in model.weights]

    def one_device():
        import keras

        model = small_model(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=0.1))
        history = model.fit(
            features(8), targets(8), batch_size=8, epochs=3, shuffle=False, verbose=0
        ).history
        return history, [v.numpy() for v in model.weights]

    expected_history, expected = run_single(one_device, deadline=600)
    for history, weights in pool(2).run(function, deadline=600):
        assert history["loss"] == pytest.approx(expected_history["loss"], rel=1e-5)
        for a, b in zip(weights, expected, strict=True):
            assert a == pytest.approx(b, rel=1e-5, abs=1e-6)


def test_a_callback_that_looks_at_every_batch_hangs_no_one(pool):
    def function(everywhere):
        import keras

        import phalanx

        seen = []

        class GradientSampler(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen.append(float(logs["loss"]))

        chief = everywhere or rank() == 0
        phalanx.fit(
            small_model(), features(16), targets(16), batch_size=4, epochs=2,
            verbose=2 if rank() == 0 else 0, callbacks=[GradientSampler()] if chief else [],
        )  # fmt: skip
        return seen

    everywhere = pool(2).run(function, args=(True,), deadline=600)
    assert len(everywhere[0]) == 8
    assert_all_equal(everywhere)
    on_chief = pool(2).run(function, args=(False,), deadline=600)
    assert on_chief[0] == everywhere[0]
    assert on_chief[1] == []


@pytest.mark.full
def test_a_progress_bar_on_the_chief_alone_hangs_no_one(pool):
    def function():
        import phalanx

        model = small_model()
        shown = 1 if rank() == 0 else 0
        phalanx.fit(model, features(16), targets(16), batch_size=4, verbose=shown)
        phalanx.evaluate(model, features(16), targets(16), batch_size=4, verbose=shown)
        return bits(model)

    assert_all_equal(pool(2).run(function, deadline=600))


@pytest.mark.full
def test_clear_session_does_not_end_distribution(pool):
    def function():
        import keras
        import tensorflow as tf

        import phalanx
        from phalanx.worker.strategy_override import survive_clear_session

        strategy = tf.distribute.get_strategy()
        with survive_clear_session(strategy):
            keras.backend.clear_session()
            assert tf.distribute.get_strategy() is strategy
            model = small_model()
            phalanx.fit(model, features(7), targets(7), batch_size=4, epochs=2, verbose=0)
        return bits(model)

    assert_all_equal(pool(2).run(function, deadline=600))


COLLECTIVES = ("CollectiveReduce", "CollectiveGather", "CollectiveBcast", "CollectiveAllToAll")


def collectives_of_a_step(steps_per_execution):
    """The collective operations in everything that one training step runs."""
    from unittest import mock

    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.training.step_function import StepFunction

    captured = []
    original = StepFunction.on_iterator

    def capturing(self, iterator, steps):
        if not captured:
            # The functions are traced at first use, so the first step is run before.
            result = original(self, iterator, steps)
            captured.append((self, iterator))
            return result
        return original(self, iterator, steps)

    model = small_model(steps_per_execution=steps_per_execution,
                        optimizer=keras.optimizers.Adam(0.01, global_clipnorm=1.0))  # fmt: skip
    with mock.patch.object(StepFunction, "on_iterator", capturing):
        phalanx.fit(model, features(32), targets(32), batch_size=8, verbose=0)
    function, iterator = captured[0]
    if steps_per_execution == 1:
        graph = function._next.get_concrete_function(iterator).graph
    else:
        graph = function._many.get_concrete_function(iterator, tf.constant(2)).graph
    definition = graph.as_graph_def()
    bodies = [f.node_def for f in definition.library.function]
    nodes = [node for body in [definition.node, *bodies] for node in body]
    return sorted({(n.op, n.name) for n in nodes if n.op.startswith(COLLECTIVES)})


@pytest.mark.parametrize("steps_per_execution", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_step_is_one_packed_all_reduce_and_no_other_collective(steps_per_execution, pool):
    for found in pool(2).run(collectives_of_a_step, args=(steps_per_execution,), deadline=600):
        assert [op for op, _ in found] == ["CollectiveReduceV2"], found


@pytest.mark.full
@pytest.mark.parametrize("rows", [24, 29])
def test_several_steps_in_one_execution_change_nothing(rows, pool):
    def function(rows):
        import phalanx

        results = []
        for steps in (1, 3):
            model = small_model(steps_per_execution=steps)
            history = phalanx.fit(
                model, features(rows), targets(rows), batch_size=4, epochs=2, verbose=0,
                shuffle=False,
            ).history  # fmt: skip
            results.append((history, [v.numpy() for v in model.weights], bits(model)))
        return results

    worker_group = pool(2).run(function, args=(rows,), deadline=600)
    (history, weights, _), (history_of_three, weights_of_three, _) = worker_group[0]
    assert history_of_three["loss"] == pytest.approx(history["loss"], rel=1e-5)
    for a, b in zip(weights_of_three, weights, strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    assert_all_equal([[part[2] for part in worker] for worker in worker_group])


def test_plain_keras_still_cannot_fit_under_tensorflows_own_strategy():
    """A canary (keras issue 20585): on the day this fails, much of Phalanx can be looked at."""

    def function():
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            return refusal(small_model().fit, features(8), targets(8), verbose=0)

    for output in run_workers(function, 2, strategy=None, deadline=600):
        assert output.startswith("ValueError: ")


def test_workers_that_add_up_by_the_ring():
    def total():
        import tensorflow as tf

        import phalanx

        made = phalanx.strategy("multiworker", communication_backend="ring")

        @tf.function
        def step():
            return made.run(
                lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([3]))
            )

        return step().numpy().tolist()

    assert run_workers(total, 2, strategy=None, deadline=600) == [[2.0] * 3] * 2
