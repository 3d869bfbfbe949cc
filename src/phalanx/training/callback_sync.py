"""What callbacks decide is decided once: all workers stop, continue and learn the same.

Callbacks run on every worker, and what they decide by global logs is the same everywhere.
What they decide by anything else (a clock, a file, chance, or since only some workers have
them) is synchronized here, before the workers could diverge.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

import keras
import numpy as np

from phalanx.distributed.host_collectives import all_gather_rows, broadcast_array, on_any_worker
from phalanx.distributed.topology import ReplicaTopology
from phalanx.keras_compat.callback_adapters import has_restored
from phalanx.keras_compat.model_access import first_epoch, set_first_epoch, settable_learning_rates
from phalanx.training.local_steps import LocalSteps
from phalanx.training.log_requirements import overrides

_BATCH_HOOKS = tuple(
    f"on_{kind}batch_{when}"
    for kind in ("", "train_", "test_", "predict_")
    for when in ("begin", "end")
)


class CallbackSync(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """The last callback of every worker's list, where there are several workers.

    - A state that the chief restored when training began, all take over.
    - The learning rate is the chief's, where an epoch begins and where it ends.
    - A worker that stops, stops all. Within an epoch they ask each other after each batch,
      if some worker has a callback whose batch hooks may stop; else where the epoch ends.
    - No worker leaves before the chief's callbacks have closed their files.
    """

    local_steps: LocalSteps | None = None
    """In `fit`, what knows whether all workers have just synchronized; None in other calls."""

    needs_every_batch = False  # Of its own it needs none: others' batch hooks may stop.

    def __init__(self, strategy: Any, topology: ReplicaTopology, callbacks: Iterable[Any]) -> None:
        """Look at this worker's callbacks; nothing is asked before the first hook."""
        super().__init__()
        self._strategy = strategy
        self._topology = topology
        self._callbacks = list(callbacks)
        self._needs: tuple[bool, bool] | None = None
        self._wants_to_stop = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Take over what the chief restored."""
        _, any_callback = self._ask_once()
        if not any_callback:
            return
        restored = self._topology.is_chief and any(map(has_restored, self._callbacks))
        [restored] = on_any_worker(self._strategy, self._topology, restored)
        if restored:
            self._sync_restored_state()

    def on_test_begin(self, logs: Any = None) -> None:
        """Find out what the workers need."""
        self._ask_once()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Find out what the workers need."""
        self._ask_once()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Learn at the chief's rate."""
        self._sync_learning_rate()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop together, and between two syncs not yet."""
        waits = self.local_steps is not None and not self.local_steps.may_exchange
        self._sync_stop("stop_training", waits=waits)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop together."""
        self._sync_stop("stop_evaluating")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop together."""
        self._sync_stop("stop_predicting")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Learn at the chief's rate; `fit` itself asks whether to stop."""
        self._sync_learning_rate()
        self.model.stop_training |= self._wants_to_stop

    def on_train_end(self, logs: Any = None) -> None:
        """Wait for each other: what the chief writes is there when `fit` returns."""
        if self._ask_once()[1]:
            on_any_worker(self._strategy, self._topology, False)

    def _ask_once(self) -> tuple[bool, bool]:
        """Whether some worker may stop at a batch, and whether some has callbacks at all."""
        if self._needs is None:
            may_stop = any(map(may_stop_at_a_batch, self._callbacks))
            has_callbacks = bool(self._callbacks)
            first, second = on_any_worker(self._strategy, self._topology, may_stop, has_callbacks)
            self._needs = first, second
        return self._needs

    def _sync_stop(self, flag: str, *, waits: bool = False) -> None:
        stops = bool(getattr(self.model, flag))
        if self._ask_once()[0] and not waits:
            if self.local_steps is not None and flag == "stop_training":
                stops |= self._wants_to_stop
            [stops] = on_any_worker(self._strategy, self._topology, stops)
            setattr(self.model, flag, stops)
        elif stops:  # The others were not asked, so it has to wait.
            self._wants_to_stop |= flag == "stop_training"
            setattr(self.model, flag, False)

    def _sync_learning_rate(self) -> None:
        rates = settable_learning_rates(getattr(self.model, "optimizer", None))
        if not rates or not self._ask_once()[1]:
            return
        own = np.array([float(rate.numpy()) for rate in rates], np.float64)
        chiefs = all_gather_rows(self._strategy, self._topology, own.view(np.int64))[0]
        for rate, here, there in zip(rates, own, chiefs.view(np.float64), strict=True):
            if here != there:
                rate.assign(there)

    def _sync_restored_state(self) -> None:
        model = self.model
        optimizer: Any = getattr(model, "optimizer", None)
        if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
            optimizer.build(model.trainable_variables)  # as bringing it back did on the chief
        variables = [*model.variables, *getattr(optimizer, "variables", [])]
        epoch = np.array([first_epoch(model, 0)], np.int64)
        values = [np.array(variable.numpy()) for variable in variables]
        epoch, *values = broadcast_array(self._strategy, self._topology, [epoch, *values])
        set_first_epoch(model, int(epoch[0]))
        if not self._topology.is_chief:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)


def may_stop_at_a_batch(callback: Any) -> bool:
    """Whether a callback has batch hooks and names a way to stop anywhere in its code.

    What it calls outside its own class is not looked at.
    """
    return overrides(callback, _BATCH_HOOKS) and any(map(_names_a_stop, _functions_of(callback)))


def _functions_of(callback: Any) -> Iterable[CodeType]:
    classes = [c for c in type(callback).__mro__ if c not in (object, keras.callbacks.Callback)]
    for owner in [callback, *classes]:
        for value in vars(owner).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                yield function.__code__


def _names_a_stop(code: CodeType) -> bool:
    names = {"stop_training", "stop_evaluating", "stop_predicting"}
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    constants = {constant for constant in code.co_consts if isinstance(constant, str)}
    return bool(names & (constants | set(code.co_names))) or any(map(_names_a_stop, inner))
