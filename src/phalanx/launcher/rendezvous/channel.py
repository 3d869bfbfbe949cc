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
"""Seconds between two heartbeats."""
SILENCE = 20.0
"""Seconds without a heartbeat after which the other end counts as lost."""

Message = Mapping[str, Any]


class Channel:
    """One end of a connection that detects soon when the other end is lost."""

    def __init__(
        self, connection: Connection[Any, Any], *, beat: float = BEAT, silence: float = SILENCE
    ) -> None:
        """Start to listen and to send heartbeats.

        Args:
            connection: authenticated.
            beat: seconds between heartbeats.
            silence: seconds without one after which the channel is lost.
        """
        self._connection = connection
        self._beat = beat
        self._silence = silence
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        for work in (self._listen, self._send_heartbeats):
            threading.Thread(target=work, name="phalanx-channel", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed or the other end is lost."""
        return self._ended.is_set()

    def send(self, message: Message) -> None:
        """Send, unless the channel is lost. A caller that waits for an answer detects the loss."""
        with self._sending, suppress(OSError):
            if not self.is_lost:
                self._connection.send_bytes(json.dumps(message).encode())
                return
        self._ended.set()

    def receive(self, seconds: float = 0.0) -> Message | None:
        """The next message; None if none arrives within `seconds`."""
        try:
            return self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """Close the connection."""
        self._ended.set()
        with suppress(OSError):
            self._connection.close()

    def _listen(self) -> None:
        with suppress(OSError, EOFError, ValueError, RecursionError):
            silent = 0.0
            # In short waits: if the process is stopped (SIGSTOP) meanwhile, only one counts.
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

    def _send_heartbeats(self) -> None:
        while not self._ended.wait(self._beat):
            self.send({})
