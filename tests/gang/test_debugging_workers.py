"""Bugs planted on one worker of two, each found by name."""

import json
import logging

import keras
import numpy as np
import pytest

from phalanx.testing import run_gang


def planted(directory, rank):
    """Every planted bug in one gang; what each worker found of it, as JSON."""
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.callbacks import ReplicaCheck
    from phalanx.errors import DisagreementError, NonFiniteError
    from phalanx.training.keeping_place import keeping_place

    found = {}
    to = keeping_place()

    def model_of(**options):
        keras.utils.set_random_seed(1)
        layers = keras.layers
        dtype = options.pop("dtype", "float32")
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(8, name="first", activation="relu", dtype=dtype),
                layers.BatchNormalization(name="norm", dtype=dtype),
                layers.Dropout(0.2, seed=3, dtype=dtype),
                layers.Dense(1, name="head", dtype="float32"),
            ],
            name="m",
        )
        optimizer = options.pop("optimizer", None) or keras.optimizers.Adam(0.01)
        model.compile(optimizer, "mse", **options)
        return model

    def data(rows=64):
        x = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
        return x, x.sum(axis=1, keepdims=True)

    def bad_data(value):
        x, y = data()
        x[13, 2] = value  # the second batch of 8, row 5: the second worker's
        return x, y

    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}

    def kept(name):
        to.folder, to.left = directory / name / "captures", 1
        return name

    for name, options in (
        ("plain", {}),
        ("several steps a call", {"steps_per_execution": 4}),
        ("compiled", {"jit_compile": True, "steps_per_execution": 4}),
    ):
        kept(name)
        model = model_of(**options)
        with pytest.raises(NonFiniteError) as caught:
            phalanx.fit(model, *bad_data(np.nan), **fit)
        found[name] = str(caught.value)
        found[f"{name}: weights"] = bool(np.isfinite(model.get_weights()[0]).all())

    kept("float16")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8)
    model = model_of(dtype="mixed_float16", optimizer=scaled)
    phalanx.fit(model, *bad_data(3e5), **fit)
    to.folder = None

    def alone(change, **options):
        """Fit with `change` made on worker 1 alone; what was said."""
        said = []

        class Handler(logging.Handler):
            def emit(self, record):
                said.append(record.getMessage())

        class Plant(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if rank == 1 and batch == 2:
                    change(self.model)

        names = ("phalanx.training.replica_check", "phalanx.training.begin_alike")
        logs, handler = [logging.getLogger(name) for name in names], Handler()
        for log in logs:
            log.addHandler(handler)
            log.setLevel(logging.INFO)
        callbacks = [Plant(), *options.pop("callbacks", [])]
        try:
            phalanx.fit(options.pop("model", None) or model_of(), *data(), **fit,
                        callbacks=callbacks)  # fmt: skip
        except DisagreementError as error:
            said.append(f"raised: {error}")
        finally:
            for log in logs:
                log.removeHandler(handler)
        return said

    def own(variable):
        value = variable.value
        return value.values[0] if hasattr(value, "values") else value

    def kernel(model):
        copy = own(model.get_layer("head").kernel)
        copy.assign(tf.tensor_scatter_nd_add(copy, [[3, 0]], [0.5]))

    def slot(model):
        own(model.optimizer.variables[3]).assign_add(
            tf.ones_like(own(model.optimizer.variables[3]))
        )

    def statistics(model):
        own(model.get_layer("norm").moving_mean).assign(np.ones(8))

    every2 = {"every_steps": 2, "max_overhead": None}
    found["nothing"] = alone(lambda model: None, callbacks=[ReplicaCheck(**every2)])
    found["by design"] = alone(statistics, callbacks=[ReplicaCheck(**every2)])
    found["weight"] = alone(kernel, callbacks=[ReplicaCheck(**every2)])
    found["weight, raise"] = alone(
        kernel, callbacks=[ReplicaCheck(**every2, on_difference="raise")]
    )
    found["by default"] = alone(kernel)
    found["slot"] = alone(slot, callbacks=[ReplicaCheck(**every2)])
    found["off"] = alone(kernel, callbacks=[ReplicaCheck(every_steps=None)])
    found["rounding"] = alone(
        lambda model: own(model.get_layer("head").kernel).assign(
            own(model.get_layer("head").kernel) * (1 + 1e-6)
        ),
        callbacks=[ReplicaCheck(**every2)],
    )
    found["chief decides"] = alone(
        kernel, callbacks=[ReplicaCheck(**every2, on_difference="warn" if rank else "raise")]
    )
    model = model_of()
    if rank == 1:
        kernel(model)
    found["begin"] = alone(lambda model: None, model=model)
    return json.dumps(found)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("planted")

    def on_each(directory):
        import os

        rank = json.loads(os.environ["PHALANX_WORKER"])["rank"]
        return planted(directory, rank)

    workers = [json.loads(found) for found in run_gang(on_each, 2, args=(directory,), deadline=600)]
    return directory, workers


def replay(directory):
    from phalanx.debug.models import model_of
    from phalanx.debug.replay import Replay
    from phalanx.state.captured import captures_in, read_captured

    (kept,) = captures_in(directory)
    captured = read_captured(kept)
    try:
        return kept.name, captured.about, Replay(model_of(captured), captured).run()
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        pytest.param("several steps a call", marks=pytest.mark.full),
        pytest.param("compiled", marks=pytest.mark.full),
    ],
)
def test_the_batch_of_one_worker_is_kept_there_and_its_sample_named(name, run):
    directory, workers = run
    for found in workers:
        assert "at step 2; it came from worker 1" in found[name]
        assert found[f"{name}: weights"], "the weights stay those before the step"
    kept, about, found = replay(directory / name)
    assert kept == "worker-1-step-2"
    assert (about.rank, about.total, about.replicas) == (1, 8, 2)
    assert (found.phase, found.cause.kind, found.layer) == ("data", "data", "first")
    (sample,) = found.samples
    assert (sample.index, sample.in_batch, sample.row) == (1, 5, 13)


