"""Right gradients in a hand-written loop, without `phalanx.enable()`."""

from __future__ import annotations

from typing import Any

import keras

from phalanx.errors import OptionError
from phalanx.seam.optimizers import give_own_pipeline


def distribute_optimizer(optimizer: Any) -> Any:
    """Let `optimizer` add up its gradients over all replicas before it clips them.

    For loops that call `strategy.run` themselves. As `tf.distribute` has it there, the
    replicas' gradients are summed: scale the loss by the global batch size. Under
    `phalanx.enable()`, so also under `phalanx run`, every Keras optimizer does this.

    Args:
        optimizer: a Keras 3 optimizer; it is changed and returned.

    Raises:
        OptionError: `optimizer` is not a Keras 3 optimizer.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise OptionError(
            "distribute_optimizer needs a keras.optimizers.Optimizer (Keras 3); found "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    give_own_pipeline(optimizer)
    return optimizer
