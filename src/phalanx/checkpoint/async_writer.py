"""One write in parallel to training, at the most."""

from __future__ import annotations

import threading
from collections.abc import Callable


class AsyncWriter:
    """Runs one action at a time in a thread of its own, and keeps what it raised."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, action: Callable[[], object]) -> None:
        """Wait for the action before, then begin this one."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(action,), name="phalanx-checkpoint", daemon=True
        )
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the last action has raised already."""
        return self._error is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the action under way; False where it takes longer than `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def take_error(self) -> Exception | None:
        """What the last action raised, once."""
        error, self._error = self._error, None
        return error

    def _run(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # raised again where the result is awaited
            self._error = error
