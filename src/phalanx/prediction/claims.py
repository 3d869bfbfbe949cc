"""Which worker predicts what, without a word between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.lease.lease_dir import LeaseDir
from phalanx.prediction.plan import Part


class Claims:
    """Which worker has which part: a file for each, that one process alone can create.

    A worker that takes the place of another one of its rank takes up what that one has started. The
    next attempt has a directory of its own.
    """

    def __init__(self, directory: LeaseDir, rank: int) -> None:
        self._directory = directory
        self._own = str(rank).encode()

    def take_from(self, parts: Sequence[Part]) -> Iterator[Part]:
        """Those that this worker has or gets."""
        for part in parts:
            if (
                self._directory.create(part.name, self._own)
                or self._directory.read(part.name) == self._own
            ):
                yield part
