"""Run a function in real worker processes, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from phalanx.cluster.spec import DeviceSpec
from phalanx.cluster.strategies import StrategyName
from phalanx.testing.pool import WorkerPool

T = TypeVar("T")


def run_workers(
    function: Callable[..., T],
    workers: int = 2,
    *,
    args: Sequence[Any] = (),
    deadline: float = 60.0,
    seed: int | None = None,
    devices: DeviceSpec | None = None,
    strategy: StrategyName | None = "multiworker",
    env: Mapping[str, str] | None = None,
) -> list[T]:
    """Call `function(*args)` in each of `workers` fresh processes that form a cluster.

    A `WorkerPool` of one call: where many calls need no fresh processes, a pool is faster.

    Args:
        function: what each worker calls; lambdas and closures work.
        workers: the number of processes.
        args: the arguments, the same for every worker.
        deadline: seconds for everything, after which all stacks are dumped and all is killed.
        seed: given to `keras.utils.set_random_seed` on every worker.
        devices: the devices of each worker.
        strategy: entered before the call, for the whole process; None leaves it to `function`.
        env: environment variables for the workers, besides this process's own.

    Returns:
        What `function` returned on each worker, by rank.

    Raises:
        WorkerGroupFailedError: a worker raised or died; names the earliest.
        WorkerGroupTimeoutError: the deadline passed; shows every worker's stacks.
    """
    with WorkerPool(workers, strategy=strategy, seed=seed, devices=devices, env=env) as pool:
        return pool.run(function, args=args, deadline=deadline)


def run_single(
    function: Callable[..., T],
    *,
    args: Sequence[Any] = (),
    deadline: float = 60.0,
    seed: int | None = None,
    devices: DeviceSpec | None = None,
    strategy: StrategyName | None = None,
    env: Mapping[str, str] | None = None,
) -> T:
    """Call `function(*args)` in one fresh process, with no cluster; see `run_workers`."""
    with WorkerPool(1, strategy=strategy, seed=seed, devices=devices, env=env) as pool:
        (result,) = pool.run(function, args=args, deadline=deadline)
    return result
