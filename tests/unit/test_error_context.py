"""What an error in a step says of where it was raised."""

from contextlib import nullcontext

import pytest
import tensorflow as tf

from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError
from phalanx.launcher.failure import gist
from phalanx.training.error_context import annotate_errors, axis_0_explained, replica_scope
from phalanx.worker.process_exit import record_failure

GRAPH = """Graph execution error:

Detected at node replica_1/assert_positive/Assert defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
assertion failed: [the loss must be positive] [Condition x > 0 did not hold:] [x = ] [-1]
\t [[{{node replica_1/assert_positive/Assert}}]]
0 successful operations. [Op:__inference_one_step_415]"""


SEVERAL = """Graph execution error:

Detected at node 'sub' defined at (most recent call last):
    File "train.py", line 9, in <module>
      model.fit(x, y)
Node: 'sub'
2 root error(s) found.
  (0) INVALID_ARGUMENT:  Incompatible shapes: [4,2] vs. [3]
\t [[{{node sub}}]]
\t [[Mean/_3]]
  (1) INVALID_ARGUMENT:  Incompatible shapes: [4,2] vs. [3]
\t [[{{node sub}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_one_step_415]"""


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("x must be positive\nCondition x > 0 did not hold.", "x must be positive"),
        (GRAPH, "assertion failed: [the loss must be positive] [Condition x > 0 did not hold:] "
                "[x = ] [-1]"),
        ("Graph execution error:\n\nDetected at node X\nshapes differ\n\t [[{{node X}}]]",
         "shapes differ"),
        ("Exception encountered when calling Checked.call().\n\n\x1b[1mtoo wide\x1b[0m\n\nArgs",
         "too wide (calling Checked.call())"),
        ("Exception encountered when calling L.call().\n\n\x1b[1mCould not automatically infer the "
         "output shape of 'l'. Error encountered:\n\ntoo wide\x1b[0m\n\nArgs",
         "too wide (calling L.call())"),
        (SEVERAL, "Incompatible shapes: [4,2] vs. [3]"),
        (SEVERAL.partition("\n\n")[2], "Incompatible shapes: [4,2] vs. [3]"),
        ("Graph execution error:\n\n0 derived errors ignored. [Op:__inference_f_1]",
         "Graph execution error:"),
        ("", "no message"),
    ],
)  # fmt: skip
def test_the_gist(message, found):
    assert gist(message) == found


def raised(error, where, kind="train", replica=None):
    inner = nullcontext() if replica is None else replica_scope(replica)
    with pytest.raises(type(error)) as caught, annotate_errors(kind, where, 11), inner:
        raise error
    return record_failure(caught.value, rank=where.rank, now=0.0).summary


@pytest.mark.parametrize(
    ("where", "replica", "says"),
    [
        (ReplicaTopology(), 0, "ValueError: worker 0, in step 12: too wide"),
        (
            ReplicaTopology(first=1, total=2),
            1,
            "ValueError: worker 1, replica 1, in step 12: too wide",
        ),
        (
            ReplicaTopology(local=2, total=2),
            1,
            "ValueError: worker 0, replica 1, in step 12: too wide",
        ),
        (ReplicaTopology(local=2, total=2), None, "ValueError: worker 0, in step 12: too wide"),
    ],
)
def test_worker_replica_and_step_are_named(where, replica, says):
    assert raised(ValueError("too wide"), where, replica=replica) == says


def test_a_replica_is_found_in_the_names_of_a_graph():
    output = raised(ValueError(GRAPH), ReplicaTopology(first=2, local=2, total=4))
    assert output.startswith(
        "ValueError: worker 1, replica 3, in step 12: assertion failed: [the loss"
    )


def test_validation_and_predict_are_named():
    assert "in validation after step 11" in raised(ValueError("x"), ReplicaTopology(), kind="test")
    assert "in predict" in raised(ValueError("x"), ReplicaTopology(), kind="predict")


def test_errors_of_our_own_stay_as_they_are():
    error = ConfigurationError("said all")
    with (
        pytest.raises(ConfigurationError) as caught,
        annotate_errors("train", ReplicaTopology(), 11),
    ):
        raise error
    assert not hasattr(caught.value, "__notes__")


OUT_OF_BOUNDS = "slice index 1 of dimension 0 out of bounds."


@pytest.mark.parametrize(
    ("text", "total", "is_explained"),
    [(OUT_OF_BOUNDS, 2, True), (OUT_OF_BOUNDS, 1, False), ("assertion failed: [x > 0]", 2, False)],
)
def test_an_error_about_shapes_says_that_axis_0_is_cut(text, total, is_explained):
    error = tf.errors.InvalidArgumentError(None, None, text)
    with (
        pytest.raises(tf.errors.InvalidArgumentError),
        annotate_errors("train", ReplicaTopology(total=total), 11),
    ):
        raise error
    assert any("axis 0 of every tensor is cut" in note for note in error.__notes__) == is_explained


def test_what_is_cut_is_said_once_with_the_shapes_where_the_step_is_traced():
    with (
        pytest.raises(ValueError, match="dimension") as caught,
        annotate_errors("train", ReplicaTopology(total=2), 11),
        axis_0_explained(tf.zeros((2, 10, 3)), 2),
    ):
        raise ValueError(OUT_OF_BOUNDS)
    (output,) = (note for note in caught.value.__notes__ if "axis 0 of every tensor" in note)
    assert "(2, 10, 3)" in output
