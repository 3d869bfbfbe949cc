"""`run_workers` itself, over real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import psutil
import pytest

from phalanx.cluster.spec import DeviceSpec, WorkerSpec
from phalanx.errors import ConfigurationError, PhalanxError, WorkerFailedError
from phalanx.launcher.ports import pick_free_ports
from phalanx.testing import (
    WorkerGroupFailedError,
    WorkerGroupTimeoutError,
    WorkerPool,
    run_single,
    run_workers,
)
from phalanx.testing.errors import WorkerFailure
from phalanx.testing.pool import fork_server_pid
from process_end import has_ended, wait_until_ended


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


def rank():
    return WorkerSpec.from_environment(os.environ).rank


def all_reduce(value):
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()

    def reduce():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.constant(float(value)))

    return float(strategy.experimental_local_results(strategy.run(reduce))[0])


def workers_left():
    return psutil.Process(fork_server_pid()).children(recursive=True)


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert workers_left() == []


def test_results_come_by_rank():
    assert run_workers(lambda factor: factor * rank(), 3, args=(10,), strategy=None) == [0, 10, 20]


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_form_a_cluster(workers):
    def function():
        import tensorflow as tf

        strategy = tf.distribute.get_strategy()
        resolver = strategy.cluster_resolver
        return strategy.num_replicas_in_sync, resolver.task_id, all_reduce(rank())

    total = float(sum(range(workers)))
    assert run_workers(function, workers) == [(workers, each, total) for each in range(workers)]


def test_phalanx_knows_the_strategy_of_the_worker_group():
    def function():
        import tensorflow as tf

        import phalanx

        return phalanx.strategy() is tf.distribute.get_strategy()

    assert run_workers(function) == [True, True]


def test_a_worker_gets_its_environment_threads_and_a_group_of_its_own():
    def function():
        import tensorflow as tf

        threads = tf.config.threading
        return (
            len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]),
            os.environ["COLOUR"],
            threads.get_intra_op_parallelism_threads(),
            threads.get_inter_op_parallelism_threads(),
            os.getpgid(0) == os.getpid(),
        )

    assert (
        run_workers(function, env={"COLOUR": "green"}, strategy=None)
        == [(2, "green", 1, 2, True)] * 2
    )


def test_a_seed_makes_workers_draw_the_same_and_none_makes_them_differ():
    def draw():
        import keras

        return float(np.random.random()), float(keras.random.uniform(()))

    first, second = run_workers(draw, seed=7, strategy=None)
    assert first == second == run_single(draw, seed=7)
    first, second = run_workers(draw, strategy=None)
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_alone_there_is_no_cluster():
    def function():
        import tensorflow as tf

        return "TF_CONFIG" in os.environ, tf.distribute.has_strategy()

    assert run_single(function) == (False, False)


def test_devices_of_one_process():
    def function():
        import tensorflow as tf

        return tf.distribute.get_strategy().num_replicas_in_sync

    devices = DeviceSpec(count=3, kind="cpu")
    assert run_single(function, devices=devices, strategy="mirrored") == 3


def test_the_first_to_raise_is_named_while_its_peer_is_stuck_in_a_collective():
    def function():
        if rank() == 1:
            print("rank one says goodbye")
            raise ValueError("the second one broke")
        all_reduce(1)

    started = time.monotonic()
    with pytest.raises(WorkerGroupFailedError) as caught:
        run_workers(function, deadline=600.0)
    assert time.monotonic() - started < 300, "it waited for the peer that is stuck"
    error = caught.value
    assert isinstance(error, WorkerFailedError)
    assert error.rank == 1
    failure = error.failures[1]
    assert (failure.type_name, failure.exitcode) == ("ValueError", 1)
    assert failure.message == "the second one broke"
    assert "raise ValueError" in failure.traceback
    for part in ("Worker 1 of 2", "the second one broke", "raise ValueError", "says goodbye"):
        assert part in str(error)


def test_when_all_raise_the_earliest_is_first_and_all_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.testing.pool.GRACE_SECONDS", 60.0)

    def function():
        if rank() == 1:
            (tmp_path / "pid").write_text(f"{os.getpid()}\n")
        while rank() == 0 and not has_raised():
            time.sleep(0.01)
        raise KeyError(rank())

    def has_raised():
        """Whether worker 1 has ended, by what it raised."""
        text = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
        return text.endswith("\n") and has_ended(int(text))

    with pytest.raises(WorkerGroupFailedError) as caught:
        run_workers(function, strategy=None)
    assert caught.value.rank == 1
    assert [failure.message for failure in caught.value.failures] == ["0", "1"]


def test_the_deadline_shows_every_stack_even_inside_a_collective():
    def waits_in_a_collective():
        all_reduce(1)

    def function():
        if rank() == 0:
            waits_in_a_collective()
        print("rank one dozes")
        signal.sigwait({signal.SIGUSR1})

    for deadline in (3.0, 15.0, 75.0):  # until both have come there in time
        started = time.monotonic()
        with pytest.raises(WorkerGroupTimeoutError) as caught:
            run_workers(function, deadline=deadline)
        assert time.monotonic() - started < deadline + 60
        error = caught.value
        if "waits_in_a_collective" in error.stacks[0] and "in function" in error.stacks[1]:
            break
    assert isinstance(error, PhalanxError)
    assert "waits_in_a_collective" in error.stacks[0]
    assert "in function" in error.stacks[1]
    for part in (f"{deadline:g} s", "waits_in_a_collective", "rank one dozes"):
        assert part in str(error)


def test_a_worker_killed_by_a_signal_is_named():
    def function():
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        all_reduce(1)

    with pytest.raises(WorkerGroupFailedError, match="SIGKILL") as caught:
        run_workers(function)
    assert caught.value.rank == 1
    assert caught.value.first.exitcode == -signal.SIGKILL


def test_a_peer_that_lost_its_connection_first_is_not_to_blame():
    reported = {"message": "lost", "traceback": "", "exitcode": 1}
    lost = WorkerFailure(rank=0, type_name="UnavailableError", time=1.0, **reported)
    died = WorkerFailure(rank=1, type_name="Died", time=2.0, **reported)
    assert WorkerGroupFailedError([lost, died], ["", ""]).rank == 1
    assert WorkerGroupFailedError([lost, None], ["", ""]).rank == 0


@pytest.mark.parametrize("exitcode", [0, 3])
def test_a_worker_that_just_exits_is_named(exitcode):
    def function():
        if rank() == 0:
            os._exit(exitcode)
        signal.pause()

    with pytest.raises(WorkerGroupFailedError, match=f"exit code {exitcode}") as caught:
        run_workers(function, strategy=None)
    assert caught.value.rank == 0


def test_a_crash_in_native_code_shows_its_stack():
    with pytest.raises(WorkerGroupFailedError, match="SIGABRT") as caught:
        run_single(os.abort)
    assert "Fatal Python error: Aborted" in caught.value.logs[0]


def test_a_value_that_cannot_be_pickled_is_the_workers_failure():
    with pytest.raises(WorkerGroupFailedError, match="pickle"):
        run_single(lambda: (each for each in ()))


def test_a_taken_port_is_retried_with_new_ones():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        picked = []

        def pick(count):
            ports = pick_free_ports(count)
            if not picked:
                ports[1] = taken
            picked.append(ports)
            return ports

        with WorkerPool(2, pick_ports=pick) as pool:
            assert pool.run(lambda: all_reduce(1)) == [2.0, 2.0]
            assert pool.run(lambda: all_reduce(2)) == [4.0, 4.0]
    assert len(picked) == 2


def test_ports_that_stay_taken_end_in_the_error():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        picked = []

        def pick(count):
            picked.append(count)
            return [*pick_free_ports(count - 1), taken]

        pool = WorkerPool(2, pick_ports=pick)
        with pytest.raises(WorkerGroupFailedError, match="Could not start gRPC server"):
            pool.run(lambda: all_reduce(1))
    assert 1 < len(picked) < 10


def test_what_a_worker_started_ends_with_it():
    def function():
        return subprocess.Popen(["sleep", "600"]).pid

    for pid in run_workers(function, strategy=None):
        wait_until_ended(pid)


def test_nothing_is_left_when_the_caller_is_killed(tmp_path):
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "from phalanx.testing import run_workers\n"
        "from phalanx.testing.pool import fork_server\n"
        "def function(caller):\n"
        "    Path(f'{os.getpid()}.pid').touch()\n"
        "    while len(pids := [int(p.stem) for p in Path().glob('*.pid')]) < 2:\n"
        "        time.sleep(0.01)\n"
        "    if os.getpid() == min(pids):\n"
        "        os.kill(caller, signal.SIGKILL)\n"
        "    signal.pause()\n"
        "fork_server().wait_until_ready()\n"
        "print(fork_server().pid, flush=True)\n"
        "run_workers(function, strategy=None, args=(os.getpid(),))\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(workers) == 2
    for pid in (int(done.stdout), *workers):
        wait_until_ended(pid)


def test_nothing_is_left_when_the_caller_is_interrupted():
    def function(caller):
        if rank() == 0:
            os.kill(caller, signal.SIGINT)
        signal.pause()

    with pytest.raises(KeyboardInterrupt):
        run_workers(function, strategy=None, args=(os.getpid(),), deadline=20)
    assert workers_left() == []


def test_classes_of_a_test_module_come_back_as_themselves():
    result = run_single(lambda: Pair(1, 2))
    assert result == Pair(1, 2)


@pytest.mark.full
def test_ten_worker_groups_in_a_row_reduce_right():
    for _ in range(10):
        assert run_workers(lambda: all_reduce(rank() + 1)) == [3.0, 3.0]


def test_a_worker_group_needs_a_worker():
    with pytest.raises(ConfigurationError, match="workers=0"):
        run_workers(rank, 0)


def test_ports_are_distinct():
    assert len(set(pick_free_ports(50))) == 50
