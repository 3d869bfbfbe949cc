"""The rules, one family a file; `RULES` is the list of all."""

from __future__ import annotations

from phalanx.lint.finding import Rule
from phalanx.lint.rules import (
    batches,
    data,
    files,
    gradients,
    horovod,
    losses,
    ranks,
    scope,
    strategy_order,
    versions,
)

_FAMILIES = (
    strategy_order,
    scope,
    ranks,
    data,
    batches,
    losses,
    files,
    gradients,
    horovod,
    versions,
)
RULES: tuple[Rule, ...] = tuple(rule for family in _FAMILIES for rule in family.RULES)
