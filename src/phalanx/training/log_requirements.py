"""At which batches callbacks read `logs`: what they declare, else what their code shows."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from phalanx.callbacks.progress import Progress
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.callback_adapters import LogSchedule, policy_of

_HOOKS = {
    "train": ("on_train_batch_end", "on_batch_end"),
    "test": ("on_test_batch_end",),
}
_ANY_BATCH_HOOK = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)


@dataclass(frozen=True, kw_only=True)
class LogRequirements:
    """What is wanted of readings between the ends of epochs."""

    every: tuple[LogSchedule, ...] = ()
    shows_progress: bool = False

    @classmethod
    def of(cls, callbacks: Iterable[Any], kind: str, *, shows_progress: bool) -> LogRequirements:
        """What `callbacks` want when they are called for "train" or "test"."""
        callbacks = list(callbacks)
        shown = shows_progress or any(map(shows_progress_itself, callbacks))
        every = tuple(requirement for c in callbacks for requirement in requirements_of(c, kind))
        return cls(every=every, shows_progress=shown)

    @classmethod
    def together(cls, of_each: Sequence[LogRequirements]) -> LogRequirements:
        """All that some worker wants."""
        every = {requirement: None for one in of_each for requirement in one.every}
        return cls(every=tuple(every), shows_progress=any(one.shows_progress for one in of_each))

    def to_array(self) -> Any:
        """Numbers that say the same, to hand to other workers."""
        rows = [
            (requirement.steps, requirement.already, int(requirement.calls))
            for requirement in self.every
        ]
        return np.array([(int(self.shows_progress), 0, 0), *rows], np.int64)

    @classmethod
    def from_array(cls, rows: Any) -> LogRequirements:
        """What `to_array` made."""
        every = [LogSchedule(steps=int(s), already=int(a), calls=bool(c)) for s, a, c in rows[1:]]
        return cls(every=tuple(every), shows_progress=bool(rows[0][0]))


def shows_progress_itself(callback: Any) -> bool:
    """Whether a callback is a progress display, which takes what is read anyway."""
    return isinstance(callback, Progress) or policy_of(callback).shows_progress


def requirements_of(callback: Any, kind: str) -> Sequence[LogSchedule]:
    """At which batches `callback` wants fresh logs."""
    if shows_progress_itself(callback):
        return []
    declared = getattr(callback, "logs_every_n_steps", None)
    if declared is not None:
        if not isinstance(declared, int) or declared < 0:
            raise ConfigurationError(
                f"{type(callback).__name__}.logs_every_n_steps must be a number of batches, 0 for "
                f"never, or None to have the code looked at; found {declared!r}."
            )
        return (
            [LogSchedule(steps=declared)] if declared and overrides(callback, _HOOKS[kind]) else []
        )
    reads = policy_of(callback).reads
    if kind == "train" and reads is not None and _is_kerass(callback, _HOOKS[kind][0]):
        return reads(callback)
    return [LogSchedule(steps=1)] if uses_batch_logs(callback, kind) else []


def watches_batches(callback: Any) -> bool:
    """Whether `callback` has to be called for each batch: its hooks may read or change anything.

    Not so progress displays, Keras's own callbacks that act at the ends of epochs only, and those
    with `needs_every_batch = False`.
    """
    if shows_progress_itself(callback) or not overrides(callback, _ANY_BATCH_HOOK):
        return False
    if getattr(callback, "needs_every_batch", True) is False:
        return False
    kerass = all(
        _own_hook(callback, name) is None or _is_kerass(callback, name) for name in _ANY_BATCH_HOOK
    )
    return not (kerass and policy_of(callback).acts_on_epochs_only(callback))


def uses_batch_logs(callback: Any, kind: str) -> bool:
    """Whether `callback` looks at `logs` when a batch ends.

    A hook that it does not override, or whose code never mentions its `logs`, does not.
    What is unknown counts as yes.
    """
    for name in _HOOKS[kind]:
        hook = _own_hook(callback, name)
        if hook is None:
            continue
        if kind == "train" and name == "on_batch_end" and _delegates_elsewhere(callback):
            continue
        if _mentions_logs(hook):
            return True
    return False


def overrides(callback: Any, names: Iterable[str]) -> bool:
    """Whether `callback` has a hook of its own under one of `names`."""
    return any(_own_hook(callback, name) is not None for name in names)


def _own_hook(callback: Any, name: str) -> Callable[..., Any] | None:
    hook = vars(callback).get(name, getattr(type(callback), name, None))
    return None if hook is getattr(keras.callbacks.Callback, name, None) else hook


def _is_kerass(callback: Any, name: str) -> bool:
    """Whether a hook is one that Keras wrote, and not a user's class below it."""
    module = getattr(_own_hook(callback, name), "__module__", "") or ""
    return module.split(".")[0] == "keras"


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
    loads = [i.argval for i in dis.get_instructions(code) if "LOAD" in i.opname]
    # From Python 3.13 on, one instruction may load two variables, or store one and load one.
    used = {name for one in loads for name in (one if isinstance(one, tuple) else (one,))}
    return bool(takes_any or candidates & used or candidates & set(code.co_cellvars))