def test_a_layer_that_overflows_in_float16_is_found_though_the_optimizer_leaves_it_out(run):
    kept, about, found = replay(run[0] / "float16")
    assert kept == "worker-1-step-2"
    assert about.policy == "watch"
    assert (found.phase, found.dtype, found.cause.kind) == ("forward", "float16", "float16")
    assert found.layer == "first"
    assert [s.row for s in found.samples] == [13]


def test_a_variable_changed_on_one_worker_is_named_with_step_and_size(run):
    chief, other = run[1]
    (said,) = chief["weight"]
    assert "differ after step 4: m/head/kernel on worker 1 is not that of worker 0" in said
    assert "in 1 of 8 entries" in said
    assert "They were alike at step 2." in said
    assert other["weight"] == []
    for found in (chief, other):
        (raised,) = found["weight, raise"]
        assert raised.startswith("raised: Replicas that should hold the same differ after step 4")
        assert found["chief decides"] == found["weight, raise"]


def test_a_short_training_is_compared_at_its_end(run):
    (said,) = run[1][0]["by default"]
    assert "differ after step 8: m/" in said
    assert "They were alike at step 0." in said


def test_optimizer_state_is_compared_too(run):
    (said,) = run[1][0]["slot"]
    assert "on worker 1 is not that of worker 0" in said


def test_what_differs_by_design_or_by_rounding_is_no_difference(run):
    for found in run[1]:
        assert found["nothing"] == found["by design"] == found["off"] == []
    (said,) = run[1][0]["rounding"]
    assert "by rounding" in said


def test_workers_that_begin_with_different_weights_are_told(run):
    (said,) = run[1][0]["begin"]
    assert "different values of m/head/kernel: worker 1 differs" in said
