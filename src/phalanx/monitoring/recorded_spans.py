"""Steps that run, or a collective of the host, as the flight recorder receives them."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from phalanx.monitoring.flight_format import NOTHING, Ending, Kind
from phalanx.monitoring.flight_ring import Open, Ring, padded_dimensions

_log = logging.getLogger(__name__)
_CLOCKS_DIFFER = 1000
"""Nanoseconds: TensorFlow's clock has microseconds."""


class SpanListener(NamedTuple):
    """Which batches had come at one moment.

    Attributes:
        batches: how many of the execution's.
        when: when the last of them came, in nanoseconds since the epoch; None for before the
            execution began.
        signature: its names, shapes and dtypes, `?` for what varies.
        dimensions: the value of each `?`.
    """

    batches: int
    when: int | None
    signature: str
    dimensions: tuple[int, ...]


class BatchArrivals(Protocol):
    """Knows which batches have come; asked from another thread too."""

    def last(self) -> SpanListener:
        """The last that came, of whichever execution."""


class Recorder(Protocol):
    """Receives blocks."""

    def on_begin(self, block: RecordedSpan) -> None:
        """It begins."""

    def on_end(self, block: RecordedSpan, how: Ending, done: int | None) -> None:
        """It has ended."""


class RecordedSpan:
    """Steps that run, or a collective: a block of code.

    Attributes:
        done: how many steps were done, where that is fewer than asked for.
        already: how many batches had come before those that `arrivals` reports.
    """

    __slots__ = (
        "_recorder",
        "already",
        "arrivals",
        "done",
        "event",
        "kind",
        "name",
        "size",
        "steps",
    )

    def __init__(
        self,
        recorder: Recorder,
        kind: Kind,
        name: str = "",
        *,
        steps: int = 0,
        size: int = NOTHING,
        arrivals: BatchArrivals | None = None,
    ) -> None:
        self._recorder = recorder
        self.kind = kind
        self.name = name
        self.steps = steps
        self.size = size
        self.arrivals = arrivals
        self.event: Open | None = None
        self.done: int | None = None
        self.already = 0

    def __enter__(self) -> Self:
        self._recorder.on_begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.event is not None:
            out = kind is not None and issubclass(kind, StopIteration)
            how: Ending = "done" if kind is None else "out of data" if out else "failed"
            self._recorder.on_end(self, how, self.done)

    def ask(self) -> SpanListener | None:
        """Which of its batches have come; None where that is not recorded."""
        if self.arrivals is None:
            return None
        try:
            return self.arrivals.last()
        except Exception:  # It is an onlooker, also where TensorFlow is in pieces.
            _log.debug("the flight recorder could not ask for arrivals", exc_info=True)
            return None

    def take(self, listener: SpanListener | None, ring: Ring) -> None:
        """Take in which batches have come."""
        if listener is None or (event := self.event) is None:
            return
        when = event.begin if listener.when is None else listener.when
        if when < event.begin - _CLOCKS_DIFFER:
            event.done = self.already
            return
        event.done = self.already + listener.batches
        event.came = when
        event.signature = ring.text(listener.signature)
        event.dimensions = padded_dimensions(listener.dimensions)
