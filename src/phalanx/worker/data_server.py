"""What the launcher starts for `--data-workers`: one server of a `tf.data` service.

python -m phalanx.worker.data_server dispatcher HOST:PORT DIRECTORY
python -m phalanx.worker.data_server worker HOST:PORT HOST:PORT-OF-DISPATCHER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from phalanx.launcher.parent_death import die_with_launcher

WORKER_TIMEOUT_MS = 10_000
"""After so long without a report from a worker the dispatcher takes it for lost."""
HEARTBEAT_MS = 1_000


def dispatcher(address: str, directory: str) -> Any:
    """The server that knows the jobs; what it knows outlives it in `directory`."""
    import tensorflow as tf

    service = tf.data.experimental.service
    return service.DispatchServer(
        service.DispatcherConfig(
            port=_port(address),
            work_dir=directory,
            fault_tolerant_mode=True,
            worker_timeout_ms=WORKER_TIMEOUT_MS,
        )
    )


def reader(address: str, dispatcher_address: str) -> Any:
    """A server that reads and maps, at the dispatcher's word."""
    import tensorflow as tf

    service = tf.data.experimental.service
    return service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=dispatcher_address,
            worker_address=address,
            port=_port(address),
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
    )


def main(arguments: Sequence[str]) -> None:
    """Serve until the launcher ends this process."""
    die_with_launcher(os.environ)
    kind, address, other = arguments
    server = dispatcher(address, other) if kind == "dispatcher" else reader(address, other)
    server.join()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


if __name__ == "__main__":
    main(sys.argv[1:])
