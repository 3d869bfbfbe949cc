"""`phalanx.local_chief_first()`: what the first worker of each host does before the others."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.distributed.host_collectives import all_gather_rows
from phalanx.distributed.topology import ReplicaTopology, topology_of
from phalanx.errors import WorkerLostError


@contextmanager
def local_chief_first() -> Iterator[None]:
    """Have the first worker of each host run the block first, and its other workers after it.

    For lines that make files: what the first one downloads, unpacks or computes, the others
    find::

        with phalanx.local_chief_first():
            if not os.path.exists("prepared"):
                prepare("prepared")

    All workers must come to the block, and it may not contain what they do together (`fit`,
    collectives). Where it fails on one worker, it fails on all. With one worker it does nothing.

    Raises:
        WorkerLostError: the block has failed on another worker.
    """
    strategy = tf.distribute.get_strategy()
    topology = topology_of(strategy)
    if not topology.has_peers:
        yield
        return
    hosts = all_gather_rows(strategy, topology, np.array([_this_host()], np.int64))[:, 0]
    is_first = topology.rank == int(np.argmax(hosts == hosts[topology.rank]))
    if not is_first:
        _sync_outcome(strategy, topology, well=True)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # its own error says more than that a peer has ended
            _sync_outcome(strategy, topology, well=False)
        raise
    if is_first:
        _sync_outcome(strategy, topology, well=True)
    _sync_outcome(strategy, topology, well=True)


def _sync_outcome(strategy: Any, topology: ReplicaTopology, *, well: bool) -> None:
    """Ask all workers whether it succeeded; a collective that all workers must call."""
    succeeded = all_gather_rows(strategy, topology, np.array([well], np.int64))[:, 0]
    failed = [rank for rank, went_well in enumerate(succeeded) if not went_well]
    if failed:
        raise WorkerLostError(
            "The block of `with phalanx.local_chief_first():` is to run on all workers; found that "
            f"it failed on worker {failed[0]}, whose own error says why. See that worker's log."
        )


def _this_host() -> int:
    """A number that the processes of this machine share, and those of others do not."""
    name = f"{socket.gethostname()} {uuid.getnode()}"
    return int.from_bytes(sha256(name.encode()).digest()[:7], "big")
