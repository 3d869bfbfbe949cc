"""The result of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error"]
"""Ready; ready, with a note; not ready for training."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One finding of a check.

    Attributes:
        check: its name.
        verdict: see `Verdict`.
        what: what was found, with the value.
        fix: the command that fixes it, or an instruction; None if there is nothing to fix.
        host: the node, if several were checked; None for all of them together.
    """

    check: str
    verdict: Verdict
    what: str
    fix: str | None = None
    host: str | None = None


def ok(check: str, what: str, fix: str | None = None) -> Result:
    """Ready for training; `fix` changes it for users who want to."""
    return Result(check=check, verdict="ok", what=what, fix=fix)


def warning(check: str, what: str, fix: str | None = None) -> Result:
    """Training works, with this limitation."""
    return Result(check=check, verdict="warning", what=what, fix=fix)


def failed(check: str, what: str, fix: str) -> Result:
    """Training does not work until this is fixed."""
    return Result(check=check, verdict="error", what=what, fix=fix)


def is_passing(results: Iterable[Result]) -> bool:
    """Whether there is no error."""
    return all(result.verdict != "error" for result in results)
