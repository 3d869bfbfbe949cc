"""A rule, what it sees in a script, and the finding that a reader gets."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phalanx.diagnostics.lint.script import Script

Severity = Literal["error", "warning", "hint"]
"""An error goes wrong under Phalanx too; a warning may, or does under plain Keras or another
launcher; a hint is of something that is not needed."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A place that a rule names, and its source code."""

    node: ast.expr | ast.stmt
    what: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A known mistake.

    Attributes:
        name: how a reader turns it off, in words with hyphens.
        severity: how bad it is.
        why: what comes of it.
        remedy: what to write instead.
        find: the places in a script where it is made.
    """

    name: str
    severity: Severity
    why: str
    remedy: str
    find: Callable[[Script], Iterable[Spot]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake in one script; `line` and `column` count from 1.

    `width` is the number of characters to mark on that line, at least 1.
    """

    path: str
    line: int
    column: int
    width: int
    rule: str
    severity: Severity
    what: str
    why: str
    remedy: str
