"""A script run up to its first `fit`, and what it was about to train on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import keras

from phalanx.training import fit as training
from phalanx.worker.run_script import Target, execute


@dataclass(frozen=True, kw_only=True)
class CapturedFit:
    """What `fit` was called with.

    Attributes:
        model: a compiled Keras model.
        x: arrays, a dataset, or what else fit takes.
        y: targets, where x does not bring them.
        batch_size: of arrays.
        options: all other arguments.
    """

    model: Any
    x: Any = None
    y: Any = None
    batch_size: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


class _FitReached(BaseException):
    """The script has come to its `fit`; no `except Exception` of its own stops this."""


def first_fit(target: Target) -> CapturedFit | None:
    """Run a script until it calls `fit`; None where it ends without.

    To be called once in a process: `fit` is not put back.
    """
    found: list[CapturedFit] = []

    def fit(
        model: Any, x: Any = None, y: Any = None, batch_size: int | None = None, **options: Any
    ) -> None:
        found.append(CapturedFit(model=model, x=x, y=y, batch_size=batch_size, options=options))
        raise _FitReached

    keras.Model.fit = fit
    vars(training)["fit"] = fit
    with suppress(_FitReached):
        execute(target)
    return found[0] if found else None
