"""What a check came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error"]
"""Fit; fit, with something to know; not fit for training."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One thing that was looked at.

    Attributes:
        check: what, in a word or two.
        verdict: how it is.
        what: what was found, with the value.
        fix: the command that fixes it, or what to do; None where nothing is to be fixed.
        host: where, if several hosts were looked at; None for all of them together.
    """

    check: str
    verdict: Verdict
    what: str
    fix: str | None = None
    host: str | None = None


def ok(check: str, what: str, fix: str | None = None) -> Result:
    """It is as it should be; `fix` is for those who want it otherwise."""
    return Result(check=check, verdict="ok", what=what, fix=fix)


def warning(check: str, what: str, fix: str | None = None) -> Result:
    """Training works, and this is to be known."""
    return Result(check=check, verdict="warning", what=what, fix=fix)


def failed(check: str, what: str, fix: str) -> Result:
    """Training does not work before this is fixed."""
    return Result(check=check, verdict="error", what=what, fix=fix)
