"""What workers do where they do not see the same checkpoints."""

import os

import pytest

from phalanx.testing import WorkerGroupFailedError


def train(directory, *, epochs=2):
    """The step where training began, and where it ended."""
    import keras
    import numpy as np

    import phalanx
    from phalanx.callbacks import Checkpoint

    began = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            began.append(int(self.model.optimizer.iterations.numpy()))

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 2), "float32")
    keep = Checkpoint(directory, async_save=False)
    phalanx.fit(
        model, x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=[keep, Note()]
    )
    return began[:1], int(model.optimizer.iterations.numpy())


def train_apart():
    import tempfile

    return train(tempfile.mkdtemp())


def test_a_directory_of_each_worker_is_refused_before_training(pool):
    with pytest.raises(WorkerGroupFailedError) as caught:
        pool(2).run(train_apart, deadline=120)
    assert "ConfigurationError" in str(caught.value)
    assert "does not see there what it wrote" in str(caught.value)


def resume_late(directory, often):
    """Worker 1 does not see the newest checkpoint when it first looks."""
    import phalanx
    from phalanx.checkpoint.retry import RetryPolicy
    from phalanx.errors import CheckpointNotFoundError
    from phalanx.training import checkpoint_manager

    train(directory)
    real, looks = checkpoint_manager.read, []

    def read(folder, step):
        looks.append(step)
        if phalanx.rank() == 1 and len(looks) <= often:
            raise CheckpointNotFoundError("an old listing")
        return real(folder, step)

    checkpoint_manager.forget_fits()  # as in a process that begins
    checkpoint_manager.read = read
    kept, RetryPolicy.first, RetryPolicy.jitter = RetryPolicy.first, 0.01, 0.01
    try:
        return [*train(directory, epochs=3), looks]
    finally:
        checkpoint_manager.read, RetryPolicy.first = real, kept


@pytest.mark.full
def test_a_worker_whose_listing_is_old_looks_again(pool, tmp_path):
    of_each = pool(2).run(resume_late, args=[os.fspath(tmp_path), 2], deadline=300)
    assert [began for began, _, _ in of_each] == [[4], [4]]
    assert [ended for _, ended, _ in of_each] == [6, 6]
    assert [looks for _, _, looks in of_each] == [[4], [4, 4, 4]]


def train_where_worker_1_cannot_write(directory):
    """How many are saved where worker 1 writes one shard, and then not even that it failed."""
    import keras
    import numpy as np

    import phalanx
    from phalanx.callbacks import Checkpoint
    from phalanx.testing import chaos

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 2), "float32")
    fails = chaos.Chaos((chaos.FailWrites(worker=1, nth=3, times=None),))
    keep = Checkpoint(f"faulty+file://{directory}", max_retries=0)
    phalanx.fit(model, x, x[:, :1], batch_size=4, epochs=4, verbose=0, callbacks=[fails, keep])
    return len(phalanx.checkpoint.list(directory))


def test_a_worker_that_can_write_nothing_keeps_no_one_waiting(pool, tmp_path):
    assert pool(2).run(train_where_worker_1_cannot_write, args=[str(tmp_path)], deadline=60) == [
        1,
        1,
    ]
    committed = {path.parent for path in tmp_path.glob("step-*/manifest.json")}
    assert {path.parent for path in tmp_path.glob("step-*/*")} == committed


def save_where_one_fails(directory):
    """What each worker gets where the other, or itself, cannot save; then a save that succeeds."""
    import keras
    import numpy as np

    import phalanx
    from phalanx.checkpoint.writer import ShardWriter

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    raised = []

    def save(**options):
        try:
            phalanx.checkpoint.save(model, directory, step=1, max_retries=0, **options)
        except Exception as error:
            raised.append(type(error).__name__)

    save(state={"value": object()})  # of which only worker 0 finds that it is not JSON
    real = ShardWriter.store

    def store(self, share):
        if self.rank == 1:  # which cannot even leave a note
            raise OSError("no space")
        return real(self, share)

    ShardWriter.store = store
    save()
    ShardWriter.store = real
    phalanx.barrier()  # the chief removes what was written after it has agreed
    left = os.listdir(os.path.join(directory, "step-00000001"))
    save(metrics={"loss": np.float32(1.5)})
    return raised, left, phalanx.checkpoint.list(directory)[0].metrics


def test_a_save_fails_on_all_workers_or_on_none(pool, tmp_path):
    of_each = pool(2).run(save_where_one_fails, args=[str(tmp_path)], deadline=60)
    assert [raised for raised, _, _ in of_each] == [
        ["TypeError", "CheckpointError"],
        ["CheckpointError", "OSError"],
    ]
    assert [left for _, left, _ in of_each] == [[], []]
    assert of_each[0][2] == {"loss": 1.5}
