"""The first batches of a source, again in every pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.data.batches import BatchSource
from phalanx.data.position import Position


class FirstBatches:
    """A pass over `source` that ends after some batches, and begins where the last one did.

    For sources that begin alike whenever they are opened at position 0.
    """

    endless = False
    has_state = False

    def __init__(self, source: BatchSource, batches: int) -> None:
        """Take the first `batches` of `source`, or all where it has fewer."""
        self._source = source
        known = source.num_batches
        self.num_batches: int | None = batches if known is None else min(batches, known)
        self.batch_spec = source.batch_spec
        self.may_be_empty = source.may_be_empty
        self.counted = source.counted
        self.num_samples: int | None = None
        self.batch_size = source.batch_size
        self.ends_unknown = source.ends_unknown
        self.fingerprint = source.fingerprint
        self.seed = source.seed

    def open(self, position: int) -> Any:
        """A new pass."""
        del position
        return self._source.open(0)

    def open_again(self, position: Position, state: Mapping[str, Any] | None) -> Any:
        """The pass that stood at `position`."""
        del state
        if position.taken is None:
            return None
        iterator = self._source.open(0)
        for _ in range(position.taken):
            next(iterator)
        return iterator

    def open_unread(self) -> None:
        """Nothing to do: all passes begin alike."""

    def on_epoch_begin(self) -> None:
        """Pass the word on."""
        self._source.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Pass the word on."""
        self._source.on_epoch_end()
