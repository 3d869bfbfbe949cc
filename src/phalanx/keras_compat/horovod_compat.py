"""What scripts made for Horovod use of it, made right for Keras 3 or refused.

With Keras 3, `hvd.DistributedOptimizer` overrides methods that Keras no longer calls: nothing
is added up, and the processes part without a report. `BroadcastGlobalVariablesCallback` and the
callbacks of the learning rate use names that Keras 3 has not
(https://github.com/horovod/horovod/issues/4052).

Private names used, of Horovod 0.28: `horovod._keras.create_distributed_optimizer`, and in
`horovod._keras.callbacks` the classes `...Impl` and their methods. A script's
`import horovod.tensorflow.keras as hvd` or `import horovod.keras as hvd` leads to these.
"""

from __future__ import annotations

import importlib
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from phalanx.distributed.strategy import uses_horovod
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.optimizer_clippers import innermost
from phalanx.keras_compat.patches import Patches

_log = logging.getLogger("phalanx")
_distributed: weakref.WeakSet[Any] = weakref.WeakSet()


def is_distributed(optimizer: Any) -> bool:
    """Whether the script has given this optimizer to `hvd.DistributedOptimizer`."""
    return optimizer is not None and innermost(optimizer) in _distributed


def _replacements() -> Mapping[tuple[Any, str], Any]:
    api = importlib.import_module("horovod._keras")
    made: dict[tuple[Any, str], Any] = {
        (api, "create_distributed_optimizer"): _distributed_optimizer,
    }
    if not uses_horovod(tf.distribute.get_strategy()):
        return made
    callbacks = importlib.import_module("horovod._keras.callbacks")
    rates = callbacks.LearningRateScheduleCallbackImpl
    made |= {
        (callbacks.BroadcastGlobalVariablesCallbackImpl, "on_train_begin"): _refuse_other_root,
        (callbacks.BroadcastGlobalVariablesCallbackImpl, "on_batch_end"): _nothing,
        (callbacks.MetricAverageCallbackImpl, "on_epoch_end"): _nothing,
        (rates, "on_train_begin"): _with_names_of_keras_2(rates.on_train_begin),
        (rates, "_adjust_learning_rate"): _adjust_learning_rate,
        (rates, "on_epoch_end"): _log_learning_rate,
        (importlib.import_module("horovod.tensorflow.elastic"), "run"): _refuse_elastic,
        (importlib.import_module("horovod.tensorflow.keras.elastic"), "run"): _refuse_elastic,
    }
    return made


def _distributed_optimizer(
    keras: Any, optimizer: Any, name: Any = None, *places: Any, **options: Any
) -> Any:
    """What `hvd.DistributedOptimizer(optimizer)` gives: the same, whose gradients are added up.

    Raises:
        ConfigurationError: the strategy is another, or an option changes what is computed.
    """
    del keras, name, places
    strategy = tf.distribute.get_strategy()
    horovod = importlib.import_module("horovod.tensorflow")
    if not uses_horovod(strategy):
        raise ConfigurationError(
            "Asked for hvd.DistributedOptimizer, but this script trains under "
            f"{type(strategy).__name__}, where Horovod adds nothing up. Use phalanx run "
            "--strategy horovod, or take Horovod out of the script (docs/coming-from/horovod.md)."
        )
    refused = _changing(options, horovod)
    if refused is not None:
        raise ConfigurationError(
            f"Asked for hvd.DistributedOptimizer with {refused}, which Phalanx does not follow: "
            "gradients are averaged over all processes, at each step. Leave it out; for several "
            "passes a step give the optimizer gradient_accumulation_steps."
        )
    _distributed.add(innermost(optimizer))
    _log.info("hvd.DistributedOptimizer: Phalanx adds up the gradients of %s", optimizer.name)
    return optimizer


def _changing(options: Mapping[str, Any], horovod: Any) -> str | None:
    """The first option that changes what is computed; others change how fast."""
    average = options.get("op", horovod.Average)
    if average != horovod.Average:
        return "op=Sum"
    if (passes := options.get("backward_passes_per_step", 1)) != 1:
        return f"backward_passes_per_step={passes}"
    everybody = horovod.global_process_set
    if options.get("process_set", everybody) is not everybody:
        return "a process_set of its own"
    return None


def _refuse_other_root(callback: Any, logs: Any = None) -> None:
    del logs
    if callback.root_rank != 0:
        raise ConfigurationError(
            f"Asked to broadcast the variables of process {callback.root_rank}; Phalanx begins "
            "with those of process 0, the chief. Use BroadcastGlobalVariablesCallback(0)."
        )


def _nothing(callback: Any, *arguments: Any, **more: Any) -> None:
    """Phalanx already broadcast the variables, and the logs are those of all workers."""
    del callback, arguments, more


def _with_names_of_keras_2(original: Callable[..., None]) -> Callable[..., None]:
    def on_train_begin(callback: Any, logs: Any = None) -> None:
        momentum = getattr(innermost(callback.model.optimizer), "momentum", 0)
        if callback.momentum_correction and momentum:
            raise ConfigurationError(
                f"Asked for momentum_correction of an optimizer with momentum {momentum}, which "
                "Keras 3 fixes when the step is traced. Pass momentum_correction=False."
            )
        original(callback, logs)

    return on_train_begin


def _adjust_learning_rate(callback: Any, epoch: float) -> None:
    callback.model.optimizer.learning_rate = callback.initial_lr * callback.multiplier(epoch)


def _log_learning_rate(callback: Any, epoch: int, logs: Any = None) -> None:
    del epoch
    if logs is not None:
        logs["lr"] = float(callback.model.optimizer.learning_rate)


def _refuse_elastic(function: Any) -> Any:
    raise ConfigurationError(
        f"Asked for hvd.elastic.run of {getattr(function, '__name__', function)!r}; Phalanx starts "
        "a failed worker group again as a whole. Call the function itself, and use --max-restarts."
    )


horovod_scripts = Patches(_replacements)
"""Enter it, and what scripts use of Horovod trains right or is refused."""
