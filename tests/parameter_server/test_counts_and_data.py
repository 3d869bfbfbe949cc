"""One cluster of two workers and two servers: what is counted, and whose data is trained."""

import contextlib
import dataclasses
import io
import itertools

import numpy as np
import pytest
from server_cluster import led

pytestmark = pytest.mark.timeout(1500)

SAMPLES, BATCH = 203, 16
STEPS = -(-SAMPLES // BATCH)


def everything():
    """Train on data of every kind, in one process, and say what came of it."""
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.errors import ConfigurationError, DataError
    from phalanx.training.batch_methods import predict_on_batch
    from phalanx.training.parameter_server.scheduler import StepScheduler

    class Seen(keras.metrics.Metric):
        """How often each sample was seen, by its number."""

        def __init__(self, name="seen", **kwargs):
            super().__init__(name=name, **kwargs)
            self.counts = self.add_weight(shape=(SAMPLES,), name="counts", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            numbers = tf.cast(y_true[:, 1], tf.int32)
            self.counts.assign(self.counts + tf.reduce_sum(tf.one_hot(numbers, SAMPLES), 0))

        def result(self):
            return tf.reduce_sum(self.counts)

    class OptimizerHooks(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.batches, self.losses = [], []

        def on_train_batch_end(self, batch, logs=None):
            self.batches.append(batch)
            self.losses.append(logs["loss"])

    class OwnEvaluate(keras.Sequential):
        def evaluate(self, *args, **options):
            return {"own": 1.0, **super().evaluate(*args, **options)}

    def repeating():
        inputs = keras.Input((None, 1))
        found = keras.Model(inputs, keras.ops.repeat(inputs, 2, axis=-1))
        found.compile("sgd", "mse")
        return found

    def of_lengths():
        """Batches of two rows, of lengths that differ."""
        rows = tf.data.Dataset.range(1, 6).map(lambda n: tf.fill((n, 1), tf.cast(n, tf.float32)))
        return rows.padded_batch(2)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 4)).astype("float32")
    y = np.stack([x.sum(1), np.arange(SAMPLES)], 1).astype("float32")

    def loss(y_true, y_pred):
        return tf.square(y_true[:, :1] - y_pred)

    def model(**options):
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.01), loss, metrics=[Seen()], **options)
        return made

    output = {}

    def trained(name, data, targets=None, *, epochs=2, **options):
        made = model()
        hooks = OptimizerHooks()
        history = phalanx.fit(
            made, data, targets, epochs=epochs, verbose=0, callbacks=[hooks], **options
        )
        seen = made.metrics[-1].metrics[0].counts.numpy()
        output[name] = {
            "iterations": int(made.optimizer.iterations.numpy()),
            "seen": seen.astype(int).tolist(),
            "history": history.history,
            "batches": hooks.batches,
            "last_loss": hooks.losses[-1],
        }
        return made

    def dataset():
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES).batch(BATCH)

    def of_context(context):
        pipelines, own = context.num_input_pipelines, context.input_pipeline_id
        return tf.data.Dataset.from_tensor_slices((x, y)).shard(pipelines, own).batch(BATCH)

    made = trained("arrays", x, y, batch_size=BATCH)
    output["evaluated"] = phalanx.evaluate(made, x, y, batch_size=20, verbose=0, return_dict=True)
    output["predicted"] = phalanx.predict(made, x, batch_size=30, verbose=0)
    by_dataset = tf.data.Dataset.from_tensor_slices((x,)).batch(10)
    output["predicted from a dataset"] = phalanx.predict(made, by_dataset, verbose=0)
    output["predicted a batch"] = predict_on_batch(made, x[:5])
    output["predicted lengths"] = phalanx.predict(repeating(), of_lengths(), verbose=0)
    output["by hand"] = x @ made.layers[0].kernel.numpy() + made.layers[0].bias.numpy()
    output["y"] = y[:, :1]
    output["evaluated on a dataset"] = [
        phalanx.evaluate(made, dataset(), verbose=0, return_dict=True) for _ in range(2)
    ]
    trained("dataset", dataset(), validation_data=dataset())
    trained("function", of_context)
    own = OwnEvaluate([keras.Input((4,)), keras.layers.Dense(1)])
    own.compile(keras.optimizers.SGD(0.01), loss, metrics=[Seen()])
    held_out = {"validation_data": (x, y), "validation_batch_size": 20}
    output["own evaluate"] = phalanx.fit(own, x, y, epochs=2, verbose=0, **held_out).history
    trained("endless", dataset().repeat(), steps_per_epoch=9, epochs=3)
    pace = phalanx.callbacks.ThroughputMonitor(every_n_seconds=0.1, log=False)
    shown = io.StringIO()
    progress = phalanx.callbacks.DistributedProgress(stream=shown, live=False)
    watching = [pace, phalanx.callbacks.StragglerDetector(every_n_seconds=0.1), progress]
    phalanx.fit(model(), x, y, batch_size=1, epochs=3, verbose=0, callbacks=watching)
    output["pace"], output["shown"] = pace.numbers, shown.getvalue()

    def show_nothing(given, steps=(2, 3, 9)):
        """A worker that is lost after it has trained, and before it has reported."""
        result = given.outcome.result()
        if next(lost) in steps:
            raise tf.errors.UnavailableError(None, None, "as if it were lost")
        return result

    @contextlib.contextmanager
    def losing_some():
        nonlocal lost
        lost = itertools.count()
        given = StepScheduler._give

        def give(self, ticket):
            made = given(self, ticket)
            return dataclasses.replace(made, outcome=self._fetchers.submit(show_nothing, made))

        StepScheduler._give = give
        try:
            yield
        finally:
            StepScheduler._give = given

    lost = itertools.count()
    with losing_some():
        trained("unknown length", dataset(), epochs=1)
    with losing_some():
        trained("unknown length steps", dataset().repeat(), epochs=1, steps_per_epoch=9)
    with losing_some():
        output["predicted, unknown length"] = phalanx.predict(made, by_dataset, verbose=0)

    def refused(error, data, targets=None, prepare=lambda made: made):
        with pytest.raises(error) as caught:
            phalanx.fit(prepare(model()), data, targets, verbose=0)
        return str(caught.value)

    def generator():
        yield x, y

    def compiled(optimizer):
        def prepare(made):
            made.compile(optimizer, loss)
            return made

        return prepare

    calls = dataset().map(lambda a, b: (tf.numpy_function(np.copy, [a], tf.float32), b))
    sgd = keras.optimizers.SGD
    output["refused"] = [
        refused(DataError, generator()),
        refused(DataError, calls),
        refused(DataError, lambda context: 3),
        refused(DataError, dataset(), y),
        refused(DataError, x[:0], y[:0]),
        refused(ConfigurationError, x, y, compiled(sgd(gradient_accumulation_steps=2))),
        refused(ConfigurationError, x, y, compiled(keras.optimizers.LossScaleOptimizer(sgd()))),
        refused(ConfigurationError, x, y, compiled(keras.optimizers.Nadam())),
    ]
    single = model()
    output["on batches"] = [
        single.train_on_batch(x[n : n + 40], y[n : n + 40], return_dict=True)
        for n in range(0, SAMPLES, 40)
    ]
    output["on batches counted"] = int(single.optimizer.iterations.numpy())
    weights = single.get_weights()
    output["on a batch tested"] = single.test_on_batch(x, y, return_dict=True)
    output["on a batch by hand"] = float(np.mean((x @ weights[0] + weights[1] - y[:, :1]) ** 2))
    averaged = sgd(use_ema=True, ema_overwrite_frequency=5)
    output["refused"].append(refused(ConfigurationError, x, y, compiled(averaged)))

    def recurrent(_made):
        layers = [keras.Input(batch_shape=(BATCH, 4, 1)), keras.layers.GRU(2, stateful=True)]
        other = keras.Sequential([*layers, keras.layers.Dense(1)])
        other.compile("sgd", loss)
        return other

    whole = len(x) // BATCH * BATCH
    sequences = x[:whole, :, None], y[:whole]
    output["refused"].append(refused(ConfigurationError, *sequences, recurrent))
    return output


