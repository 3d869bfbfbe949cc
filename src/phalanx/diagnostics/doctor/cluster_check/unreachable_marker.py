"""A sign that a host leaves in the shared directory when it does not reach the leader.

So the leader knows that it is there, and others can still measure the links to it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.launch.rendezvous.store import RendezvousInfo


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What it says.

    Attributes:
        index: the host's.
        host: its name, by its own word.
        port: where its probe listens.
        why: how the leader could not be reached.
        to: the port where the leader should have been: an older leader's signs count for nothing.
    """

    index: int
    host: str
    port: int
    why: str
    to: int

    def leave(self, directory: Path, info: RendezvousInfo) -> None:
        """Write it, whole or not at all; a directory that is full gets none."""
        path = _path(directory, info, self.index)
        with suppress(OSError):
            partial = path.with_suffix(f".{os.getpid()}.part")
            partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
            partial.replace(path)

    @classmethod
    def find(cls, directory: Path, info: RendezvousInfo, index: int) -> Sign | None:
        """That of a host; None where it has left none for this leader."""
        try:
            found = cls(**json.loads(_path(directory, info, index).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.to == info.port and found.index == index else None

    @staticmethod
    def remove(directory: Path, info: RendezvousInfo, index: int) -> None:
        """Take it away."""
        with suppress(OSError):
            _path(directory, info, index).unlink()


def _path(directory: Path, info: RendezvousInfo, index: int) -> Path:
    return directory / f"sign-{info.port}-{index}.json"
