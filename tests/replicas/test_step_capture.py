"""The first step that goes wrong is kept, however the steps are run."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import features, small_model, targets

import phalanx
from phalanx import clip
from phalanx.callbacks import GradientLogger
from phalanx.checkpoint.step_capture import captures_in, read_captured
from phalanx.errors import NonFiniteError
from phalanx.training.nonfinite_capture import capture_dir

FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}
ROWS = 24
BAD = 8 + 5  # in the second batch, among the rows of replica 1 of 2


@pytest.fixture
def run(tmp_path):
    """A run's directory, to keep steps in."""
    to = capture_dir()
    to.folder, to.left, most = tmp_path / "captures", 1, to.most_bytes
    yield tmp_path
    to.folder, to.left, to.most_bytes = None, 1, most


def data(value=np.nan):
    x = features(ROWS)
    x[BAD, 1] = value
    return x, targets(ROWS)


def captured_in(run):
    (directory,) = captures_in(run)
    return read_captured(directory)


CASES = {
    "one by one": ({}, []),
    "several in a call": ({"steps_per_execution": 3}, []),
    "eagerly": ({"run_eagerly": True}, []),
    "compiled": ({"jit_compile": True}, []),
    "looked at": ({}, [{"every_n_steps": 1, "max_overhead": None}]),
}


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=() if case in ("several in a call", "looked at") else pytest.mark.full
        )
        for case in CASES
    ],
)
def test_batch_and_weights_before_the_step_are_kept(case, replicas, run, request):
    options, looks = CASES[case]
    strategy = (
        request.getfixturevalue("mirrored2") if replicas == 2 else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = small_model(keras.optimizers.SGD(0.1, momentum=0.9), **options)
        expected = small_model(keras.optimizers.SGD(0.1, momentum=0.9), **options)
    expected.set_weights(model.get_weights())
    x, y = data()
    callbacks = [GradientLogger(log_dir=run / "logs", **look) for look in looks]
    with pytest.raises(NonFiniteError, match=r"at step 2;.*phalanx debug replay"):
        phalanx.fit(model, x, y, callbacks=callbacks, **FIT)
    capture_dir().folder = None
    phalanx.fit(expected, x[:8], y[:8], **FIT)
    kept = captured_in(run)
    assert (kept.about.step, kept.about.total, kept.about.replicas) == (2, 8, replicas)
    assert [part.is_bad for part in kept.about.parts] == [False, True][-replicas:]
    assert sum((part.rows for part in kept.about.parts), ()) == tuple(range(8, 16))
    np.testing.assert_array_equal(np.concatenate([b[0] for b in kept.batches]), x[8:16])
    np.testing.assert_array_equal(np.concatenate([b[1] for b in kept.batches]), y[8:16])
    for name, weight in zip(kept.weights, expected.weights, strict=False):
        np.testing.assert_allclose(kept.weights[name], weight.numpy(), rtol=1e-6, err_msg=name)
    for weight, other in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), other.numpy(), rtol=1e-6)


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_a_training_that_continues_keeps_one_step(policy, run, mirrored2):
    with mirrored2.scope():
        model = small_model(clip.attach(keras.optimizers.SGD(0.1), on_nonfinite=policy))
    x, y = data()
    before = [w.numpy() for w in model.weights]
    phalanx.fit(model, x[8:], y[8:], **FIT)
    phalanx.fit(model, x, y, **FIT)
    kept = captured_in(run)
    assert (kept.about.step, kept.about.policy) == (1, policy)
    for array, weight in zip(kept.weights.values(), before, strict=True):
        np.testing.assert_array_equal(array, weight)


def test_a_loss_that_is_not_finite_is_kept_under_loss_scaling(run, mirrored2):
    with mirrored2.scope():
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64)
        model = small_model(scaled)
    phalanx.fit(model, *data(), **FIT)
    kept = captured_in(run)
    assert (kept.about.step, kept.about.policy, kept.about.loss_scale) == (2, "watch", 64.0)
    assert [part.is_bad for part in kept.about.parts] == [False, True]


def test_what_is_too_large_is_not_kept(run, caplog):
    capture_dir().most_bytes = 100
    with pytest.raises(NonFiniteError):
        phalanx.fit(small_model(keras.optimizers.SGD(0.1)), *data(), **FIT)
    assert captures_in(run) == []


def test_a_disk_that_refuses_ends_nothing_else(run):
    (run / "captures").write_text("in the way")
    with pytest.raises(NonFiniteError, match="at step 2"):
        phalanx.fit(small_model(keras.optimizers.SGD(0.1)), *data(), **FIT)
