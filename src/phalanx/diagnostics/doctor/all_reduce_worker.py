"""One of two workers that add up, to see whether that works and how fast; a process of its own.

It computes on the CPU: the links are what is looked at. Prints a line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from phalanx.diagnostics.doctor.all_reduce_cost import Speed

_SMALL, _BIG = 20, 3  # all-reduces
_FLOATS = 1 << 22  # 16 MiB, as big as the pieces of a packed all-reduce come


def main(arguments: Sequence[str]) -> int:
    """Measure as the worker with the index of the first argument, at the addresses of the rest."""
    index, *addresses = arguments
    speed, part = measure(int(index), addresses)
    print(json.dumps(speed.to_fields()), flush=True)
    # Who leaves first breaks the last sum of the other: this one more may fail.
    with suppress(Exception):
        part()
    return 0


def measure(index: int, addresses: Sequence[str]) -> tuple[Speed, Callable[[], None]]:
    """The speed of all-reduces over TensorFlow's own connections, and one more of them."""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=index, rpc_layer="grpc"
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        cluster_resolver=resolver,
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        ),
    )

    def summing(size: int) -> Callable[[], None]:
        def add(held: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            # identity: in a graph an argument is on no device, and has to be.
            total = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(held))
            return tf.reduce_max(total)  # What is timed is the sum, not copies of it.

        held = tf.ones([size])
        step = tf.function(lambda held: strategy.run(add, args=(held,)))
        return lambda: step(held).numpy()

    add_one = summing(1)
    small = _seconds(add_one, _SMALL)
    big = _seconds(summing(_FLOATS), _BIG)
    return Speed(seconds=small, rate=4 * _FLOATS / max(big - small, 1e-9)), add_one


def _seconds(add: Callable[[], None], times: int) -> float:
    """Of one, in the middle of some; the first is traced and left out."""
    add()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        add()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
