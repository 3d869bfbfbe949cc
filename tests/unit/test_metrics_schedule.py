"""Who looks at the logs of a batch, and at which steps metrics are read."""

import functools
import itertools

import keras
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx.callbacks
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.callback_adapters import LogSchedule
from phalanx.training.log_requirements import LogRequirements, requirements_of, uses_batch_logs
from phalanx.training.metrics_schedule import MetricsSchedule


def callback(**hooks):
    return type("Own", (keras.callbacks.Callback,), hooks)()


def on_end(hook):
    return callback(on_train_batch_end=hook)


class Callable:
    def __call__(self, batch, logs=None):
        pass


def looks(self, batch, logs=None):
    return logs["loss"]


def looks_by_another_name(self, batch, metrics=None):
    return metrics["loss"]


def looks_in_a_closure(self, batch, logs=None):
    return lambda: logs["loss"]


def looks_in_a_comprehension(self, batch, logs=None):
    return [logs[name] for name in ("loss",)]


def takes_anything(self, *args):
    pass


def takes_any_keyword(self, batch, **kwargs):
    pass


def looks_at_a_keyword_only(self, batch, *, logs=None):
    return logs


def passes_on(self, batch, logs=None):
    keras.callbacks.Callback.on_train_batch_end(self, batch, logs)


def looks_at_the_number(self, batch, logs=None):
    return batch


def looks_nowhere(self, batch, logs=None):
    pass


@pytest.mark.parametrize(
    "hook",
    [
        looks,
        looks_by_another_name,
        looks_in_a_closure,
        looks_in_a_comprehension,
        takes_anything,
        takes_any_keyword,
        looks_at_a_keyword_only,
        passes_on,
        functools.partial(looks),
        Callable(),
        print,
    ],
)
def test_hooks_that_look_or_might(hook):
    assert uses_batch_logs(on_end(hook), "train")


@pytest.mark.parametrize("hook", [looks_nowhere, looks_at_the_number])
def test_hooks_that_do_not_look(hook):
    assert not uses_batch_logs(on_end(hook), "train")


@pytest.mark.parametrize("kind", ["train", "test"])
def test_a_callback_without_hooks_does_not_look(kind):
    assert not uses_batch_logs(keras.callbacks.Callback(), kind)


def test_training_and_testing_are_distinguished():
    looker = callback(on_test_batch_end=looks)
    assert uses_batch_logs(looker, "test")
    assert not uses_batch_logs(looker, "train")
    assert not uses_batch_logs(on_end(looks), "test")


def test_the_older_name_of_the_hook_counts():
    assert uses_batch_logs(callback(on_batch_end=looks), "train")


def test_the_older_name_is_not_called_next_to_the_newer():
    both = callback(on_batch_end=looks, on_train_batch_end=looks_nowhere)
    assert not uses_batch_logs(both, "train")


def test_a_hook_set_on_the_object_counts():
    own = keras.callbacks.Callback()
    own.on_train_batch_end = lambda batch, logs: logs["loss"]
    assert uses_batch_logs(own, "train")


def test_an_older_hook_set_on_the_object_counts():
    own = keras.callbacks.Callback()
    own.on_batch_end = lambda batch, logs: logs["loss"]
    assert uses_batch_logs(own, "train")


def test_lambda_callbacks_are_looked_into():
    Lambda = keras.callbacks.LambdaCallback
    assert not uses_batch_logs(Lambda(), "train")
    assert uses_batch_logs(Lambda(on_train_batch_end=lambda batch, logs: print(logs)), "train")
    assert not uses_batch_logs(Lambda(on_train_batch_end=lambda batch, logs: batch), "train")


def test_an_inherited_hook_counts():
    parent = type("Parent", (keras.callbacks.Callback,), {"on_train_batch_end": looks})
    assert uses_batch_logs(type("Child", (parent,), {})(), "train")


