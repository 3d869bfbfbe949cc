"""At which steps the metrics are read: the same steps on every worker.

A reading is a collective, so it cannot depend on one worker's clock. A callback that uses
`logs` at every batch has them read at every step; otherwise the chief proposes the next
step at each reading, so that readings cost little and progress still looks alive.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from typing import Any

import keras

_HOOKS = {
    "train": ("on_train_batch_end", "on_batch_end"),
    "test": ("on_test_batch_end",),
}
_SECONDS_BETWEEN_READINGS = 0.5


def uses_batch_logs(callback: Any, kind: str) -> bool:
    """Whether `callback` looks at `logs` when a batch ends.

    A hook that it does not override, or whose code never mentions its `logs`, does not.
    What cannot be told counts as yes.
    """
    for name in _HOOKS[kind]:
        hook = vars(callback).get(name, getattr(type(callback), name, None))
        base = getattr(keras.callbacks.Callback, name, None)
        if hook is None or hook is base:
            continue
        if kind == "train" and name == "on_batch_end" and _delegates_elsewhere(callback):
            continue
        if _mentions_logs(hook):
            return True
    return False


def _delegates_elsewhere(callback: Any) -> bool:
    """Whether `on_train_batch_end` was overridden, so that `on_batch_end` is not called."""
    own = getattr(type(callback), "on_train_batch_end", None)
    return own is not keras.callbacks.Callback.on_train_batch_end


def _mentions_logs(hook: Callable[..., Any]) -> bool:
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    if code is None:
        return True
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    candidates = {"logs"} if "logs" in arguments else set(arguments[-1:])
    takes_any = code.co_flags & 0x0C  # *args or **kwargs may carry them
    used = {i.argval for i in dis.get_instructions(code) if "LOAD" in i.opname}
    return bool(takes_any or candidates & used or candidates & set(code.co_cellvars))


class ReadingCadence:
    """Decides, alike on every worker, at which steps metrics are read."""

    def __init__(
        self,
        callbacks: Iterable[Any],
        kind: str,
        *,
        shows_progress: bool,
        clock: Callable[[], float],
        on_any_worker: Callable[[bool, bool], tuple[bool, bool]] = lambda *own: own,
    ) -> None:
        """Look at the callbacks once; what one worker needs, all workers read.

        Args:
            callbacks: the callbacks of this call.
            kind: "train" or "test".
            shows_progress: whether the chief shows progress between epochs' ends.
            clock: seconds, increasing.
            on_any_worker: tells of each of two needs whether some worker has it.
        """
        every_step = any(uses_batch_logs(c, kind) for c in callbacks)
        self._every_step, self._shows_progress = on_any_worker(every_step, shows_progress)
        self._clock = clock
        self._next = 1
        self._last: tuple[int, float] | None = None

    def is_due(self, steps_done: int) -> bool:
        """Whether to read after `steps_done` steps of this epoch."""
        return self._every_step or (self._shows_progress and steps_done >= self._next)

    def start_epoch(self) -> None:
        """Steps count from 0 again."""
        self._next = 1
        self._last = None

    def propose(self, steps_done: int) -> float:
        """The next step to read at, if this worker is the chief."""
        now = self._clock()
        if self._last is None or steps_done == self._last[0]:
            ahead = 1.0
        else:
            seconds_a_step = (now - self._last[1]) / (steps_done - self._last[0])
            ahead = _SECONDS_BETWEEN_READINGS / max(seconds_a_step, 1e-6)
        self._last = (steps_done, now)
        return float(steps_done + max(1, min(int(ahead), 10_000)))

    def agree(self, next_step: float) -> None:
        """Take over what the chief proposed."""
        self._next = int(next_step)