@pytest.fixture(scope="module")
def output():
    return led(everything)


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_k_steps_count_k(output, kind):
    assert output[kind]["iterations"] == 2 * STEPS
    assert output[kind]["batches"] == 2 * list(range(STEPS))


@pytest.mark.parametrize("kind", ["arrays", "dataset", "function"])
def test_an_epoch_is_one_pass_that_all_workers_share(output, kind):
    assert output[kind]["seen"] == [1] * SAMPLES
    assert output[kind]["history"]["seen"] == [SAMPLES] * 2


def test_a_function_gives_each_worker_its_part(output):
    parts = [len(range(worker, SAMPLES, 2)) for worker in range(2)]
    assert output["function"]["iterations"] == 2 * sum(-(-n // BATCH) for n in parts)


def test_steps_per_epoch_are_those_asked_for(output):
    endless = output["endless"]
    assert endless["iterations"] == 27
    assert endless["batches"] == 3 * list(range(9))
    # Each worker goes through its own shuffled passes, so a batch may be the short last one.
    assert all(8 * BATCH < n <= 9 * BATCH for n in endless["history"]["seen"])


def test_what_a_lost_worker_had_not_reported_is_counted(output):
    assert output["unknown length"]["seen"] == [1] * SAMPLES
    assert output["unknown length"]["iterations"] == STEPS
    assert output["unknown length steps"]["iterations"] == 9
    assert (
        sum(output["unknown length steps"]["seen"])
        == output["unknown length steps"]["history"]["seen"][0]
    )


def test_single_batches_are_steps_of_one_worker(output):
    assert [logs["seen"] for logs in output["on batches"]] == [40, 40, 40, 40, 40, 3]
    assert output["on batches counted"] == 6
    assert output["on a batch tested"]["seen"] == SAMPLES
    assert output["on a batch tested"]["loss"] == pytest.approx(
        output["on a batch by hand"], rel=1e-4
    )


def test_evaluation_is_exact(output):
    expected = np.mean((output["by hand"] - output["y"]) ** 2)
    for logs in (output["evaluated"], *output["evaluated on a dataset"]):
        assert logs["loss"] == pytest.approx(expected, rel=1e-5)
        assert logs["seen"] == SAMPLES


def test_predictions_come_in_order(output):
    for name in ("predicted", "predicted from a dataset", "predicted, unknown length"):
        np.testing.assert_allclose(output[name], output["by hand"], rtol=1e-4, atol=1e-5)


def test_a_batch_is_predicted(output):
    np.testing.assert_allclose(output["predicted a batch"], output["by hand"][:5], rtol=1e-4)


def test_predictions_of_different_lengths_are_ragged(output):
    rows = output["predicted lengths"].to_list()
    assert [len(row) for row in rows] == [2, 2, 4, 4, 5]
    assert rows[0] == [[1.0, 1.0], [0.0, 0.0]]


def test_an_own_evaluate_validates(output):
    history = output["own evaluate"]
    assert history["val_own"] == [1.0, 1.0]
    assert history["val_seen"] == [SAMPLES] * 2


def test_validation_is_in_the_logs(output):
    assert output["dataset"]["history"]["val_seen"] == [SAMPLES] * 2
    losses = output["dataset"]["history"]["val_loss"]
    assert losses[1] < losses[0]


def test_the_last_batch_has_the_logs_of_the_epoch(output):
    arrays = output["arrays"]
    assert arrays["last_loss"] == pytest.approx(arrays["history"]["loss"][-1])


def test_staleness_is_measured(output):
    # Two workers: while one computes the other may write, several times at the worst.
    assert all(0 <= mean < 10 for mean in output["arrays"]["history"]["staleness"])


def test_how_fast_it_goes_is_measured(output):
    assert 2 * SAMPLES < sum(window.steps for window in output["pace"]) <= 3 * SAMPLES
    for window in output["pace"]:
        assert window.samples == window.steps
        assert window.samples_per_second > 1
        assert [each.rank for each in window.workers] == [1, 2]
    timed = [each.compute for window in output["pace"] for each in window.workers]
    measured = [seconds for seconds in timed if seconds is not None]  # else it had no step there
    assert measured
    assert min(measured) > 0


def test_the_display_reports_the_workers(output):
    first, *epochs = output["shown"].splitlines()
    assert first.endswith("on 2 workers, each at its own pace")
    assert len(epochs) == 3


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "on a generator, which cannot be made on every worker"),
        (1, "calls Python"),
        (2, "found a int"),
        (3, "Asked to use y next to"),
        (4, "arrays with 0 samples"),
        (5, "gradient_accumulation_steps=2"),
        (6, "LossScaleOptimizer"),
        (7, "Nadam"),
        (8, "ema_overwrite_frequency=5"),
        (9, "on 2 workers of parameter servers, each of which gets some of the batches"),
        (9, "found stateful=True in gru"),
    ],
)
def test_what_cannot_be_right_is_refused(output, number, words):
    assert words in output["refused"][number]
