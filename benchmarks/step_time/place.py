"""Where a contender's process stands, and what it may use."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """One of `world_size` processes, each with one core."""

    rank: int
    world_size: int
    ports: tuple[int, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self.ports)

    @classmethod
    def from_json(cls, text: str) -> Place:
        fields = json.loads(text)
        return cls(**{**fields, "ports": tuple(fields["ports"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def pin(self) -> None:
        """Keep this process and every thread it will start on the core of its rank."""
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[self.rank % len(cores)]})

    def tf_config(self) -> str:
        return json.dumps(
            {
                "cluster": {"worker": list(self.addresses)},
                "task": {"type": "worker", "index": self.rank},
            }
        )
