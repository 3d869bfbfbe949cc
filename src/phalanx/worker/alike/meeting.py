"""Where workers tell each other what they bring: the chief hears all, and says what it found.

One small message from each worker and one answer, over a connection that lasts as long as the
worker. So a worker that ends is noticed at once.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any, Protocol

from phalanx.worker.alike.brought import Brought, difference

_log = logging.getLogger(__name__)
_BETWEEN_TRIES = 0.1
_WARN_AFTER = 60.0

Address = tuple[str, int]


class Answer:
    """What the chief found.

    Attributes:
        said: who differs, in words; empty where nobody does.
        is_gone: whether that is because a worker has ended.
    """

    def __init__(self, said: str = "", *, is_gone: bool = False) -> None:
        self.said = said
        self.is_gone = is_gone

    def to_bytes(self) -> bytes:
        """For another process."""
        return json.dumps([self.said, self.is_gone]).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Answer:
        """What `to_bytes` wrote."""
        said, is_gone = json.loads(text)
        return cls(said, is_gone=is_gone)


class Meeting(Protocol):
    """A worker's end of the meetings."""

    def meet(self, brought: Brought) -> Answer:
        """Tell what this worker brings, and hear what all made of it."""


class Host:
    """The chief's end."""

    def __init__(self, address: Address, workers: int, *, patience: float | None) -> None:
        """Listen at `address`, and return when all others have come.

        Args:
            address: host and port.
            workers: how many there are, the chief included.
            patience: seconds to wait for a worker that does not come; None for ever.

        Raises:
            OSError: the address is taken.
        """
        self._patience = patience
        self._guests: dict[int, Connection[Any, Any]] = {}
        self._last: dict[int, Brought] = {}
        with Listener(address, backlog=workers) as listener:
            while len(self._guests) < workers - 1:
                connection = listener.accept()
                self._guests[int(connection.recv_bytes())] = connection

    def meet(self, brought: Brought) -> Answer:
        """See `Meeting`."""
        heard = {0: brought}
        answer = self._hear(heard)
        if answer is None:
            answer = Answer(difference(heard) or "")
        self._last.update(heard)
        for connection in self._guests.values():
            try:
                connection.send_bytes(answer.to_bytes())
            except OSError:
                continue  # It has ended, and needs no answer.
        return answer

    def _hear(self, heard: dict[int, Brought]) -> Answer | None:
        """Take what the others bring into `heard`; an answer where one of them does not come."""
        ranks = {id(connection): rank for rank, connection in self._guests.items()}
        waiting = dict(self._guests)
        begin, warned = time.monotonic(), False
        pause = _WARN_AFTER if self._patience is None else min(_WARN_AFTER, self._patience)
        while waiting:
            for ready in wait(list(waiting.values()), pause):
                rank = ranks[id(ready)]
                connection = waiting.pop(rank)
                try:
                    heard[rank] = Brought.from_bytes(connection.recv_bytes())
                except (EOFError, OSError):
                    return Answer(self._gone(rank, heard[0]), is_gone=True)
            waited = time.monotonic() - begin
            if waiting and waited >= _WARN_AFTER and not warned:
                warned = True
                _log.warning("%s", self._late(min(waiting), heard[0], waited))
            if waiting and self._patience is not None and waited >= self._patience:
                return Answer(self._late(min(waiting), heard[0], waited))
        return None

    def _gone(self, rank: int, brought: Brought) -> str:
        return f"worker {rank} has ended{self._was(rank)}; the others are {brought.place}"

    def _late(self, rank: int, brought: Brought, waited: float) -> str:
        return (
            f"worker {rank} has not come for {waited:.0f} s{self._was(rank)}; worker 0 is "
            f"{brought.place}"
        )

    def _was(self, rank: int) -> str:
        last = self._last.get(rank)
        return "" if last is None else f" after it was {last.place}"


class Guest:
    """The end of a worker that is not the chief."""

    def __init__(
        self,
        address: Address,
        rank: int,
        *,
        patience: float | None,
        startup: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Go to the chief, which may not listen yet.

        Args:
            address: host and port of the chief's.
            rank: this worker's.
            patience: seconds to wait for an answer; None for ever.
            startup: seconds until the chief must listen.
            sleep: waits so many seconds.

        Raises:
            OSError: nobody listens there.
        """
        # The chief has to wait for others too, who may come later than this worker.
        self._patience = None if patience is None else 2 * patience
        end = time.monotonic() + startup
        while True:
            try:
                self._chief = Client(address)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                sleep(_BETWEEN_TRIES)
        self._chief.send_bytes(str(rank).encode())

    def meet(self, brought: Brought) -> Answer:
        """See `Meeting`."""
        try:
            self._chief.send_bytes(brought.to_bytes())
            if not self._chief.poll(self._patience):
                return Answer(
                    f"worker 0 has not come for {self._patience:.0f} s; here it is {brought.place}"
                )
            return Answer.from_bytes(self._chief.recv_bytes())
        except (EOFError, OSError):
            return Answer(f"worker 0 has ended; here it is {brought.place}", is_gone=True)
