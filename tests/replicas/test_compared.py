"""With `--debug`, workers exchange the signatures of what they are about to all-reduce."""

import pytest
import tensorflow as tf

from phalanx.distributed.desync import check
from phalanx.distributed.desync.check import Verdict
from phalanx.gradients.all_reduce import reduce_sum
from phalanx.gradients.collective_signature import compared


class Agreeing:
    """A meeting in which all agree; remembers what was passed."""

    def __init__(self):
        self.passed = []

    def exchange_signatures(self, passed):
        self.passed.append(passed)
        return Verdict()

    @property
    def reported(self):
        return [
            (each.what, [f"{tensor.name} {tensor}" for tensor in each.tensors])
            for each in self.passed
        ]


@pytest.fixture
def meeting(monkeypatch):
    agreeing = Agreeing()
    monkeypatch.setattr(check, "_current", [check.Check(agreeing, workers=1)])
    return agreeing


def replica_number():
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def add_up():
    rows = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([0, 1]), tf.constant([9, 4]))
    reduce_sum([tf.ones([3, 2]), rows, None], ["kernel", "table", "bias"], what="gradients")


def test_one_replica_speaks_for_its_worker(meeting, mirrored2):
    mirrored2.run(add_up)
    reported = ["kernel (3, 2) float32", "table (any, 4) float32", "bias no gradient"]
    assert meeting.reported == [("gradients", reported)]


def test_where_each_replica_is_a_worker_each_speaks(meeting, monkeypatch, mirrored2):
    monkeypatch.setattr(check, "_current", [check.Check(meeting, workers=2)])
    mirrored2.run(add_up)
    assert len(meeting.reported) == 2


def test_a_graph_compares_nothing(meeting, mirrored2):
    tf.function(lambda: mirrored2.run(add_up))()
    assert meeting.reported == []


def test_workers_may_differ_in_the_dimension_they_gather_along(meeting, mirrored2):
    def gather():
        with compared("rows", [tf.ones([3, 2]), tf.constant(1)], free_axis=-1):
            pass

    mirrored2.run(gather)
    assert meeting.reported == [("rows", ["tensor 1 (3, any) float32", "tensor 2 () int32"])]


def test_what_is_added_up_between_steps_belongs_to_the_last(meeting, mirrored2):
    mirrored2.run(lambda: reduce_sum([tf.ones([2])]))
    mirrored2.run(lambda: reduce_sum([tf.ones([2])], in_step=False))
    under_way, ended = (each.step for each in meeting.passed)
    assert ended == under_way - 1


def test_what_belongs_to_a_comparison_is_not_compared_again(meeting, mirrored2):
    def nested():
        with compared("all", [tf.ones([2])]):
            with compared("a part", [tf.ones([1])]):
                pass
            check.before_collective("a row")
        if replica_number() == 0:
            check.before_collective("the next row")

    mirrored2.run(nested)
    assert [what for what, _ in meeting.reported] == ["all", "the next row"]
