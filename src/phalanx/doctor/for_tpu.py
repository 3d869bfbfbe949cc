"""Run a script up to its first `fit`, and see what a TPU would not take of it.

`phalanx doctor --for tpu train.py` starts this module in a process of its own. Nothing is
trained: the step is traced and compiled by XLA for this machine's CPU, for one batch size.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import keras
import tensorflow as tf

from phalanx.doctor.data import batch_size_of, findings_in_data
from phalanx.doctor.finding import Finding
from phalanx.doctor.step import findings_in_step
from phalanx.seam.adapters import adapt
from phalanx.seam.models import build
from phalanx.worker.execute import Target, execute

_ENOUGH = 32


class _Seen(BaseException):
    """The script has come to its `fit`; no `except Exception` of its own stops this."""


def findings(
    model: Any, x: Any = None, y: Any = None, batch_size: int | None = None, **options: Any
) -> list[Finding]:
    """What a TPU would not take of `model.fit(x, y, batch_size, ...)`."""
    adapter = adapt(
        x,
        y,
        sample_weight=options.get("sample_weight"),
        batch_size=batch_size,
        steps=options.get("steps_per_epoch"),
        class_weight=options.get("class_weight"),
    )
    spec = adapter.get_tf_dataset().element_spec
    found = findings_in_data(adapter, spec)
    if any(not isinstance(one, tf.TensorSpec) for one in keras.tree.flatten(spec)):
        return found
    build(model, spec, tf.distribute.get_strategy())
    return found + findings_in_step(model, spec, batch_size_of(adapter, spec) or _ENOUGH)


def main(arguments: list[str]) -> int:
    """Check the script; 0 where a TPU would take it, 1 where not, 2 where nothing is known."""
    found: list[list[Finding]] = []

    def fit(
        model: Any, x: Any = None, y: Any = None, batch_size: int | None = None, **options: Any
    ) -> None:
        found.append(findings(model, x, y, batch_size, **options))
        raise _Seen

    keras.Model.fit = fit
    with suppress(_Seen):
        execute(Target.from_arguments(arguments))
    if not found:
        print(f"{arguments[1]} calls no fit, so there is no step to look at.")
        return 2
    for finding in found[0]:
        print(finding)
    if found[0]:
        return 1
    print(
        f"Found nothing in {arguments[1]} that a TPU would not take: XLA compiles its step. "
        "Only a run on a TPU proves it."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
