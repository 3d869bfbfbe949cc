"""phalanx.clip.attach: every clipper acts on the total, as on one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import (
    OwnStep,
    assert_close,
    features,
    needs_multi_optimizer,
    small_model,
    targets,
    values,
)

import phalanx
from phalanx import clip
from phalanx.errors import ConfigurationError

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
FIT = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
ROWS = 19  # 8, 8 and 3: shares of 4 and 4, of 3 each and 2, and an uneven end

CLIPPERS = {
    "clip_by_value": lambda: [clip.clip_by_value(0.01)],
    "clip_by_norm": lambda: [clip.clip_by_norm(0.05)],
    "clip_by_global_norm": lambda: [clip.clip_by_global_norm(0.05)],
    "adaptive_grad_clip": lambda: [clip.adaptive_grad_clip(0.01)],
    "clip_by_percentile": lambda: [clip.clip_by_percentile(30.0, window=3)],
    "per_layer": lambda: [
        clip.per_layer({"*/kernel": clip.clip_by_norm(0.05)}, otherwise=clip.clip_by_value(0.01))
    ],
    "two": lambda: [clip.clip_by_value(0.05), clip.clip_by_percentile(50.0, window=4)],
}


def dense(optimizer, **options):
    return small_model(optimizer, metrics=(), **options), features(ROWS), targets(ROWS)


def embedded(optimizer, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(6, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", **options)
    x = np.random.default_rng(0).integers(0, 6, size=(ROWS, 2))
    return model, x.astype("int32"), targets(ROWS)


def own_step(optimizer, **options):
    keras.utils.set_random_seed(3)
    model = OwnStep([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model, features(ROWS), targets(ROWS)


def trained(rules, make=dense, optimizer=lambda: SGD(0.3), wrap=lambda o: o, **options):
    made = wrap(clip.attach(optimizer(), *rules))
    model, x, y = make(made, **options)
    phalanx.fit(model, x, y, **FIT)
    return model


def everything(model):
    return [*values(model.weights), *values(model.optimizer.variables)]


CASES = {
    **{name: {"rules": name} for name in CLIPPERS},
    "accumulated": {
        "rules": "two",
        "optimizer": lambda: Adam(0.01, gradient_accumulation_steps=2),
    },
    "scaled loss": {"rules": "two", "wrap": keras.optimizers.LossScaleOptimizer},
    "embedding": {"rules": "clip_by_global_norm", "make": embedded},
    "embedding by percentile": {"rules": "clip_by_percentile", "make": embedded},
    "embedding, adaptive rows": {"rules": "two", "make": embedded},
    "own step": {"rules": "two", "make": own_step},
    "three steps a call": {"rules": "two", "steps_per_execution": 3},
    "keras's own after ours": {
        "rules": "clip_by_value",
        "optimizer": lambda: SGD(0.3, global_clipnorm=0.02),
    },
}


def case(name):
    options = dict(CASES[name])
    return {**options, "rules": CLIPPERS[options["rules"]]()}


@functools.cache
def on_one_device(name):
    return everything(trained(**case(name)))


CHOSEN = ("clip_by_global_norm", "scaled loss", "embedding by percentile", "own step")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in CHOSEN else pytest.mark.full) for name in CASES],
)
def test_clipping_a_total_is_clipping_on_one_device(name, mirrored2):
    expected = on_one_device(name)
    with mirrored2.scope():
        assert_close(everything(trained(**case(name))), expected)


@pytest.mark.full
@pytest.mark.parametrize("name", ["clip_by_percentile", "two", "embedding"])
def test_with_three_replicas_as_well(name, mirrored3):
    expected = on_one_device(name)
    with mirrored3.scope():
        assert_close(everything(trained(**case(name))), expected)


@pytest.mark.parametrize("name", ["clip_by_value", "clip_by_norm", "clip_by_global_norm"])
def test_on_one_device_ours_is_what_keras_own_option_does(name):
    option = {
        "clip_by_value": "clipvalue",
        "clip_by_norm": "clipnorm",
        "clip_by_global_norm": "global_clipnorm",
    }
    (rule,) = CLIPPERS[name]()
    model, x, y = dense(SGD(0.3, **{option[name]: rule.limit}))
    model.fit(x, y, **FIT)
    assert_close(on_one_device(name)[: len(model.weights)], values(model.weights))


def test_the_rules_work_in_keras_own_fit():
    model, x, y = dense(clip.attach(SGD(0.3), clip.clip_by_global_norm(0.05)))
    model.fit(x, y, **FIT)
    assert_close(everything(model), on_one_device("clip_by_global_norm"))


def mean_gradient(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    return [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]


def shares(replicas, x, y, batch=8):
    """What each replica holds of each batch, by `phalanx`'s rule: the first get one more."""
    for begin in range(0, len(x), batch):
        rows = np.arange(begin, min(begin + batch, len(x)))
        yield [(x[part], y[part]) for part in np.array_split(rows, replicas)]


