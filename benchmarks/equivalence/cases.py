"""The cases: those of the equivalence tests, less what says nothing about plain Keras."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parents[2] / "tests" / "equivalence")
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)

from equivalence_case import Case, Outcome, by_phalanx, distance, plain_keras, run  # noqa: E402
from equivalence_cases import CASES  # noqa: E402

from equivalence.one_topic import on_its_topic  # noqa: E402

__all__ = ["Case", "Outcome", "by_phalanx", "chosen", "distance", "plain_keras", "run"]


def chosen() -> dict[str, Case]:
    """By name.

    One uneven remainder stands for all of them. Cases whose order of samples is Phalanx's
    own invention have no answer of Keras's to be held against.
    """
    return {
        name: on_its_topic(case)
        for name, case in CASES.items()
        if case.reference == "keras" and name not in {f"remainder_{r}" for r in range(2, 8)}
    }
