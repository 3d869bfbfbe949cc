"""What a checkpoint holds, and which bytes hold it: its `manifest.json`.

A checkpoint exists when its manifest does. The manifest is written last, in one atomic step. It has
the checksum of each shard, and its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.errors import CheckpointCorruptedError, CheckpointVersionError
from phalanx.lease.records import CommitId

FORMAT = 1
MANIFEST = "manifest.json"
_CHECKSUM = "sha256"
_NAME = re.compile(r"manifest(-\d+)?\.json")


def is_manifest(name: str) -> bool:
    """Whether a file of a checkpoint is a manifest."""
    return _NAME.fullmatch(name) is not None


def name_beside(fence: int) -> str:
    """The name of a manifest where the step has one already.

    A manifest is never overwritten: it may be the last that was committed, and the process that
    writes the new one may end before the commit is confirmed.

    Args:
        fence: the number of the commit.
    """
    return f"manifest-{fence}.json"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows of one tensor in one shard.

    Attributes:
        tensor: the tensor's name.
        shape: of the whole tensor.
        dtype: NumPy's name for it, or "bfloat16" and the like.
        start: the first row (index on the first axis); 0 for a scalar.
        rows: how many rows; 1 for a scalar.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    rows: int

    @property
    def key(self) -> str:
        """The piece's name inside its shard."""
        return f"{self.tensor}@{self.start}"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of tensors, written by one worker.

    Attributes:
        file: its name, next to the manifest.
        bytes: its size.
        sha256: the checksum of its bytes, hexadecimal.
        pieces: what is in it.
    """

    file: str
    bytes: int
    sha256: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One checkpoint.

    Attributes:
        step: training steps done, counted from 1.
        epoch: the epoch it lies in, from 0.
        written: when it was committed, seconds since the epoch.
        shards: its files.
        state: all that is no tensor, as JSON: position in the data, callbacks, history.
        metrics: what `best` may go by, such as {"val_loss": 0.3}.
        lease: what it was committed under, as `str` of a `phalanx.lease.records.CommitId`.
        format: version of this schema.
    """

    step: int
    epoch: int
    written: float
    shards: tuple[Shard, ...]
    state: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    lease: str = ""
    format: int = FORMAT

    @property
    def commit(self) -> CommitId | None:
        """The commit of the directory that published it; None if it was written without a lease."""
        return CommitId.parse(self.lease)

    @property
    def size(self) -> int:
        """The bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    def tensors(self) -> dict[str, Piece]:
        """For each tensor one of its pieces, which has shape and dtype."""
        return {p.tensor: p for shard in self.shards for p in shard.pieces}

    def _assert_types(self) -> None:
        """JSON can hold any type, and infinity, in any place."""
        whole = {"step": self.step, "epoch": self.epoch}
        for name, value in whole.items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r}")
        if type(self.written) not in (int, float) or not math.isfinite(self.written):
            raise ValueError(f"written is {self.written!r}")
        if not isinstance(self.lease, str):
            raise ValueError(f"lease is {self.lease!r}")
        if not isinstance(self.state, dict) or not isinstance(self.metrics, dict):
            raise ValueError("state or metrics is no object")
        for name, value in self.metrics.items():
            if type(value) not in (int, float):
                raise ValueError(f"the metric {name} is {value!r}")

    def to_json(self) -> bytes:
        """The manifest's bytes."""
        return with_checksum(asdict(self))

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """Read a manifest.

        Args:
            content: the bytes of `manifest.json`.
            where: the checkpoint's place, for messages.

        Raises:
            CheckpointCorruptedError: it is no manifest, or not as it was written.
            CheckpointVersionError: a newer Phalanx wrote it.
        """
        try:
            document = json.loads(content)
            if document.pop(_CHECKSUM) != _checksum(document):
                raise ValueError("it has another checksum than when it was written")
            version = int(document["format"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise _damaged(where, error) from error
        if version > FORMAT:
            raise CheckpointVersionError(
                f"The checkpoint {where} has format {version}; this Phalanx reads up to {FORMAT}. "
                "Install a newer Phalanx, or take a checkpoint that an older one wrote."
            )
        try:
            made = cls(**{**document, "shards": tuple(map(_shard, document["shards"]))})
            made._assert_types()
            return made
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(where, error) from error


def with_checksum(document: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest with these fields."""
    plain = json.loads(json.dumps(document))  # As a reader sees it.
    plain.pop(_CHECKSUM, None)
    return json.dumps({**plain, _CHECKSUM: _checksum(plain)}, indent=1).encode() + b"\n"


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def shard_from_json(content: bytes, where: str) -> Shard:
    """Read what a worker wrote down about its shard.

    Raises:
        CheckpointCorruptedError: it is no such thing.
    """
    try:
        return _shard(json.loads(content))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(where, error) from error


def shard_to_json(shard: Shard) -> bytes:
    """What a worker writes down about its shard."""
    return json.dumps(asdict(shard)).encode()


def _shard(document: Any) -> Shard:
    pieces = tuple(Piece(**{**p, "shape": tuple(p["shape"])}) for p in document["pieces"])
    return Shard(**{**document, "pieces": pieces})


def _damaged(where: str, error: Exception) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"The manifest of the checkpoint {where} cannot be read ({type(error).__name__}: {error}). "
        "Take an older checkpoint; `phalanx checkpoint list` shows which there are."
    )
