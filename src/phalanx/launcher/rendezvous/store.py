"""The rendezvous file, which the leader writes into the directory of all runs.

All hosts share that directory for logs, records and checkpoints. So every launcher can read the
file, and its token keeps other processes from the leader.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.cluster.node_group import ClusterEnvironment


@dataclass(frozen=True, kw_only=True)
class RendezvousInfo:
    """Where the leader listens.

    Attributes:
        host: the leader's name or address.
        port: its port.
        token: the secret that both ends must know, in hexadecimal digits.
    """

    host: str
    port: int
    token: str

    @property
    def key(self) -> bytes:
        """The token as the bytes that the connection takes."""
        return bytes.fromhex(self.token)

    def write(self, path: Path) -> None:
        """Write the file atomically, readable by this user only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(path)

    def remove(self, path: Path) -> None:
        """Remove the file, unless another leader has replaced it by its own."""
        if RendezvousInfo.read(path) == self:
            path.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> RendezvousInfo | None:
        """The content of the file; None if it cannot be read."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def rendezvous_path(root: Path, node_group: ClusterEnvironment, name: str | None = None) -> Path:
    """The rendezvous file of a run on these nodes: all their launchers compute the same name.

    Args:
        root: the directory of all runs.
        node_group: where the launchers are.
        name: the run's, if the command names it: several runs can use the same nodes at once.
    """
    named = json.dumps([node_group.kind, node_group.job, node_group.hosts, name])
    # Not in a directory of their own: its first user alone could write there.
    return root / f".rendezvous-{hashlib.sha256(named.encode()).hexdigest()[:16]}.json"