def test_something_that_only_has_the_hook_counts():
    class Duck:
        def on_train_batch_end(self, batch, logs):
            return logs

    assert uses_batch_logs(Duck(), "train")


class LooksMore(keras.callbacks.TensorBoard):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)


def saving(path, **options):
    return keras.callbacks.ModelCheckpoint(str(path / "{epoch}.keras"), **options)


@pytest.mark.parametrize(
    ("make", "requests"),
    [
        (lambda _: keras.callbacks.TerminateOnNaN(), [LogSchedule(steps=1)]),
        (lambda _: keras.callbacks.History(), []),
        (lambda _: keras.callbacks.EarlyStopping(), []),
        (lambda _: keras.callbacks.ReduceLROnPlateau(), []),
        (lambda _: keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), []),
        (lambda path: keras.callbacks.CSVLogger(str(path / "log.csv")), []),
        (lambda path: keras.callbacks.BackupAndRestore(str(path), save_freq=2), []),
        (lambda _: keras.callbacks.ProgbarLogger(), []),
        (lambda path: saving(path), []),
        (lambda path: saving(path, save_freq=7), [LogSchedule(steps=7)]),
        (lambda path: keras.callbacks.TensorBoard(str(path)), []),
        (lambda path: keras.callbacks.TensorBoard(str(path), update_freq="batch"),
         [LogSchedule(steps=1, calls=True)]),
        (lambda path: keras.callbacks.TensorBoard(str(path), update_freq=5),
         [LogSchedule(steps=5, calls=True)]),
        (lambda path: LooksMore(str(path), update_freq=5), [LogSchedule(steps=1)]),
    ],
)  # fmt: skip
def test_the_callbacks_of_keras(make, requests, tmp_path):
    assert requirements_of(make(tmp_path), "train") == requests


def test_a_saver_that_has_counted_batches_saves_so_much_earlier(tmp_path):
    saver = saving(tmp_path, save_freq=7)
    saver.set_model(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
    for batch in range(3):
        saver.on_train_batch_end(batch)
    assert requirements_of(saver, "train") == [LogSchedule(steps=7, already=3)]


def test_keras_s_own_display_counts_as_progress():
    requests = LogRequirements.of([keras.callbacks.ProgbarLogger()], "train", shows_progress=False)
    assert requests == LogRequirements(shows_progress=True)


class Declares(phalanx.callbacks.Callback):
    def __init__(self, every):
        super().__init__()
        self.logs_every_n_steps = every

    def on_train_batch_end(self, batch, logs=None):
        print(logs)


@pytest.mark.parametrize(
    ("every", "requests"), [(None, [LogSchedule(steps=1)]), (0, []), (10, [LogSchedule(steps=10)])]
)
def test_a_callback_can_say_how_often_it_looks(every, requests):
    assert requirements_of(Declares(every), "train") == requests
    assert requirements_of(Declares(every), "test") == []


@pytest.mark.parametrize("every", [-1, 2.5, "epoch"])
def test_what_is_no_number_of_batches_is_refused(every):
    with pytest.raises(
        ConfigurationError, match=r"logs_every_n_steps must be a number of batches.*found"
    ):
        requirements_of(Declares(every), "train")


def test_requests_survive_the_way_to_other_workers():
    requests = LogRequirements(
        every=(LogSchedule(steps=3, already=2), LogSchedule(steps=5, calls=True))
    )
    assert LogRequirements.from_array(requests.to_array()) == requests
    shown = LogRequirements(shows_progress=True)
    assert LogRequirements.together([requests, shown, requests]) == LogRequirements(
        every=requests.every, shows_progress=True
    )


def steps_read(*requests, epochs):
    """By epoch, the steps at which metrics are read, where executions end at `epochs`."""
    cadence = MetricsSchedule(
        [],
        "train",
        shows_progress=False,
        clock=Clock(),
        everyones=lambda own: LogRequirements(every=requests),
    )
    found = []
    for ends in epochs:
        cadence.start_epoch()
        found.append([end for end in ends if cadence.is_due(end)])
    return found


def test_a_request_counts_batches_through_all_epochs():
    epochs = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    assert steps_read(LogSchedule(steps=3), epochs=epochs) == [[3], [1, 4]]
    assert steps_read(LogSchedule(steps=3, already=2), epochs=epochs) == [[1, 4], [2, 5]]
    assert steps_read(LogSchedule(steps=3), LogSchedule(steps=4), epochs=epochs) == [
        [3, 4],
        [1, 3, 4],
    ]


def test_a_request_is_granted_where_several_steps_in_one_execution_have_passed_it():
    epochs = [[4, 8, 10], [4, 8, 10]]
    assert steps_read(LogSchedule(steps=5), epochs=epochs) == [[8], [4, 10]]
    assert steps_read(LogSchedule(steps=2, calls=True), epochs=epochs) == [[8], [4, 10]]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def readings(seconds_a_step, steps, **options):
    """The steps at which a chief with such steps reads, and its peer, which takes its word."""
    clock = Clock()
    options = {"shows_progress": True, **options}
    chief = MetricsSchedule([], "train", clock=clock, **options)
    peer = MetricsSchedule([], "train", clock=lambda: 0.0, **options)
    chief.start_epoch()
    peer.start_epoch()
    read = []
    for step in range(1, steps + 1):
        clock.now += seconds_a_step
        assert chief.is_due(step) == peer.is_due(step)
        if chief.is_due(step):
            proposed = chief.propose(step)
            peer.propose(step)
            chief.agree(proposed)
            peer.agree(proposed)
            read.append(step)
    return read


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seconds=st.floats(0, 5), steps=st.integers(1, 400))
def test_chief_and_peer_read_at_the_same_steps_and_at_the_first(seconds, steps):
    assert readings(seconds, steps)[0] == 1


