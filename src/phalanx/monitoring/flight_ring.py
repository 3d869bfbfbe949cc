"""Writing a flight file: each event is a copy of 104 bytes into memory, and no system call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from phalanx.monitoring.flight_format import (
    ALIVE,
    ALIVE_AT,
    DIMENSIONS,
    ENDINGS,
    HEADER,
    HEADER_SIZE,
    KINDS,
    MAGIC,
    NOTHING,
    NOW,
    NOW_AT,
    SLOT,
    SLOTS,
    TAIL,
    TAIL_AT,
    TEXTS_SIZE,
    Ending,
    Kind,
)
from phalanx.monitoring.mapped_pages import Pages

_KIND = {kind: number for number, kind in enumerate(KINDS)}
_HOW = {how: number for number, how in enumerate(ENDINGS)}
_FIRST_SLOT = HEADER_SIZE + TEXTS_SIZE
_NO_DIMENSIONS = (0,) * DIMENSIONS
_LONGEST_TEXT = 1000


class Open:
    """An event that continues, and what may still become known of it.

    Attributes:
        number: its number in the ring.
        begin: when it began, in nanoseconds since the epoch.
        done: how many batches have come.
        came: when the last of them did; 0 where that is not known.
        signature: the number of the text that describes it.
        dimensions: those that the text leaves open.
    """

    __slots__ = ("begin", "came", "dimensions", "done", "number", "signature")

    def __init__(self, number: int, begin: int, done: int) -> None:
        self.number = number
        self.begin = begin
        self.done = done
        self.came = 0
        self.signature = 0
        self.dimensions: tuple[int, ...] = ()


def steady_clock() -> Callable[[], int]:
    """Nanoseconds since the epoch that no setting of the wall clock moves from here on.

    So the durations in a flight file are right, and its events stay in order.
    """
    began = time.time_ns() - time.monotonic_ns()
    return lambda: began + time.monotonic_ns()


class Ring:
    """A worker's last events, in a flight file. Calls must not overlap."""

    def __init__(self, pages: Pages, *, clock: Callable[[], int] | None = None) -> None:
        """Write into `pages`, which are all zero.

        Args:
            pages: of `FILE_SIZE` bytes.
            clock: nanoseconds since the epoch, increasing; None for `steady_clock`.
        """
        self._pages = pages
        self._memory = pages.memory
        self._changed = pages.changed
        self.clock = clock or steady_clock()
        self._number = 0
        self._texts: dict[str, int] = {"": 0}
        self._texts_end = HEADER_SIZE

    def introduce(self, *, rank: int, attempt: int, workers: int, pid: int, host: str) -> None:
        """Say whose events these are."""
        now = self.clock()
        numbers = (TEXTS_SIZE, SLOT.size, SLOTS, rank, attempt, workers, pid, now, now, 0)
        name = host.encode()[:64]
        # Magic comes last: until then this is no flight file.
        self._memory[8 : HEADER.size] = HEADER.pack(MAGIC, *numbers, name)[8:]
        self._memory[:8] = MAGIC
        self._changed(0, HEADER_SIZE)

    def text(self, text: str) -> int:
        """The number of a text in this file; 0, which is "", where there is no room left."""
        found = self._texts.get(text)
        if found is not None:
            return found
        raw = text.encode()[:_LONGEST_TEXT]
        end = self._texts_end + 2 + len(raw)
        if end + 2 > _FIRST_SLOT:
            return 0
        begin, self._texts_end = self._texts_end, end
        self._memory[begin:end] = len(raw).to_bytes(2, "little") + raw
        self._changed(begin, end)
        number = self._texts[text] = len(self._texts)
        return number

    def now(self, phase: int, begin: int, step: int, epoch: int) -> None:
        """The phase of this moment, by the number of its name."""
        NOW.pack_into(self._memory, NOW_AT, begin, step, epoch, phase)
        self._changed(NOW_AT, NOW_AT + NOW.size)

    def begin(
        self,
        kind: Kind,
        name: int,
        *,
        step: int,
        epoch: int,
        steps: int = 0,
        size: int = NOTHING,
        done: int = NOTHING,
    ) -> Open:
        """Begin an event."""
        event = Open(self._number + 1, self.clock(), done)
        self._add(kind, name, event.begin, 0, step, epoch, steps, size, done)
        return event

    def phase(self, name: int, begin: int, end: int, step: int, epoch: int) -> None:
        """Add a phase that has ended."""
        self._add("phase", name, begin, end, step, epoch, 0, NOTHING, NOTHING)

    def write(self, event: Open, *, end: int = 0, how: Ending = "open") -> None:
        """Write down what is known of an event, unless it is too long ago to be kept."""
        if self._number - event.number >= SLOTS:
            return
        at = _FIRST_SLOT + event.number % SLOTS * SLOT.size + TAIL_AT
        sizes = event.dimensions
        padded = (*sizes, *_NO_DIMENSIONS[len(sizes) :]) if sizes else _NO_DIMENSIONS
        TAIL.pack_into(
            self._memory, at, end, event.came, event.done, event.signature, _HOW[how],
            len(sizes), *padded,
        )  # fmt: skip
        self._changed(at, at + TAIL.size)

    def end(self, event: Open, how: Ending = "done") -> None:
        """End an event."""
        self.write(event, end=self.clock(), how=how)

    def alive(self, *, ended: bool = False) -> None:
        """Say that the process lives, or that it has come to its end."""
        now = self.clock()
        self._memory[ALIVE_AT : ALIVE_AT + ALIVE.size] = ALIVE.pack(now, now if ended else 0)
        self._changed(ALIVE_AT, ALIVE_AT + ALIVE.size)

    def _add(
        self,
        kind: Kind,
        name: int,
        begin: int,
        end: int,
        step: int,
        epoch: int,
        steps: int,
        size: int,
        done: int,
    ) -> None:
        number = self._number = self._number + 1
        at = _FIRST_SLOT + number % SLOTS * SLOT.size
        self._memory[at : at + SLOT.size] = SLOT.pack(
            number, begin, step, size, epoch, steps, name, _KIND[kind],
            end, 0, done, 0, 1 if end else 0, 0, *_NO_DIMENSIONS, number,
        )  # fmt: skip
        self._changed(at, at + SLOT.size)


def padded_dimensions(sizes: Sequence[int]) -> tuple[int, ...]:
    """As many dimensions as an event has room for."""
    return tuple(sizes[:DIMENSIONS])
