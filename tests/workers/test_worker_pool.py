"""`WorkerPool`: one worker group for many calls, each as if it were the first."""

import os
import signal
import time

import numpy as np
import psutil
import pytest

from phalanx.cluster.spec import DeviceSpec, WorkerSpec
from phalanx.errors import ConfigurationError
from phalanx.testing import WorkerGroupFailedError, WorkerGroupTimeoutError, WorkerPool, run_workers
from phalanx.testing.pool import fork_server_pid
from process_end import wait_until_ended


def rank():
    return WorkerSpec.from_environment(os.environ).rank


def all_reduce(value):
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()

    def reduce():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.constant(float(value)))

    return float(strategy.experimental_local_results(strategy.run(reduce))[0])


def workers_alive():
    return psutil.Process(fork_server_pid()).children()


@pytest.fixture(scope="module")
def pool():
    with WorkerPool() as made:
        yield made
    assert workers_alive() == []


def train():
    import keras

    import phalanx

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(21, 4)).astype("float32")
    history = phalanx.fit(model, x, x[:, :1], batch_size=8, epochs=2, verbose=0).history
    names = [v.path for v in model.variables]
    return names, history, [w.tolist() for w in model.get_weights()]


def test_calls_are_done_by_the_same_workers(pool):
    first = pool.run(lambda factor: (os.getpid(), factor * rank()), args=(10,))
    second = pool.run(lambda: (os.getpid(), all_reduce(rank() + 1)))
    assert [value for _, value in first] == [0, 10]
    assert [value for _, value in second] == [3.0, 3.0]
    assert [pid for pid, _ in first] == [pid for pid, _ in second]


@pytest.mark.full
def test_a_later_training_comes_out_as_one_in_fresh_processes(pool):
    expected = run_workers(train, seed=5, deadline=600)
    assert pool.run(train, seed=5, deadline=600) == expected
    assert pool.run(train, seed=5, deadline=600) == expected


def leave_traces(directory):
    import gc
    import sys
    import weakref

    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.training.nonfinite_capture import capture_dir

    class Heavy:
        pass

    heavy = Heavy()
    heavy.itself = heavy
    gc.left = weakref.ref(heavy)
    phalanx.enable()
    keras.config.set_dtype_policy("mixed_float16")
    keras.layers.Dense(1)
    tf.config.run_functions_eagerly(True)
    tf.random.set_seed(1)
    capture_dir().left = 0
    os.environ["LEFT"] = "yes"
    os.chdir(directory)
    sys.path.append(directory)
    keras.backend.clear_session()  # which ends distribution
    assert not tf.distribute.has_strategy()


def traces(directory):
    import gc
    import sys

    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.training.nonfinite_capture import capture_dir

    return {
        "heavy": gc.left() is not None,
        "enabled": phalanx.is_enabled(),
        "policy": keras.config.dtype_policy().name,
        "name": keras.layers.Dense(1).name,
        "eager": tf.config.functions_run_eagerly(),
        "steps to keep": capture_dir().left,
        "environment": os.environ.get("LEFT"),
        "directory": os.getcwd(),
        "path": directory in sys.path,
        "strategy": tf.distribute.get_strategy() is phalanx.strategy(),
        "replicas": tf.distribute.get_strategy().num_replicas_in_sync,
        "total": all_reduce(1),
    }


def test_a_call_finds_nothing_of_the_one_before(pool, tmp_path):
    pool.run(leave_traces, args=(str(tmp_path),))
    for found in pool.run(traces, args=(str(tmp_path),)):
        assert found == {
            "heavy": False,
            "enabled": False,
            "policy": "float32",
            "name": "dense",
            "eager": False,
            "steps to keep": 1,
            "environment": None,
            "directory": os.getcwd(),
            "path": False,
            "strategy": True,
            "replicas": 2,
            "total": 2.0,
        }


def test_a_call_takes_over_what_is_around_the_caller(pool, tmp_path, monkeypatch):
    monkeypatch.setenv("COLOUR", "green")
    monkeypatch.chdir(tmp_path)
    found = pool.run(lambda: (os.environ["COLOUR"], os.getcwd()))
    assert found == [("green", str(tmp_path))] * 2


