"""Global metrics in Python's log: when, and in which words."""

import logging

import pytest

from phalanx.callbacks import AggregatedLogger
from phalanx.callbacks.aggregated_logger import describe
from phalanx.callbacks.callback import DistributedContext
from phalanx.errors import ConfigurationError


def lines_of(callback, caplog, batches, epochs=1, cluster=None):
    """What is logged while hooks are called with these batch numbers in each epoch."""
    caplog.set_level("INFO")
    if cluster is not None:
        callback.cluster = cluster
    for epoch in range(epochs):
        callback.on_epoch_begin(epoch)
        for batch in batches:
            callback.on_train_batch_end(batch, {"loss": batch + 0.5})
        callback.on_epoch_end(epoch, {"loss": 9.0, "val_loss": 8.0})
    return caplog.messages


def test_a_line_every_n_steps_through_all_epochs(caplog):
    lines = lines_of(AggregatedLogger(every_n_steps=3), caplog, range(4), epochs=2)
    assert lines == [
        "epoch 1, batch 3: loss 2.5",
        "epoch 1: loss 9, val_loss 8",
        "epoch 2, batch 2: loss 1.5",
        "epoch 2: loss 9, val_loss 8",
    ]


def test_steps_that_run_together_count_all(caplog):
    lines = lines_of(AggregatedLogger(every_n_steps=4), caplog, [2, 5, 8])
    assert [line.split(":")[0] for line in lines] == ["epoch 1, batch 6", "epoch 1"]


def test_epochs_only(caplog):
    callback = AggregatedLogger(every_n_steps=None)
    assert callback.logs_every_n_steps == 0
    assert len(lines_of(callback, caplog, range(500))) == 1


def test_metrics_are_read_where_they_are_logged():
    assert AggregatedLogger(every_n_steps=7).logs_every_n_steps == 7


def test_who_has_to_take_part():
    assert AggregatedLogger().runs_on == "chief"
    assert AggregatedLogger(spread=True).runs_on == "all"


def three(rank, rows):
    return DistributedContext(rank=rank, workers=3, replicas=3, gather=lambda arrays: rows)


@pytest.mark.parametrize(("rank", "count"), [(0, 2), (1, 0)])
def test_the_chief_says_how_far_workers_are_apart(caplog, rank, count):
    callback = AggregatedLogger(every_n_steps=1, spread=True)
    callback.local_metrics = lambda: {"mae": 1.0, "loss": 2.0, "matrix": [[1.0]]}
    rows = [[[2.0, 1.0]], [[1.0, 5.0]], [[4.0, 3.0]]]  # loss and mae, by name
    lines = lines_of(callback, caplog, [0], cluster=three(rank, rows))
    assert len(lines) == count
    if count:
        assert lines[0] == "epoch 1, batch 1: loss 0.5 (1 on worker 1 to 4 on worker 2)"


def test_alone_there_is_no_spread(caplog):
    callback = AggregatedLogger(every_n_steps=None, spread=True)
    assert lines_of(callback, caplog, [])[0] == "epoch 1: loss 9, val_loss 8"


def test_a_worker_without_a_number_is_named():
    assert describe({"loss": 1.0}, {"loss": [1.0, float("nan")]}) == "loss 1 (nan on worker 1)"


def test_arrays_are_shown_as_they_are():
    assert describe({"per_class": [1.0, 2.0]}, {}) == "per_class [1.0, 2.0]"


def test_own_logger_and_level(caplog):
    caplog.set_level("DEBUG")
    logger = logging.getLogger("mine")
    callback = AggregatedLogger(every_n_steps=None, logger=logger, level=logging.DEBUG)
    callback.on_epoch_end(0, {"loss": 1.0})
    assert [(r.name, r.levelname) for r in caplog.records] == [("mine", "DEBUG")]


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_steps_that_cannot_be(value):
    with pytest.raises(ConfigurationError, match="every_n_steps must be an integer of at least 1"):
        AggregatedLogger(every_n_steps=value)
