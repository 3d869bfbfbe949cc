"""One fork server for many launchers, such as those of a test session.

`python -m phalanx.worker.shared_forkserver PATH`: once TensorFlow is imported it listens at PATH, a
Unix socket, and each launcher that connects has a fork server of its own, a fork of this process
(`worker/forkserver.py`). A launcher finds it by `PHALANX_SHARED_FORK_SERVER`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from phalanx.launch.parent_death import die_with_parent
from phalanx.launch.shared_forkserver import described, seen_at_import
from phalanx.worker.forkserver import serve
from phalanx.worker.prefork import HANDED, become_worker, preload


def main() -> None:
    """Import, listen, and fork a server for each launcher that connects."""
    address, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for a launcher's server.
    with socket.socket(socket.AF_UNIX) as listener:
        described(address).write_text(json.dumps(seen_at_import(os.environ)))
        listener.bind(str(address))
        listener.listen()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    handed = None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # The launcher has gone.
        handed = serve(connection.detach(), most_fds=len(HANDED))
    if handed is not None:
        become_worker(*handed)


if __name__ == "__main__":
    main()
