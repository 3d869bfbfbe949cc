"""Which worker keeps a step that was not finite, what it writes of it, and what it leaves."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.checkpoint.step_capture import captures_in, read_captured
from phalanx.distributed.topology import ReplicaTopology
from phalanx.gradients.nonfinite import NonFiniteGuard
from phalanx.training import nonfinite_capture
from phalanx.training.nonfinite_capture import CaptureDir, NonFiniteCapture, capture_hint

TOTAL = 10  # rows of the global batch: of four replicas, 0 and 1 have three, 2 and 3 have two
SECOND = ReplicaTopology(first=2, local=2, total=4)
KERNEL = "m/head/kernel"


class OfNoConfig(keras.layers.Layer):
    """A layer that Keras cannot write down."""

    def get_config(self):
        raise RuntimeError("no way to write it down")


def kept_by(folder, *, topology=SECOND, policy="raise", layers=(), **options):
    """What keeps steps of a small model on one worker, there."""
    head = keras.layers.Dense(1, name="head")
    model = keras.Sequential([keras.Input((4,)), *layers, head], name="m")
    model.compile("sgd", "mse")
    health = NonFiniteGuard(tf.distribute.get_strategy(), policy)
    health.paths = ("m/first/bias", KERNEL)
    return NonFiniteCapture(model, topology, health, CaptureDir(folder=folder, **options))


def keep(kept, bad, *, can_be=None, step=6, weight=True, of=(0, 1)):
    """Step `step` went wrong on the replicas `bad`, or where it `can_be` so.

    This worker's replicas say so in the order `of`; each has two rows.
    """
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    y, w = np.zeros((2, 1), np.float32), np.ones(2, np.float32) if weight else None
    for i in of:
        replica = kept._topology.first + i
        part = (np.int64(2), (x[2 * i : 2 * i + 2], y, w))
        like = tf.nest.map_structure(lambda each: each is not None, part)
        flat = [each for each in tf.nest.flatten(part) if each is not None]
        flags = replica in bad, replica in (bad if can_be is None else can_be)
        given = [np.int64(TOTAL), np.int64(step), np.int64(1), *map(np.bool_, flags)]
        assert kept._keep(replica, like, *given, *flat)


def streaming(kept, *, trained, steps, places=True):
    """Batches of 10 rows in a row, numbered in the data from 0."""
    source = SimpleNamespace(**({"where": "row {}".format} if places else {}))
    kept.stream = SimpleNamespace(rows=lambda i: np.arange(10 * i, 10 * i + 10), source=source)
    kept.running = (trained, steps)


def only(folder):
    (directory,) = captures_in(folder)
    return read_captured(directory)


def test_a_worker_keeps_what_its_own_replicas_had(tmp_path):
    kept = kept_by(tmp_path / "captures")
    keep(kept, [3])
    about = only(tmp_path).about
    assert kept.directory == tmp_path / "captures" / "worker-1-step-7"
    assert (about.rank, about.step, about.replicas, about.total) == (1, 7, 4, TOTAL)
    assert (about.variable, about.policy, about.model) == (KERNEL, "raise", "")
    assert [(p.replica, p.start, p.count, p.is_bad) for p in about.parts] == [
        (2, 6, 2, False), (3, 8, 2, True),
    ]  # fmt: skip
    assert [p.rows for p in about.parts] == [(), ()]


@pytest.mark.parametrize(("bad", "can_be", "first", "is_kept"), [
    ([0], [0], 0, True), ([0], [0], 2, False), ([0, 2], [0, 2], 2, True),
    ([], [0, 3], 0, True), ([], [0, 3], 2, True), ([], [0], 2, False),
])  # fmt: skip
def test_it_is_kept_where_it_came_from_if_in_the_sum_alone(bad, can_be, first, is_kept, tmp_path):
    topology = ReplicaTopology(first=first, local=2, total=4)
    keep(kept_by(tmp_path / "captures", topology=topology), bad, can_be=can_be)
    assert bool(captures_in(tmp_path)) == is_kept


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_it_is_kept_once_all_replicas_have_reported_it(order, tmp_path):
    kept = kept_by(tmp_path / "captures")
    keep(kept, [2], of=order[1:], step=5)
    keep(kept, [2], of=order[:1])
    assert captures_in(tmp_path) == [], "they report different steps"
    keep(kept, [2], of=order[1:])
    captured = only(tmp_path)
    assert captured.about.step == 7
    assert [part.is_bad for part in captured.about.parts] == [True, False]
    np.testing.assert_array_equal(captured.batches[1][0][0], np.arange(8, 12))


def test_no_more_are_kept_than_asked_for(tmp_path):
    kept = kept_by(tmp_path / "captures", left=2)
    for step in (3, 4, 5):
        keep(kept, [2], step=step)
    assert [path.name for path in captures_in(tmp_path)] == ["worker-1-step-4", "worker-1-step-5"]
    keep(kept_by(None), [2])


def test_batch_and_weights_together_are_bounded(tmp_path, caplog):
    x, y, w, weights = 4 * 4 * 4, 2 * 2 * 4, 2 * 2 * 4, 5 * 4
    most = x + y + w + weights
    keep(kept_by(tmp_path / "captures", most_bytes=most - 1), [2])
    assert captures_in(tmp_path) == []
    keep(kept_by(tmp_path / "captures", most_bytes=most), [2])
    assert len(captures_in(tmp_path)) == 1


def test_what_is_not_there_comes_back_as_none(tmp_path):
    keep(kept_by(tmp_path / "captures"), [2], weight=False)
    first, second = only(tmp_path).batches
    assert (first[2], second[2]) == (None, None)
    np.testing.assert_array_equal(second[0], np.arange(8, 16).reshape(2, 4))


@pytest.mark.parametrize(
    ("trained", "steps", "first"), [(6, 1, 0), (4, 4, 20)], ids=["one a call", "several a call"]
)
def test_samples_are_those_of_the_step_within_the_call(trained, steps, first, tmp_path):
    kept = kept_by(tmp_path / "captures")
    streaming(kept, trained=trained, steps=steps)
    keep(kept, [2])
    parts = only(tmp_path).about.parts
    assert [part.rows for part in parts] == [(first + 6, first + 7), (first + 8, first + 9)]
    assert parts[1].places == (f"row {first + 8}", f"row {first + 9}")


@pytest.mark.parametrize(("steps", "is_known"), [(1, True), (4, False)])
def test_a_loss_scale_counts_no_step_that_it_left_out(steps, is_known, tmp_path):
    """So which of several steps a call it was is not known, nor then are its samples."""
    kept = kept_by(tmp_path / "captures", policy="watch")
    streaming(kept, trained=4, steps=steps, places=False)
    keep(kept, [2])
    about = only(tmp_path).about
    assert about.variable == ""
    assert [part.rows for part in about.parts] == ([(6, 7), (8, 9)] if is_known else [(), ()])
    assert [part.places for part in about.parts] == [(), ()]


def test_a_model_that_cannot_be_written_down_is_kept_without(tmp_path):
    keep(kept_by(tmp_path / "captures", layers=[OfNoConfig()]), [2])
    captured = only(tmp_path)
    assert captured.config is None
    assert "no way to write it down" in captured.about.model


def test_batches_of_sparse_tensors_are_left():
    kept = kept_by(None)
    sparse = tf.sparse.from_dense([[1.0, 0.0]])
    part = (tf.constant(1), (sparse, tf.constant([[1.0]])))
    assert not kept.keep(2, tf.constant(1), part, 0, 0, tf.constant(True), tf.constant(True))


def test_where_it_is_kept_is_reported_that_step_alone(tmp_path, monkeypatch):
    topology = CaptureDir(folder=tmp_path / "run" / "captures")
    monkeypatch.setattr(nonfinite_capture, "_here", topology)
    assert capture_hint(7) == ""
    keep(kept_by(topology.folder), [2])
    assert f"`phalanx debug replay {tmp_path / 'run'}`" in capture_hint(7)
    assert capture_hint(8) == ""
