"""GradientLogger: what its event files say is what the gradients are, worked out by hand."""

import fnmatch
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import OwnStep, assert_close, features, targets, values

import phalanx
from phalanx import clip
from phalanx.callbacks import GradientLogger
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import ConfigurationError, TrainingError
from phalanx.monitoring.tensorboard_files import read_histograms, read_layout, read_scalars

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
FIT = {"batch_size": 8, "epochs": 1, "shuffle": False, "verbose": 0}
ROWS = 19
BATCHES = [np.arange(0, 8), np.arange(8, 16), np.arange(16, 19)]


def small_model(optimizer=None, *, metrics=("mae",), **options):
    """The small model, its variables' paths the same at every call too."""
    keras.utils.set_random_seed(3)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(5, activation="tanh", name="hidden"),
        keras.layers.Dense(1, name="head"),
    ]
    model = keras.Sequential(layers, name="small")
    model.compile(optimizer or SGD(0.1), "mse", metrics=list(metrics), **options)
    return model


def logger(tmp_path, **options):
    chosen = {"every_n_steps": 1, "max_overhead": None, "log_dir": tmp_path, **options}
    return GradientLogger(**chosen)


def gradients_of(model, x, y):
    """By variable path, the gradient of the mean loss of these rows."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    found = tape.gradient(loss, model.trainable_variables)
    return {v.path: g.numpy() for v, g in zip(model.trainable_variables, found, strict=True)}


def norm(gradients):
    return np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients.values()))


def cosine(a, b):
    return sum((a[k] * b[k]).sum() for k in a) / norm(a) / norm(b)


def by_hand(rate, limit, replicas, rows=ROWS):
    """For every step the gradients of each replica and the total, and the update ratios."""
    model = small_model(SGD(rate), metrics=())
    x, y = features(rows), targets(rows)
    steps = []
    for batch in np.split(np.arange(rows), range(8, rows, 8)):
        parts = np.array_split(batch, replicas)
        own = [gradients_of(model, x[p], y[p]) for p in parts]
        total = gradients_of(model, x[batch], y[batch])
        factor = min(1.0, limit / norm(total)) if limit else 1.0
        ratios = {}
        for v in model.trainable_variables:
            step, size = rate * factor * total[v.path], np.linalg.norm(v.numpy())
            ratios[v.path] = np.linalg.norm(step) / size if size else 0.0
            v.assign_sub(step)
        steps.append({"own": own, "total": total, "ratios": ratios, "parts": parts})
    return steps


def point(scalars, tag, step):
    return dict(scalars[tag])[step]


def assert_describes(scalars, step, gradients):
    for path, g in gradients.items():
        reported = {n: point(scalars, f"gradient_{n}/{path}", step) for n in
                ("norm", "mean", "std", "max_abs", "zero_fraction", "nonfinite_count")}  # fmt: skip
        assert reported == pytest.approx(
            {
                "norm": np.linalg.norm(g),
                "mean": g.mean(),
                "std": g.std(),
                "max_abs": np.abs(g).max(),
                "zero_fraction": (g == 0).mean(),
                "nonfinite_count": 0,
            },
            rel=2e-4,
            abs=1e-6,
        )
    assert point(scalars, "gradients/norm", step) == pytest.approx(norm(gradients), rel=1e-4)


def run_names(replicas):
    return ["worker-0"] if replicas == 1 else [f"worker-0-replica-{i}" for i in range(replicas)]


def strategy_of(replicas, request):
    if replicas == 1:
        return tf.distribute.get_strategy()
    return request.getfixturevalue(f"mirrored{replicas}")


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
def test_the_files_say_what_the_gradients_are(replicas, request, tmp_path):
    rate, limit = 0.1, 0.5
    with strategy_of(replicas, request).scope():
        model = small_model(SGD(rate, global_clipnorm=limit), metrics=())
    phalanx.fit(model, features(ROWS), targets(ROWS), callbacks=[logger(tmp_path)], **FIT)
    steps = by_hand(rate, limit, replicas)
    total = read_scalars(tmp_path / "global")
    for number, step in enumerate(steps, start=1):
        assert_describes(total, number, step["total"])
        after = min(limit, norm(step["total"]))
        assert point(total, "gradients/clipped_norm", number) == pytest.approx(after, rel=1e-4)
        for path, ratio in step["ratios"].items():
            reported = point(total, f"update_ratio/{path}", number)
            assert reported == pytest.approx(ratio, rel=1e-3, abs=1e-6)
    clipped = np.cumsum([norm(s["total"]) > limit for s in steps]) / [1, 2, 3]
    assert [v for _, v in total["gradients/clip_fraction"]] == pytest.approx(clipped)
    for i, name in enumerate(run_names(replicas)):
        own = read_scalars(tmp_path / name)
        for number, step in enumerate(steps, start=1):
            assert_describes(own, number, step["own"][i])
            assert point(own, "gradients/cosine_similarity", number) == pytest.approx(
                cosine(step["own"][i], step["total"]), rel=1e-4
            )


def test_the_aggregate_is_the_sample_weighted_mean_and_so_is_the_noise(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model(SGD(0.1), metrics=())
    phalanx.fit(model, features(3), targets(3), callbacks=[logger(tmp_path)], **FIT)
    (step,) = by_hand(0.1, None, 2, rows=3)
    assert [len(p) for p in step["parts"]] == [2, 1]
    total = read_scalars(tmp_path / "global")
    own = [read_scalars(tmp_path / name) for name in run_names(2)]
    for path in step["total"]:
        means = [point(o, f"gradient_mean/{path}", 1) for o in own]
        expected = (2 * means[0] + means[1]) / 3
        assert point(total, f"gradient_mean/{path}", 1) == pytest.approx(expected, rel=1e-4)
    small = (2 * norm(step["own"][0]) ** 2 + norm(step["own"][1]) ** 2) / 3
    big = norm(step["total"]) ** 2
    squared = (3 * big - 1.5 * small) / 1.5
    trace = (small - big) / (1 / 1.5 - 1 / 3)
    if squared > 0:
        reported = point(total, "gradients/noise_scale", 1)
        assert reported == pytest.approx(trace / squared, rel=1e-3)
    else:
        assert "gradients/noise_scale" not in total


@pytest.mark.full
def test_histograms_count_every_entry(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model()
    phalanx.fit(model, features(8), targets(8), callbacks=[logger(tmp_path)], **FIT)
    sizes = {f"gradient/{v.path}": v.shape for v in model.trainable_variables}
    for name in ["global", *run_names(2)]:
        found = read_histograms(tmp_path / name)
        assert found.keys() == sizes.keys()
        for tag, shape in sizes.items():
            ((step, buckets),) = found[tag]
            assert step == 1
            assert buckets[:, 2].sum() == np.prod(shape)
    assert "Gradients" in read_layout(tmp_path / "global")


@pytest.mark.full
def test_histograms_at_every_nth_look_or_never(mirrored2, tmp_path):
    for choice, steps in [(2, [1, 3]), (False, [])]:
        with mirrored2.scope():
            model = small_model()
        seen = logger(tmp_path / str(choice), histograms=choice)
        phalanx.fit(model, features(32), targets(32), callbacks=[seen], **FIT)
        found = read_histograms(tmp_path / str(choice) / "global")
        assert all([s for s, _ in points] == steps for points in found.values())
        assert bool(found) == bool(steps)


@pytest.mark.full
def test_only_the_layers_that_are_asked_for(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model()
    pattern = "*/bias"
    phalanx.fit(model, features(8), targets(8),
                callbacks=[logger(tmp_path, layers=[pattern])], **FIT)  # fmt: skip
    tags = read_scalars(tmp_path / "global")
    reported = {t.partition("/")[2] for t in tags if t.startswith("gradient_norm/")}
    assert reported == {
        v.path for v in model.trainable_variables if fnmatch.fnmatchcase(v.path, pattern)
    }
    assert reported


@pytest.mark.full
def test_some_layers_of_each_look_the_same_ones_on_every_replica(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model()
    phalanx.fit(model, features(96), targets(96),
                callbacks=[logger(tmp_path, sample_rate=0.5)], **FIT)  # fmt: skip
    looks = {}
    for name in ["global", *run_names(2)]:
        scalars = read_scalars(tmp_path / name)
        looks[name] = {t: [s for s, _ in p] for t, p in scalars.items() if "_norm/" in t}
    assert looks["global"] == looks["worker-0-replica-0"] == looks["worker-0-replica-1"]
    counts = [len(steps) for steps in looks["global"].values()]
    assert all(0 < count < 12 for count in counts)
    per_layer = {}
    for tag, steps in looks["global"].items():
        per_layer.setdefault(tag.rpartition("/")[0], []).append(steps)
    assert all(steps == group[0] for group in per_layer.values() for steps in group)


class NamesResults(OwnStep):
    """Returns what its metrics report under another name."""

    def train_step(self, data):
        logs = super().train_step(data)
        self.metrics[0].update_state(logs["loss"])
        return {**logs, "again": self.metrics[0].result()}


def own_step():
    keras.utils.set_random_seed(3)
    model = NamesResults([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(SGD(0.1), "mse")
    return model


def normalised():
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(SGD(0.1), "mse", metrics=["mae"])
    return model


MODELS = {
    "plain": small_model,
    "four steps a call": lambda: small_model(steps_per_execution=4),
    "own step": own_step,
    "accumulated": lambda: small_model(Adam(0.01, gradient_accumulation_steps=2)),
    "scaled loss": lambda: small_model(keras.optimizers.LossScaleOptimizer(Adam(0.01))),
    "clipped": lambda: small_model(clip.attach(SGD(0.1), clip.clip_by_percentile(50.0, 4))),
    "normalised": normalised,
}


@pytest.mark.full
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_looking_changes_nothing(name, every, mirrored2, tmp_path):
    trained = []
    for callbacks in ([], [logger(tmp_path, every_n_steps=every)]):
        with mirrored2.scope():
            model = MODELS[name]()
        history = phalanx.fit(model, features(77), targets(77), callbacks=callbacks, **FIT).history
        trained.append(([*values(model.weights), *values(model.optimizer.variables)], history))
    (without, history), (looked, other) = trained
    assert_close(looked, without, tolerance=1e-6)
    assert other == {k: pytest.approx(v, rel=1e-5) for k, v in history.items()}
    steps = [s for s, _ in read_scalars(tmp_path / "global")["gradients/norm"]]
    assert steps == list(range(1, 11, every))


@pytest.mark.full
def test_the_norm_under_loss_scaling_is_that_of_the_unscaled(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model(keras.optimizers.LossScaleOptimizer(SGD(0.1)), metrics=())
    phalanx.fit(model, features(8), targets(8), callbacks=[logger(tmp_path)], **FIT)
    (step,) = by_hand(0.1, None, 2, rows=8)
    assert_describes(read_scalars(tmp_path / "global"), 1, step["total"])
    for i, name in enumerate(run_names(2)):
        assert_describes(read_scalars(tmp_path / name), 1, step["own"][i])


def test_plain_steps_have_nothing_of_it_in_their_graph(mirrored2, tmp_path):
    def ops(callbacks):
        with mirrored2.scope():
            model = small_model()
        phalanx.fit(model, features(32), targets(32), callbacks=callbacks, **FIT)
        (traced,) = model.train_function._one._list_all_concrete_functions()
        return sorted(op.type for op in traced.graph.get_operations())

    assert ops([logger(tmp_path, every_n_steps=3)]) == ops([])


def loop(strategy, tmp_path=None, compiled=True):
    with strategy.scope():
        model, optimizer = small_model(), SGD(0.1)
        optimizer.build(model.trainable_variables)
    replicas = strategy.num_replicas_in_sync

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            each = tf.reduce_mean((model(x, training=True) - y) ** 2, -1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=8)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def step(x, y):
        strategy.run(on_replica, args=(x, y))

    if compiled:
        step = tf.function(step)
    if tmp_path is not None:
        step = phalanx.observe_gradients(step, logger(tmp_path, every_n_steps=2))
    whole = tf.data.Dataset.from_tensor_slices((features(32), targets(32))).batch(8)
    for x, y in strategy.experimental_distribute_dataset(whole):
        step(x, y)
    return values(model.weights), replicas


@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_loop_of_ones_own_is_observed_in_two_lines(replicas, compiled, request, tmp_path):
    if replicas == 2 and not compiled:
        compiled = True  # strategy.run is eager on one device alone
    strategy = strategy_of(replicas, request)
    without, _ = loop(strategy, compiled=compiled)
    looked, _ = loop(strategy, tmp_path, compiled=compiled)
    assert_close(looked, without, tolerance=1e-6)
    steps = by_hand(0.1, None, replicas, rows=32)
    total = read_scalars(tmp_path / "global")
    assert [s for s, _ in total["gradients/norm"]] == [1, 3]
    for number in (1, 3):
        assert_describes(total, number, steps[number - 1]["total"])
        for i, name in enumerate(run_names(replicas)):
            assert_describes(read_scalars(tmp_path / name), number, steps[number - 1]["own"][i])


def test_a_step_without_an_optimizer_is_refused(tmp_path):
    step = phalanx.observe_gradients(lambda: None, logger(tmp_path))
    with pytest.raises(TrainingError, match="no Keras optimizer applied any"):
        step()


def test_records_get_the_same_numbers(mirrored2, tmp_path, monkeypatch):
    spec = WorkerSpec(rank=0, world_size=1, run_dir=str(tmp_path))
    for name, value in spec.to_environment().items():
        monkeypatch.setenv(name, value)
    with mirrored2.scope():
        model = small_model()
    callback = logger(None, log_dir=None)
    phalanx.fit(model, features(19), targets(19), callbacks=[callback], **FIT)
    lines = (tmp_path / "records" / "worker-0.jsonl").read_text().splitlines()
    records = [r for r in map(json.loads, lines) if r["kind"] == "gradients"]
    assert {r["run"] for r in records} == {"global", *run_names(2)}
    for record in records:
        scalars = read_scalars(tmp_path / "tensorboard" / record["run"])
        assert {t: point(scalars, t, record["step"]) for t in record["values"]} == pytest.approx(
            record["values"], rel=1e-6
        )


def test_two_loggers_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="found 2: GradientLogger"):
        phalanx.fit(small_model(), features(8), targets(8), verbose=0,
                    callbacks=[logger(tmp_path), logger(tmp_path)])  # fmt: skip


@pytest.mark.parametrize(
    "option",
    [{"every_n_steps": 0}, {"every_n_steps": 1.5}, {"sample_rate": 0.0}, {"sample_rate": 1.1},
     {"histograms": -1}, {"max_overhead": 0.0}, {"max_overhead": float("nan")}],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(option):
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        GradientLogger(**option)


@pytest.mark.full
def test_the_tensorboard_callback_alone_works(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model()
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    phalanx.fit(model, features(19), targets(19), callbacks=[board], **FIT)
    assert list(tmp_path.rglob("*tfevents*"))


@pytest.mark.full
def test_keras_own_fit_says_that_nothing_is_logged(tmp_path, caplog):
    assert not phalanx.is_enabled()
    seen = logger(tmp_path)
    small_model().fit(features(16), targets(16), callbacks=[seen], **FIT)
    (record,) = [r for r in caplog.records if "GradientLogger" in r.message]
    assert "phalanx.enable()" in record.message
    caplog.clear()
    phalanx.fit(small_model(), features(16), targets(16), callbacks=[logger(tmp_path)], **FIT)
    assert not [r for r in caplog.records if "GradientLogger" in r.message]


@pytest.mark.full
def test_a_second_fit_uses_the_traces_of_the_first(mirrored2, tmp_path):
    traces = []

    class Counting(keras.Sequential):
        def train_step(self, data):
            traces.append(1)
            return super().train_step(data)

    with mirrored2.scope():
        model = Counting([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(SGD(0.1), "mse")
    for _ in range(2):
        options = {"callbacks": [logger(tmp_path, every_n_steps=2)], **FIT}
        phalanx.fit(model, features(32), targets(32), **options)
        traced, traces[:] = len(traces), []
    assert traced == 0


@pytest.mark.full
def test_steps_continue_counting_in_a_second_fit(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model(SGD(0.1, gradient_accumulation_steps=2))
    for _ in range(2):
        options = {"callbacks": [logger(tmp_path, every_n_steps=2)], **FIT}
        phalanx.fit(model, features(32), targets(32), **options)
    steps = [s for s, _ in read_scalars(tmp_path / "global")["gradients/norm"]]
    assert steps == [1, 3, 5, 7]


@pytest.mark.full
def test_clipping_before_on_one_device_shows_in_the_norms(tmp_path):
    model = small_model(
        clip.attach(SGD(0.1), clip.clip_by_global_norm(0.01, when="before")), metrics=()
    )
    phalanx.fit(model, features(8), targets(8), callbacks=[logger(tmp_path)], **FIT)
    found = read_scalars(tmp_path / "global")
    assert point(found, "gradients/norm", 1) > 0.1
    assert point(found, "gradients/clipped_norm", 1) == pytest.approx(0.01, rel=1e-5)
    assert point(found, "gradients/clip_fraction", 1) == 1.0


@pytest.mark.full
def test_calls_that_no_one_looks_at_clip_the_total_as_those_looked_at_do(mirrored2, tmp_path):
    assert not phalanx.is_enabled()
    with mirrored2.scope():
        variable, optimizer = keras.Variable([0.0, 0.0]), SGD(1.0, global_clipnorm=1.0)
        optimizer.build([variable])
    rows = tf.data.Dataset.from_tensor_slices([[100.0, 0.0], [0.0, 1.0]]).batch(2).repeat(2)

    @tf.function
    def step(gradient):
        def on_replica(g):
            optimizer.apply([g[0]], [variable])

        mirrored2.run(on_replica, args=(gradient,))

    observed = phalanx.observe_gradients(step, logger(tmp_path, every_n_steps=2))
    for gradient in mirrored2.experimental_distribute_dataset(rows):
        observed(gradient)
    assert variable.numpy().tolist() == pytest.approx([-2 * 0.99995, -2 * 0.0099995])


class SummaryOfItsOwn(keras.Model):
    """What people write today: tf.summary.histogram in the step."""

    def __init__(self, directory):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.writer = tf.summary.create_file_writer(str(directory))

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        with self.writer.as_default():
            tf.summary.histogram("gradient", gradients[0], step=self.optimizer.iterations.value)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@pytest.mark.full
def test_a_summary_in_a_distributed_step_works_and_is_replica_0s(mirrored2, tmp_path):
    with mirrored2.scope():
        model = SummaryOfItsOwn(tmp_path)
        model.compile(SGD(0.1), "mse")
    phalanx.fit(model, features(16), targets(16), **FIT)
    model.writer.flush()
    (found,) = read_histograms(tmp_path).values()
    assert [step for step, _ in found] == [0, 1]


def test_sampling_by_hand_in_a_callback_is_reported_what_to_do_instead(mirrored2):
    x, y = features(32), targets(32)

    class Sampler(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 2 == 0:
                gradients_of(self.model, x[:8], y[:8])

    phalanx.fit(small_model(), x, y, callbacks=[Sampler()], **FIT)  # one device has no trouble
    with mirrored2.scope():
        model = small_model()
    with pytest.raises(ValueError, match="not available outside the replica") as caught:
        phalanx.fit(model, x, y, callbacks=[Sampler()], **FIT)
    (note,) = caught.value.__notes__
    assert "GradientLogger" in note
