"""The identity of a command, which must be the same on all nodes: a hash for each part.

A launcher that was started with another script, other arguments or other variables would train
something else in the same run. The hashes show only which part differs: their key is the run's
token, without which they reveal nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from phalanx.launcher.options import RunOptions
from phalanx.launcher.redaction import redact
from phalanx.launcher.script_check import script_source

_OPTIONS = {
    "--name": "name",
    "--strategy": "strategy",
    "--communication-backend": "communication_backend",
    "--ps": "servers",
    "--variable-partitioner": "sharding",
    "--data-workers": "data_workers",
    "--devices-per-worker": "devices",
    "--threads-per-worker": "threads",
    "--seed": "seed",
    "--sync-batchnorm": "sync_batchnorm",
}
"""Options that the leader decides on for all hosts, by the field of `RunOptions`.

Not included: options that may differ between hosts (`--run-dir`, `--node-rank`, `--tee`), and
options of the leader that change no number of a training (`--max-restarts`, `--hang-timeout`,
`--resume`).
"""


@dataclass(frozen=True)
class CommandIdentity:
    """The parts of a command, by name.

    Attributes:
        parts: the content of each.
        shown: those that messages may show.
    """

    parts: Mapping[str, bytes] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: RunOptions) -> CommandIdentity:
        """The identity of one `phalanx run`."""
        target, workers = options.target, (options.min_workers, options.workers)
        # The path of the script may differ between hosts; its name may not.
        command = f"-m {target}" if options.as_module else Path(target).name
        reduction = {
            "--bucket-mb": options.reduction.bucket_mb,
            "--reduce-dtype": options.reduction.reduce_dtype,
        }
        values: dict[str, Any] = {name: getattr(options, at) for name, at in _OPTIONS.items()}
        values |= reduction
        values["--devices-per-worker"] = options.devices and asdict(options.devices)
        values["--workers"] = workers if any(workers) else None
        values["the options for debugging and profiling"] = asdict(options.switches)
        values["the options of --sync-every"] = asdict(options.sync)
        parts = {
            "the script": os.fsencode(command),
            "the script's contents": script_source(target, as_module=options.as_module) or b"",
            "the script's arguments": _bytes(options.arguments),
            **{name: _bytes(value) for name, value in values.items()},
            "the variables of --env and --env-from": _bytes(dict(options.env)),
        }
        shown = {
            "the script": command,
            "the script's arguments": shlex.join(redact(options.arguments)) or "none",
            **{name: _shown(getattr(options, at)) for name, at in _OPTIONS.items()},
            **{name: _shown(value) for name, value in reduction.items()},
            "--workers": _shown(":".join(str(each) for each in workers if each) or None),
            "the variables of --env and --env-from": ", ".join(sorted(options.env)) or "none",
        }
        return cls(parts, shown)

    def hashes(self, key: bytes) -> dict[str, str]:
        """A hash for each part.

        Args:
            key: the run's token.
        """
        return {
            # The part's name keeps equal texts of two parts apart.
            name: hmac.digest(key, name.encode() + b"\0" + content, hashlib.sha256).hex()
            for name, content in self.parts.items()
        }

    def difference(self, key: bytes, theirs: object) -> list[str]:
        """The parts in which another launcher differs.

        Args:
            key: the run's token.
            theirs: its hashes.
        """
        own, other = self.hashes(key), theirs if isinstance(theirs, Mapping) else {}
        return [name for name in {**own, **other} if own.get(name) != other.get(name)]

    def describe(self, differing: list[str]) -> str:
        """Which parts differ, with those of this host."""
        return "; ".join(
            f"{name} differ{'' if name.endswith(_PLURALS) else 's'}"
            + (f" (on this host: {self.shown[name]})" if name in self.shown else "")
            for name in differing
        )


_PLURALS = ("contents", "arguments", "profiling", "--env-from")


def _shown(value: object) -> str:
    return "not given" if value is None else str(value)


def _bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode(errors="surrogateescape")
