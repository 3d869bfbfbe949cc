"""Messages between two launchers: JSON over one authenticated connection.

`multiprocessing.connection` gives the connection; both ends prove that they know the run's token
(HMAC) before anything else is read. Nothing is pickled.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from phalanx.cluster.authenticated_connection import MAX_MESSAGE_BYTES

BEAT = 2.0
"""Seconds between two signs of life."""
SILENCE = 20.0
"""Seconds without a sign of life after which the other end counts as gone."""

Message = Mapping[str, Any]


class Channel:
    """One end of a connection that tells soon when the other end is gone."""

    def __init__(
        self, connection: Connection[Any, Any], *, beat: float = BEAT, silence: float = SILENCE
    ) -> None:
        """Begin to listen and to give signs of life.

        Args:
            connection: authenticated.
            beat: seconds between signs of life.
            silence: seconds without one after which the wire is lost.
        """
        self._connection = connection
        self._beat = beat
        self._silence = silence
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        for work in (self._listen, self._give_signs):
            threading.Thread(target=work, name="phalanx-wire", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether nothing more will come or go."""
        return self._ended.is_set()

    def send(self, message: Message) -> None:
        """Send, unless the wire is lost: who waits for an answer finds that out."""
        with self._sending, suppress(OSError):
            if not self.is_lost:
                self._connection.send_bytes(json.dumps(message).encode())
                return
        self._ended.set()

    def take(self, seconds: float = 0.0) -> Message | None:
        """The next message; None where none has come within so many seconds."""
        try:
            return self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """Hang up."""
        self._ended.set()
        with suppress(OSError):
            self._connection.close()

    def _listen(self) -> None:
        with suppress(OSError, EOFError, ValueError, RecursionError):
            silent = 0.0
            # In short waits: of a wait in which this process was stopped, one alone counts.
            while not self._ended.is_set() and silent < self._silence:
                if not self._connection.poll(wait := min(self._beat, self._silence)):
                    silent += wait
                    continue
                silent = 0.0
                message = json.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
                if not isinstance(message, dict):
                    break
                if message:
                    self._inbox.put(message)
        self._ended.set()

    def _give_signs(self) -> None:
        while not self._ended.wait(self._beat):
            self.send({})
