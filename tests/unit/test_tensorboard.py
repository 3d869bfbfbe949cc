"""Event files: what TensorBoardRun writes is what TensorBoard's own reader finds."""

import math

import numpy as np
import pytest
import tensorflow as tf

from phalanx.callbacks.tensorboard_writer import TensorBoardRun, write_layout
from phalanx.errors import ConfigurationError
from phalanx.monitoring.tensorboard_files import read_histograms, read_layout, read_scalars

BUCKETS = np.array([[-1.0, 0.0, 3.0], [0.0, 0.5, 7.0]])
CHARTS = {"Gradients": {"Norm": ["gradients/norm.*"], "Clipped": ["clip/share"]}}


def test_scalars_and_histograms_come_back(tmp_path):
    with TensorBoardRun(tmp_path) as run:
        run.scalars(10, {"loss": 0.5, "gradients/dense/norm": np.float32(2)})
        run.scalars(20, {"loss": float("nan"), "huge": 1e300})
        run.histograms(10, {"gradients/dense": BUCKETS})
        run.histograms(2**40, {"gradients/dense": BUCKETS.tolist()})
    scalars = read_scalars(tmp_path)
    assert set(scalars) == {"loss", "gradients/dense/norm", "huge"}
    assert scalars["huge"] == [(20, math.inf)]
    assert scalars["gradients/dense/norm"] == [(10, 2.0)]
    assert scalars["loss"][0] == (10, 0.5)
    assert scalars["loss"][1][0] == 20
    assert math.isnan(scalars["loss"][1][1])
    histograms = read_histograms(tmp_path)
    assert [step for step, _ in histograms["gradients/dense"]] == [10, 2**40]
    for _, found in histograms["gradients/dense"]:
        np.testing.assert_array_equal(found, BUCKETS)


def test_many_points_all_come_back(tmp_path):
    with TensorBoardRun(tmp_path) as run:
        for step in range(1500):
            run.scalars(step, {"loss": step})
    assert read_scalars(tmp_path)["loss"] == [(step, float(step)) for step in range(1500)]


def test_what_is_flushed_can_be_read_before_the_end(tmp_path):
    with TensorBoardRun(tmp_path) as run:
        run.scalars(1, {"loss": 1.0})
        run.flush()
        assert read_scalars(tmp_path) == {"loss": [(1, 1.0)]}


def test_opening_again_appends_even_to_earlier_steps(tmp_path):
    for step in (5, 3):
        with TensorBoardRun(tmp_path) as run:
            run.scalars(step, {"loss": step})
    assert sorted(read_scalars(tmp_path)["loss"]) == [(3, 3.0), (5, 5.0)]


def test_the_layout_comes_back_and_holds_next_to_the_scalars(tmp_path):
    write_layout(tmp_path, CHARTS)
    with TensorBoardRun(tmp_path) as run:
        run.scalars(1, {"clip/share": 0.25})
        run.layout(CHARTS)
    assert read_layout(tmp_path) == CHARTS
    assert read_scalars(tmp_path) == {"clip/share": [(1, 0.25)]}


def test_the_surroundings_do_not_change_what_is_written(tmp_path, mirrored2):
    other = tf.summary.create_file_writer(str(tmp_path / "other"))

    @tf.function
    def traced():
        run.scalars(3, {"in/function": 1.0})

    with (
        TensorBoardRun(tmp_path / "run") as run,
        mirrored2.scope(),
        other.as_default(step=99),
        tf.name_scope("scope"),
        tf.summary.record_if(False),
    ):
        run.scalars(2, {"loss": 1.0})
        run.histograms(2, {"weights": BUCKETS})
        traced()
    other.close()
    scalars = read_scalars(tmp_path / "run")
    assert scalars == {"loss": [(2, 1.0)], "in/function": [(3, 1.0)]}
    assert read_histograms(tmp_path / "run")["weights"][0][0] == 2
    assert read_scalars(tmp_path / "other") == {}


def test_an_event_of_keras_is_read_too(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("epoch_loss", 0.25, step=1)
        tf.summary.histogram("kernel", [0.0, 1.0, 1.0], step=1)
    assert read_scalars(tmp_path) == {"epoch_loss": [(1, 0.25)]}
    ((_, buckets),) = read_histograms(tmp_path)["kernel"]
    assert buckets[:, 2].sum() == 3


def test_the_size_is_that_of_the_buckets(tmp_path):
    with TensorBoardRun(tmp_path) as run:
        run.histograms(1, {"weights": BUCKETS})
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 400


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ([1.0, 2.0, 3.0], r"found shape \[3\]"),
        ([[0.0, 1.0]], r"found shape \[1, 2\]"),
        ([[0.0, np.nan, 1.0]], "nan"),
        ([[0.0, 1.0, 1.0], [2.0, 1.0, 4.0]], r"found the bucket \[2.0, 1.0, 4.0\]"),
        ([[0.0, 1.0, -1.0]], r"-1.0"),
    ],
)
def test_buckets_that_are_none_are_refused(tmp_path, buckets, message):
    with TensorBoardRun(tmp_path) as run, pytest.raises(ConfigurationError, match=message):
        run.histograms(1, {"weights": buckets})


def test_after_the_end_nothing_is_written(tmp_path):
    run = TensorBoardRun(tmp_path)
    run.close()
    run.close()
    with pytest.raises(ValueError, match="closed"):
        run.scalars(1, {"loss": 1.0})


def test_a_directory_with_no_event_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        read_scalars(tmp_path)
