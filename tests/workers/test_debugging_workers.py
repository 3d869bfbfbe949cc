"""Bugs planted on one worker of two, each found by name."""

import functools
import json
import logging

import keras
import numpy as np
import pytest

from phalanx.testing import run_workers

NOW = {"plain", "float16", "by design", "weight", "weight, raise", "rounding"}
"""The bugs that `make test` plants; `make test-full` plants all others as well."""

ALL = NOW | {
    "several steps a call", "compiled", "nothing", "by default", "slot", "off", "chief decides",
    "begin",
}  # fmt: skip


def planted(directory, rank, wanted):
    """The planted bugs that are wanted, in one group; what each worker found of it, as JSON."""
    from unittest import mock

    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.callbacks import ReplicaConsistencyCheck
    from phalanx.errors import NonFiniteError, WorkerMismatchError
    from phalanx.training.nonfinite_capture import capture_dir

    found = {}
    to = capture_dir()

    def model_of(**options):
        keras.utils.set_random_seed(1)
        layers = keras.layers
        dtype = options.pop("dtype", "float32")
        activation = options.pop("activation", "relu")  # on some CPUs max(NaN, 0) is 0
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(8, name="first", activation=activation, dtype=dtype),
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

    def batchnorm_over(*, all_rows):
        """As --sync-batchnorm or --no-sync-batchnorm, which XLA can compile."""
        switch = "phalanx.training.step_function.syncs_batchnorm"
        return mock.patch(switch, return_value=all_rows)

    for name, options in (
        ("plain", {}),
        ("several steps a call", {"steps_per_execution": 4}),
        ("compiled", {"jit_compile": True, "steps_per_execution": 4}),
    ):
        if name not in wanted:
            continue
        kept(name)
        model = model_of(activation="tanh", **options)
        with batchnorm_over(all_rows=name != "compiled"), pytest.raises(NonFiniteError) as caught:
            phalanx.fit(model, *bad_data(np.nan), **fit)
        found[name] = str(caught.value)
        found[f"{name}: weights"] = bool(np.isfinite(model.get_weights()[0]).all())

    if "float16" in wanted:
        kept("float16")
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8)
        model = model_of(dtype="mixed_float16", optimizer=scaled)
        phalanx.fit(model, *bad_data(3e5), **fit)
    to.folder = None

    def alone(change, **options):
        """Fit with `change` made on worker 1 alone; what was said."""
        output = []

        class Handler(logging.Handler):
            def emit(self, record):
                output.append(record.getMessage())

        class Plant(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if rank == 1 and batch == 2:
                    change(self.model)

        names = ("phalanx.training.replica_consistency", "phalanx.training.broadcast_variables")
        logs, handler = [logging.getLogger(name) for name in names], Handler()
        for log in logs:
            log.addHandler(handler)
            log.setLevel(logging.INFO)
        callbacks = [Plant(), *options.pop("callbacks", [])]
        try:
            phalanx.fit(options.pop("model", None) or model_of(), *data(), **fit,
                        callbacks=callbacks)  # fmt: skip
        except WorkerMismatchError as error:
            output.append(f"raised: {error}")
        finally:
            for log in logs:
                log.removeHandler(handler)
        return output

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

    def checks(**options):
        return [ReplicaConsistencyCheck(every_steps=2, max_overhead=None, **options)]

    def rounding(model):
        own(model.get_layer("head").kernel).assign(own(model.get_layer("head").kernel) * (1 + 1e-6))

    def nothing(model):
        pass

    differences = {
        "nothing": (nothing, checks()),
        "by design": (statistics, checks()),
        "weight": (kernel, checks()),
        "weight, raise": (kernel, checks(on_difference="raise")),
        "by default": (kernel, []),
        "slot": (slot, checks()),
        "off": (kernel, [ReplicaConsistencyCheck(every_steps=None)]),
        "rounding": (rounding, checks()),
        "chief decides": (kernel, checks(on_difference="warn" if rank else "raise")),
    }
    for name in sorted(differences.keys() & set(wanted)):
        change, callbacks = differences[name]
        with batchnorm_over(all_rows=name != "by design"):
            found[name] = alone(change, callbacks=callbacks)
    if "begin" in wanted:
        model = model_of()
        if rank == 1:
            kernel(model)
        found["begin"] = alone(nothing, model=model)
    return json.dumps(found)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(name)`: the directory, and what each worker found, of the bugs planted with it."""

    def on_each(directory, wanted):
        import os

        rank = json.loads(os.environ["PHALANX_WORKER_SPEC"])["rank"]
        return planted(directory, rank, wanted)

    @functools.cache
    def workers(now):
        directory = tmp_path_factory.mktemp("planted")
        wanted = sorted(NOW if now else ALL - NOW)
        found = run_workers(on_each, 2, args=(directory, wanted), deadline=600)
        return directory, [json.loads(each) for each in found]

    return lambda name: workers(name in NOW)


def replay(directory):
    from phalanx.checkpoint.step_capture import captures_in, read_captured
    from phalanx.diagnostics.debug.replay_main import model_of, replay_until_bad

    kept = [read_captured(path) for path in captures_in(directory)]
    try:
        about, found = replay_until_bad(model_of(kept[0]), kept)[-1]
        return f"worker-{about.rank}-step-{about.step}", about, found
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.full
@pytest.mark.parametrize("name", ["plain", "several steps a call", "compiled"])
def test_the_batch_of_one_worker_is_kept_there_and_its_sample_named(name, run):
    directory, workers = run(name)
    all_rows_are_normalized = name != "compiled"
    origin = "every worker had them" if all_rows_are_normalized else "it came from worker 1"
    for found in workers:
        assert f"at step 2; {origin}" in found[name]
        assert found[f"{name}: weights"], "the weights stay those before the step"
    kept, about, found = replay(directory / name)
    assert kept == "worker-1-step-2"
    assert (about.rank, about.total, about.replicas) == (1, 8, 2)
    assert (found.phase, found.cause.kind, found.layer) == ("data", "data", "first")
    (sample,) = found.samples
    assert (sample.index, sample.in_batch, sample.row) == (1, 5, 13)


def test_a_layer_that_overflows_in_float16_is_found_though_the_optimizer_leaves_it_out(run):
    kept, about, found = replay(run("float16")[0] / "float16")
    assert kept == "worker-1-step-2"
    assert about.policy == "watch"
    assert (found.phase, found.dtype, found.cause.kind) == ("forward", "float16", "float16")
    assert found.layer == "first"
    assert [s.row for s in found.samples] == [13]


def test_a_variable_changed_on_one_worker_is_named_with_step_and_size(run):
    chief, other = run("weight")[1]
    (output,) = chief["weight"]
    assert "differ after step 4: m/head/kernel on worker 1 is not that of worker 0" in output
    assert "in 1 of 8 entries" in output
    assert "They were equal at step 2." in output
    assert other["weight"] == []
    for found in (chief, other):
        (raised,) = found["weight, raise"]
        assert raised.startswith("raised: Replicas that should hold the same differ after step 4")


@pytest.mark.full
def test_the_chief_decides_what_a_difference_does(run):
    for found, raised in zip(run("chief decides")[1], run("weight, raise")[1], strict=True):
        assert found["chief decides"] == raised["weight, raise"]


@pytest.mark.full
def test_a_short_training_is_compared_at_its_end(run):
    (output,) = run("by default")[1][0]["by default"]
    assert "differ after step 8: m/" in output
    assert "They were equal at step 0." in output


@pytest.mark.full
def test_optimizer_state_is_compared_too(run):
    (output,) = run("slot")[1][0]["slot"]
    assert "on worker 1 is not that of worker 0" in output


def test_what_differs_by_design_or_by_rounding_is_no_difference(run):
    for found in run("by design")[1]:
        assert found["by design"] == []
    (output,) = run("rounding")[1][0]["rounding"]
    assert "by rounding" in output


@pytest.mark.full
@pytest.mark.parametrize("name", ["nothing", "off"])
def test_nothing_is_said(name, run):
    assert [found[name] for found in run(name)[1]] == [[], []]


@pytest.mark.full
def test_workers_that_begin_with_different_weights_are_reported(run):
    (output,) = run("begin")[1][0]["begin"]
    assert "different values of m/head/kernel: worker 1 differs" in output
