"""Puts what comes from elsewhere, in any order and perhaps not at all, into its order.

Whatever belongs at a position can be made here too, so nothing is ever lost: what does not come is
made here, and what comes after that is left aside.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_log = logging.getLogger("phalanx")

AHEAD = 48
"""Elements that are kept before their turn; one that is further behind is taken for lost."""
TIMEOUT = 30.0
"""Seconds to wait while nothing comes at all."""
_NO_TIMEOUT = 0.1
"""The same, once that was without effect."""

Element = Sequence[Any]
Open = Callable[[int], Iterable[Element]]
"""Elements from a position on, in any order, each with its position first."""


@dataclass(kw_only=True)
class _Arrivals:
    """What has come of one stream; shared with the thread that reads it."""

    next: int
    condition: threading.Condition = field(default_factory=threading.Condition)
    elements: dict[int, Element] = field(default_factory=dict)
    ended: bool = False
    closed: bool = False
    silent: bool = False


class Fetcher:
    """Gives elements position by position.

    Attributes:
        made_here: how many did not come in time.
    """

    def __init__(
        self,
        remote: Open,
        local: Callable[[int], Element],
        *,
        ahead: int = AHEAD,
        max_wait: float = TIMEOUT,
    ) -> None:
        """Begin with nothing; the first position asked for opens the stream.

        Args:
            remote: opens the stream.
            local: makes the element of a position here.
            ahead: elements kept before their turn.
            max_wait: seconds to wait while nothing comes.
        """
        self.made_here = 0
        self._remote = remote
        self._local = local
        self._ahead = ahead
        self._max_wait = max_wait
        self._arrivals: _Arrivals | None = None
        self._close: Callable[[], object] = lambda: None

    def fetch(self, position: int) -> Element:
        """The element of a position; positions follow one another, or restart anywhere."""
        arrivals = self._arrivals
        if arrivals is None or arrivals.next != position:
            arrivals = self._begin(position)
        with arrivals.condition:
            arrivals.next = position + 1
            for late in [one for one in arrivals.elements if one < position]:
                del arrivals.elements[late]
            max_wait = _NO_TIMEOUT if arrivals.silent else self._max_wait
            came = arrivals.condition.wait_for(
                lambda: position in arrivals.elements or self._is_lost(arrivals), timeout=max_wait
            )
            arrivals.silent = not came
            element = arrivals.elements.pop(position, None)
            arrivals.condition.notify_all()
            if element is None and arrivals.closed:
                raise RuntimeError("Nothing is fetched any more.")
        if element is not None:
            return element
        self.made_here += 1
        if self.made_here & (self.made_here - 1) == 0:
            _log.warning(
                "batch %d did not come from the data service and is made here (%d so far)",
                position,
                self.made_here,
            )
        return self._local(position)

    def close(self) -> None:
        """Stop reading; also called when this object is deleted, and when Python ends."""
        self._close()

    def _is_lost(self, arrivals: _Arrivals) -> bool:
        return arrivals.ended or arrivals.closed or len(arrivals.elements) >= self._ahead

    def _begin(self, position: int) -> _Arrivals:
        self.close()
        self._arrivals = arrivals = _Arrivals(next=position)
        self._close = weakref.finalize(self, _close, arrivals)
        # The thread must not keep this object alive: it ends when this object is deleted.
        threading.Thread(
            target=_read,
            args=(self._remote, position, arrivals, self._ahead),
            name="phalanx-data-service",
            daemon=True,
        ).start()
        return arrivals


def _close(arrivals: _Arrivals) -> None:
    with arrivals.condition:
        arrivals.closed = True
        arrivals.condition.notify_all()


def _read(remote: Open, start: int, arrivals: _Arrivals, ahead: int) -> None:
    try:
        for position, *values in remote(start):
            with arrivals.condition:
                if int(position) >= arrivals.next - 1 and not arrivals.closed:
                    arrivals.elements[int(position)] = values
                    arrivals.condition.notify_all()
                arrivals.condition.wait_for(
                    lambda: arrivals.closed or len(arrivals.elements) < ahead
                )
                if arrivals.closed:
                    return
    except tf.errors.OpError as error:
        if not arrivals.closed:
            _log.warning("the data service gives no more: %s", error.message.splitlines()[0])
    finally:
        with arrivals.condition:
            arrivals.ended = True
            arrivals.condition.notify_all()
