"""Do all replicas hold the same weights?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.fit_protocols import at_most_one
from phalanx.callbacks.validation import check_count
from phalanx.errors import ConfigurationError

OnDifference = Literal["warn", "raise"]


class ReplicaConsistencyCheck(Callback):
    """How `fit` compares its replicas' weights, optimizer states and seeds.

    It compares them with or without this callback, where there are several replicas: when
    training begins, every now and then, and when it ends. What is compared is a fingerprint of all
    bits, one number from each replica. Where they are not equal, the replicas look for the first
    variable that differs, and say its name, the step, who differs, and by how much.

    What differs by design is left out: metrics, and what a layer assigns on its own in a step,
    such as moving statistics of a BatchNormalization that is not synchronized.
    """

    logs_every_n_steps = 0

    def __init__(
        self,
        *,
        every_steps: int | None = 100,
        max_overhead: float | None = 0.01,
        on_difference: OnDifference = "warn",
        tolerance: float = 1e-4,
    ) -> None:
        """Choose how; the chief's choice holds for all workers.

        Args:
            every_steps: steps from one comparison to the next, at least; None for no comparison.
            max_overhead: the share of training time that comparisons may take; they become rarer
                where that needs it. None for any share.
            on_difference: "warn" says so once and continues; "raise" ends the training.
            tolerance: the difference, as a share of the variable's largest entry, up to which it
                may be rounding, as between unlike processors: that is said at level INFO.

        Raises:
            ConfigurationError: a value is none of these.
        """
        super().__init__()
        if every_steps is not None:
            check_count("every_steps", every_steps)
        if on_difference not in get_args(OnDifference):
            raise ConfigurationError(
                f"on_difference must be 'warn' or 'raise'; found {on_difference!r}."
            )
        for name, number in (("max_overhead", max_overhead), ("tolerance", tolerance)):
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if number is not None and not (is_number and 0 <= number < 1):
                raise ConfigurationError(
                    f"{name} must be a number from 0 to below 1; found {number!r}."
                )
        self.every_steps = every_steps
        self.max_overhead = max_overhead
        self.on_difference = on_difference
        self.tolerance = tolerance


def find_replica_check(callbacks: Iterable[Any]) -> ReplicaConsistencyCheck:
    """The one in a list of callbacks; the default where there is none.

    Raises:
        ConfigurationError: there are several.
    """
    found = [callback for callback in callbacks if isinstance(callback, ReplicaConsistencyCheck)]
    return at_most_one(found, advice="Give one of them.") or ReplicaConsistencyCheck()
