"""What to do about errors of TensorFlow's that name no way out: said as a note on them."""

from __future__ import annotations

_ADVICE = {
    "handle is not available outside the replica": (
        "Phalanx: a tf.GradientTape in a callback, or elsewhere outside a step, cannot follow "
        "variables that several replicas hold. To see gradients, add "
        "phalanx.callbacks.GradientLogger; for a computation of your own, put it into "
        "strategy.run or train_step."
    ),
}
"""What a message holds, and what to do about it; docs/troubleshooting.md has the same."""


def advise(error: BaseException) -> None:
    """Add what is known about `error` to what it prints."""
    for part, advice in _ADVICE.items():
        if part in str(error) and advice not in getattr(error, "__notes__", ()):
            error.add_note(advice)
