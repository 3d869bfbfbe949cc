"""The form of a flight file: one ring of events a worker, of a fixed size.

    header    256 bytes: who writes it, and the phase of this moment
    texts     names and batch signatures, each once: its length (2 bytes), its UTF-8; length 0 ends
    slots     the last `SLOTS` events of `SLOT.size` bytes; number n is in slot n % `SLOTS`

All numbers are little-endian; times are nanoseconds since the epoch. A slot begins and ends with
the number of its event: where the two differ, it was being written.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, get_args

MAGIC = b"PHXFLT01"
"""How the file begins; the last two characters are the form's version."""

HEADER = struct.Struct("<8sIIIiiiqqqq64s")
"""Magic, size of texts, slot size, slots, rank, attempt, workers, pid, start, alive, end, host."""

HEADER_SIZE = 256
TEXTS_SIZE = 64 * 1024 - HEADER_SIZE
ALIVE = struct.Struct("<qq")
"""When the worker last said that it is alive, and when it ended; at `ALIVE_AT`."""

ALIVE_AT = struct.calcsize("<8sIIIiiiqq")

NOW = struct.Struct("<qqiH")
"""The phase of this moment: its begin, the step, the epoch, its name; at `NOW_AT`."""

NOW_AT = HEADER.size
DIMENSIONS = 6
SLOT = struct.Struct(f"<QqqqiiHBx4xqqiHBB{DIMENSIONS}iQ")
"""Number, begin, step, bytes, epoch, steps, name, kind; then `TAIL`; then the number again."""

TAIL = struct.Struct(f"<qqiHBB{DIMENSIONS}i")
"""What grows: end, came, done, signature, how, dimensions known, these; at `TAIL_AT`."""

TAIL_AT = struct.calcsize("<QqqqiiHBx4x")
SLOTS = 4096
FILE_SIZE = HEADER_SIZE + TEXTS_SIZE + SLOTS * SLOT.size
NOTHING = -1

Kind = Literal["phase", "train", "test", "predict", "collective"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Ending = Literal["open", "done", "failed", "out of data"]
ENDINGS: tuple[Ending, ...] = get_args(Ending)


@dataclass(frozen=True, kw_only=True)
class FlightEvent:
    """One thing that a worker did, or does.

    Attributes:
        number: counts the events of a worker's attempt, from 1.
        kind: what it is: a phase, steps that train, test or predict, a collective of the host.
        name: the phase or the collective.
        begin: when it began, in nanoseconds since the epoch.
        end: when it ended; None while it continues.
        how: how it ended.
        step: the first step under way, from 1; of a phase the last one trained.
        epoch: the epoch, from 0.
        steps: how many steps were asked for.
        done: how many batches had come; None where that is unknown.
        came: when the last of these came.
        bytes: how much a collective carries from this worker.
        signature: names, shapes and dtypes of the batches; `?` where a dimension may vary.
        dimensions: the values of the `?` in the last batch that came.
    """

    number: int
    kind: Kind
    name: str
    begin: int
    end: int | None = None
    how: Ending = "open"
    step: int | None = None
    epoch: int | None = None
    steps: int = 0
    done: int | None = None
    came: int | None = None
    bytes: int | None = None
    signature: str = ""
    dimensions: tuple[int, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it continues."""
        return self.end is None

    @property
    def batch(self) -> str:
        """The signature of the last batch, its dimensions filled in as far as known."""
        sizes = iter(self.dimensions)
        pieces = self.signature.split("?")
        between = [str(next(sizes, "?")) for _ in pieces[1:]]
        return "".join(a + b for a, b in zip(pieces, [*between, ""], strict=True))


@dataclass(frozen=True, kw_only=True)
class Flight:
    """What one worker's flight file holds.

    Attributes:
        rank: the worker.
        attempt: the start of the worker group.
        workers: how many there are.
        pid: its process.
        host: where that runs.
        started: when it began, in nanoseconds since the epoch.
        alive: when it last said that it is alive.
        ended: when it came to its end on its own; None where it did not.
        events: its last events, by number.
    """

    rank: int
    attempt: int
    workers: int
    pid: int
    host: str
    started: int
    alive: int
    ended: int | None
    events: tuple[FlightEvent, ...]
