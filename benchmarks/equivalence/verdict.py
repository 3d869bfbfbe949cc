"""Is an answer one device's, and if not, how far off is it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equivalence.cases import Case, Outcome, distance
from equivalence.trainings import Crash, Result

TOLERANCE = 1e-4
"""Relative, unless the case allows more. The tests are stricter; rounding is no error here."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a cell of the table says."""

    right: bool
    text: str
    detail: str = ""


def judge(case: Case, expected: Result, got: Result) -> Verdict:
    """Hold `got` against one device's answer."""
    if isinstance(expected, Crash):
        return Verdict(right=False, text="no reference", detail=expected.message)
    if isinstance(got, Crash):
        return Verdict(right=False, text=f"crashes: {got.error}", detail=got.message)
    limit = max(case.tolerance, TOLERANCE)
    for part, error in _errors(expected, got).items():
        if error > limit:
            shown = _of_all(expected.weights, got.weights) if part == "weights" else error
            return Verdict(right=False, text=f"{part} {_how_far(shown)}", detail=f"{error}")
    return Verdict(right=True, text="right")


def _errors(expected: Outcome, got: Outcome) -> dict[str, float]:
    """By part, the largest distance; in the order of what explains what."""
    return {
        "weights": _of_lists(expected.weights, got.weights),
        "history": _of_dicts(expected.history, got.history),
        "evaluate": _of_dicts(expected.evaluation, got.evaluation),
        "predict": _of_lists(expected.predictions, got.predictions),
    }


def _of_all(expected: list, got: list) -> float:
    """The length of the difference, relative to the length of what was expected.

    Integers, such as seeds, are none of it: they are larger than all weights.
    """
    floats = ([v for v in vs if np.asarray(v).dtype.kind not in "iu"] for vs in (expected, got))
    a, b = (np.concatenate([np.ravel(v) for v in vs]).astype("float64") for vs in floats)
    return float(np.linalg.norm(b - a) / np.linalg.norm(a)) if a.shape == b.shape else np.inf


def _of_lists(expected: list, got: list) -> float:
    if [np.shape(a) for a in expected] != [np.shape(b) for b in got]:
        return np.inf
    if any(np.asarray(b).dtype == object for b in got):  # rows of several lengths, or not rows
        return np.inf
    return max((distance(b, a) for a, b in zip(expected, got, strict=True)), default=0.0)


def _of_dicts(expected: dict, got: dict) -> float:
    if expected.keys() != got.keys():
        return np.inf
    return _of_lists(
        [np.asarray(v) for v in expected.values()], [np.asarray(got[k]) for k in expected]
    )


def _how_far(error: float) -> str:
    if not np.isfinite(error):
        return "of another form"
    return f"off by {error:.0%}" if error >= 0.1 else f"off by {error * 100:.2g}%"
