"""How launchers find each other: a file that the leader writes into the directory of all runs.

That directory has to be shared anyway, for logs, records and checkpoints. So whoever can read the
file shares it, and its token lets no other process speak to the leader.
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
        token: what both ends must know, in hexadecimal digits.
    """

    host: str
    port: int
    token: str

    @property
    def key(self) -> bytes:
        """The token as the connection wants it."""
        return bytes.fromhex(self.token)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all, for this user's eyes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> RendezvousInfo | None:
        """What the file says; None where there is none that can be read."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def rendezvous_path(root: Path, places: ClusterEnvironment) -> Path:
    """The file of a run on these places: all their launchers come to the same name.

    Args:
        root: the directory of all runs.
        places: where the launchers are.
    """
    named = json.dumps([places.kind, places.job, places.hosts])
    return root / ".rendezvous" / f"{hashlib.sha256(named.encode()).hexdigest()[:16]}.json"