@pytest.mark.full
@pytest.mark.parametrize("rows", [19, 17])  # the last batch: 3 samples, or 1 for three replicas
@pytest.mark.parametrize("wrapped", [False, True])
def test_before_clips_each_replicas_own_mean_gradient(rows, wrapped, mirrored3):
    limit, rate = 0.05, 0.3
    x, y = features(rows), targets(rows)
    by_hand = small_model(SGD(rate), metrics=())
    for parts in shares(3, x, y):
        total = [np.zeros(v.shape) for v in by_hand.trainable_variables]
        for part_x, part_y in parts:
            if len(part_x) == 0:
                continue
            own = mean_gradient(by_hand, part_x, part_y)
            size = np.sqrt(sum((g**2).sum() for g in own))
            weight = len(part_x) / sum(len(p) for p, _ in parts) * min(1, limit / size)
            total = [t + weight * g for t, g in zip(total, own, strict=True)]
        for variable, gradient in zip(by_hand.trainable_variables, total, strict=True):
            variable.assign_sub(rate * gradient)
    with mirrored3.scope():
        optimizer = clip.attach(SGD(rate), clip.clip_by_global_norm(limit, when="before"))
        if wrapped:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model = small_model(optimizer, metrics=())
    phalanx.fit(model, x, y, **{**FIT, "epochs": 1})
    assert_close(values(model.weights), values(by_hand.weights))


def test_on_one_device_before_and_after_are_the_same():
    before = trained([clip.clip_by_global_norm(0.05, when="before")])
    assert_close(values(before.weights), on_one_device("clip_by_global_norm")[:4], tolerance=0)


def test_each_replica_remembers_its_own_norms_before_the_reduction(mirrored2):
    with mirrored2.scope():
        model = trained([clip.clip_by_percentile(50.0, window=4, when="before")])
    (seen,) = [v for v in model.optimizer.variables if v.path.endswith("seen")]
    assert float(seen.numpy()) == 6.0
    assert all(np.isfinite(w).all() for w in values(model.weights))


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras under NumPy 2
def test_what_clippers_remember_is_saved_with_the_optimizer(mirrored2):
    rules = [clip.clip_by_percentile(30.0, window=3)]
    with mirrored2.scope():
        model = trained(rules)
    remembered = {v.name: v.numpy() for v in model.optimizer.variables if "clipper" in v.name}
    assert len(remembered) == 2
    store = {}
    model.optimizer.save_own_variables(store)
    fresh, _, _ = dense(clip.attach(SGD(0.3), *rules))
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.optimizer.load_own_variables(store)
    for variable in fresh.optimizer.variables:
        if variable.name in remembered:
            assert (variable.numpy() == remembered[variable.name]).all()


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras under NumPy 2
def test_clippers_after_loading_as_the_docs_say(tmp_path):
    rules = [clip.clip_by_percentile(30.0, window=3)]
    model = trained(rules)
    model.save_weights(tmp_path / "m.weights.h5")
    fresh, _, _ = dense(clip.attach(SGD(0.3), *rules))
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(tmp_path / "m.weights.h5")
    for got, expected in zip(fresh.optimizer.variables, model.optimizer.variables, strict=True):
        assert (got.numpy() == expected.numpy()).all()

    model, x, y = dense(SGD(1.0))
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    before = values(loaded.weights)
    clip.attach(loaded.optimizer, clip.clip_by_value(1e-4))
    loaded.fit(x, y, batch_size=len(x), epochs=1, verbose=0)
    moved = [abs(a - b).max() for a, b in zip(values(loaded.weights), before, strict=True)]
    assert 0 < max(moved) <= 1.01e-4