def test_slow_steps_are_read_each():
    assert readings(2.0, 10) == list(range(1, 11))


def test_fast_steps_are_read_twice_a_second():
    read = readings(0.01, 1000)
    assert read[:2] == [1, 2], "the second reading is the first that can measure the pace"
    gaps = [b - a for a, b in itertools.pairwise(read[1:])]
    assert all(49 <= gap <= 51 for gap in gaps)


def test_steps_too_fast_for_the_clock_are_still_read_now_and_then():
    assert readings(0.0, 20_005) == [1, 2, 10_002, 20_002]


def test_without_progress_nothing_is_read():
    assert readings(0.1, 100, shows_progress=False) == []


def test_a_callback_that_looks_has_every_step_read():
    cadence = MetricsSchedule([on_end(looks)], "train", shows_progress=False, clock=Clock())
    assert all(cadence.is_due(step) for step in range(1, 20))


def test_an_epoch_begins_with_a_reading():
    clock = Clock()
    cadence = MetricsSchedule([], "train", shows_progress=True, clock=clock)
    cadence.agree(cadence.propose(1))
    cadence.agree(5000)
    assert not cadence.is_due(1)
    cadence.start_epoch()
    assert cadence.is_due(1)


def test_reading_twice_at_one_step_proposes_the_next():
    cadence = MetricsSchedule([], "train", shows_progress=True, clock=Clock())
    assert cadence.propose(7) == 8
    assert cadence.propose(7) == 8


EVERY_STEP = LogRequirements(every=(LogSchedule(steps=1),))
PROGRESS = LogRequirements(shows_progress=True)


@pytest.mark.parametrize(("needs", "due"), [(EVERY_STEP, [1, 2, 3]), (PROGRESS, [1])])
def test_what_another_worker_needs_is_read_here_too(needs, due):
    cadence = MetricsSchedule(
        [], "train", shows_progress=False, clock=Clock(), everyones=lambda own: needs
    )
    cadence.agree(9)
    cadence.start_epoch()
    read = []
    for step in (1, 2, 3):
        if cadence.is_due(step):
            read.append(step)
            cadence.agree(9)
    assert read == due
