"""A chief with real workers and servers, all in one process: TensorFlow's servers on ports."""

import tensorflow as tf

from phalanx.cluster.spec import WorkerSpec
from phalanx.launcher.ports import pick_free_ports
from phalanx.testing import run_single
from phalanx.worker.ps_server import LEAST_THREADS, start_server
from phalanx.worker.strategies.parameter_server import partitioner


def lead(workers=2, servers=2, sharding="none", seed=1):
    """Start all others here, and be their chief; to be called in a process of its own."""
    import keras

    import phalanx

    tf.config.threading.set_inter_op_parallelism_threads(LEAST_THREADS)
    ports = pick_free_ports(1 + workers + servers)
    specs = [
        WorkerSpec(
            rank=rank,
            world_size=len(ports),
            addresses=tuple(f"127.0.0.1:{port}" for port in ports),
            strategy="parameter-server",
            servers=servers,
            threads=1,
        )
        for rank in range(len(ports))
    ]
    others = [start_server(spec) for spec in specs[1:]]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(specs[0].cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=partitioner(sharding, servers=servers)
    )
    tf.distribute.experimental_set_strategy(strategy)
    keras.utils.set_random_seed(seed)
    phalanx.enable()
    return strategy, others


def led(function, *, deadline=600, **cluster):
    """What `function()` returns in a chief's process."""

    def run():
        held = lead(**cluster)
        result = function()
        del held
        return result

    return run_single(run, deadline=deadline)