def draw():
    import random

    import tensorflow as tf

    numbers = random.random(), np.random.random(), tf.random.uniform(())
    return [float(number) for number in numbers]


def test_a_seed_is_for_one_call(pool):
    first, second = pool.run(draw, seed=7)
    assert first == second == pool.run(draw, seed=7)[0] == run_workers(draw, seed=7)[0]
    first, second = pool.run(draw)
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_checkpointed_training_counts_its_fits_from_none(pool, tmp_path):
    def trained_steps(directory):
        import keras

        import phalanx

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        kept = phalanx.callbacks.Checkpoint(directory, async_save=False)
        x = np.ones((8, 4), "float32")
        steps = []
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: steps.append(1)
        )
        phalanx.fit(model, x, x[:, :1], batch_size=8, verbose=0, callbacks=[kept, count])
        return len(steps)

    assert pool.run(trained_steps, args=(str(tmp_path),), deadline=600) == [1, 1]
    assert pool.run(trained_steps, args=(str(tmp_path),), deadline=600) == [0, 0], "all was done"


def raises():
    print("this call's words")
    if rank() == 1:
        raise ValueError("the second one broke")
    all_reduce(1)


def dies():
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce(1)


@pytest.mark.parametrize(("function", "name"), [(raises, "ValueError"), (dies, "Died")])
def test_after_a_failure_there_are_new_workers(pool, function, name):
    before = pool.run(lambda: print("an earlier call's words") or os.getpid())
    with pytest.raises(WorkerGroupFailedError) as caught:
        pool.run(function, deadline=600)
    assert (caught.value.rank, caught.value.first.type_name) == (1, name)
    assert "earlier" not in str(caught.value)
    assert ("this call's words" in str(caught.value)) == (function is raises)
    for pid in before:
        wait_until_ended(pid)
    after = pool.run(lambda: (os.getpid(), all_reduce(rank() + 1)))
    assert [total for _, total in after] == [3.0, 3.0]
    assert not set(before) & {pid for pid, _ in after}


def test_after_the_deadline_there_are_new_workers(pool):
    def waits_in_a_collective():
        all_reduce(1)

    def function():
        if rank() == 0:
            waits_in_a_collective()
        signal.sigwait({signal.SIGUSR1})

    pool.run(lambda: all_reduce(1))
    for deadline in (3.0, 15.0, 75.0):  # until both have come there in time
        with pytest.raises(WorkerGroupTimeoutError) as caught:
            pool.run(function, deadline=deadline)
        stacks = caught.value.stacks
        if "waits_in_a_collective" in stacks[0] and "in function" in stacks[1]:
            break
    assert "waits_in_a_collective" in stacks[0]
    assert "in function" in stacks[1]
    assert pool.run(lambda: all_reduce(rank() + 1)) == [3.0, 3.0]


def test_workers_that_ended_between_calls_are_replaced(pool):
    for pid in pool.run(os.getpid):
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 60
        while psutil.pid_exists(pid):  # a zombie's threads may still be at work
            assert time.monotonic() < end
            time.sleep(0.02)
    assert pool.run(lambda: all_reduce(1)) == [2.0, 2.0]


def test_what_is_no_function_for_a_worker_ends_no_one(pool):
    before = pool.run(os.getpid)
    with pytest.raises(TypeError, match="pickle"):
        pool.run(lambda: None, args=((each for each in ()),))
    assert pool.run(os.getpid) == before


def test_no_strategy_and_devices_hold_for_all_calls():
    def function():
        import tensorflow as tf

        return tf.distribute.has_strategy(), len(tf.config.list_logical_devices("CPU"))

    with WorkerPool(1, strategy=None, devices=DeviceSpec(count=3, kind="cpu")) as alone:
        assert alone.run(function) == alone.run(function) == [(False, 3)]


def test_a_pool_can_be_closed_and_used_again():
    pool = WorkerPool(1, strategy=None)
    pool.close()
    (pid,) = pool.run(os.getpid)
    pool.close()
    wait_until_ended(pid)
    assert pool.run(os.getpid) != [pid]
    pool.close()


def test_a_pool_needs_a_worker():
    with pytest.raises(ConfigurationError, match="workers=0"):
        WorkerPool(0)