def test_a_second_call_for_one_optimizer_is_refused():
    optimizer = clip.attach(SGD(), clip.clip_by_value(1.0))
    with pytest.raises(ConfigurationError, match="a second time"):
        clip.attach(optimizer, clip.clip_by_value(2.0))
    with pytest.raises(ConfigurationError, match="a second time"):
        clip.attach(keras.optimizers.LossScaleOptimizer(optimizer), clip.clip_by_value(2.0))


@pytest.mark.parametrize("wrap", [lambda o: o, keras.optimizers.LossScaleOptimizer])
def test_a_pattern_that_matches_nothing_is_refused_when_the_optimizer_is_built(wrap, mirrored2):
    with mirrored2.scope():
        optimizer = clip.attach(wrap(SGD()), clip.per_layer({"*/nothing": clip.clip_by_value(1.0)}))
        model = small_model(optimizer)
        with pytest.raises(ConfigurationError, match=r"'\*/nothing'.*kernel"):
            optimizer.build(model.trainable_variables)
        with pytest.raises(ConfigurationError, match=r"'\*/nothing'.*kernel"):
            phalanx.fit(model, features(8), targets(8), verbose=0)


def test_a_pattern_that_matches_nothing_is_refused_at_once_for_a_built_optimizer():
    model = small_model(SGD())
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ConfigurationError, match=r"'\*/nothing'"):
        clip.attach(model.optimizer, clip.per_layer({"*/nothing": clip.clip_by_value(1.0)}))


def several(when):
    """A MultiOptimizer, both of whose optimizers clip; and of its own it can clip nothing."""
    parts = [
        clip.attach(kind(0.1), clip.clip_by_global_norm(0.02, when=when)) for kind in (SGD, Adam)
    ]
    mapped = keras.optimizers.OptimizerMap(parts[0], {".*/bias": parts[1]})
    return keras.optimizers.MultiOptimizer(mapped)


@needs_multi_optimizer
def test_the_optimizers_of_a_multi_optimizer_clip_the_total(mirrored2):
    x, y = features(19), targets(19)
    expected = small_model(several("after"))
    expected.fit(x, y, **FIT)
    with mirrored2.scope():
        model = small_model(several("after"))
    phalanx.fit(model, x, y, **FIT)
    assert_close(everything(model), everything(expected))


@pytest.mark.full
@needs_multi_optimizer
def test_the_optimizers_of_a_multi_optimizer_clip_before_too(mirrored2):
    x = np.repeat(features(8), 2, axis=0)  # both replicas hold the same rows
    x, y = np.concatenate([x[::2], x[::2]]), np.concatenate([targets(8), targets(8)])
    expected = small_model(several("after"))
    expected.fit(x, y, **{**FIT, "batch_size": 16})
    with mirrored2.scope():
        model = small_model(several("before"))
    phalanx.fit(model, x, y, **{**FIT, "batch_size": 16})
    assert_close(everything(model), everything(expected))


@needs_multi_optimizer
def test_a_multi_optimizer_itself_is_refused():
    mapped = keras.optimizers.OptimizerMap(SGD(0.1))
    with pytest.raises(ConfigurationError, match="MultiOptimizer"):
        clip.attach(keras.optimizers.MultiOptimizer(mapped), clip.clip_by_value(1.0))
