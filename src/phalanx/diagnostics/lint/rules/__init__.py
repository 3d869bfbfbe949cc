"""The rules, one family a file; `RULES` is the list of all."""

from __future__ import annotations

from phalanx.diagnostics.lint.finding import Rule
from phalanx.diagnostics.lint.rules import (
    batch_size,
    batches,
    data,
    gradients,
    horovod,
    initialization_order,
    losses,
    rank_conditionals,
    scope,
    shared_files,
    versions,
)

_FAMILIES = (
    initialization_order,
    scope,
    rank_conditionals,
    data,
    batches,
    batch_size,
    losses,
    shared_files,
    gradients,
    horovod,
    versions,
)
RULES: tuple[Rule, ...] = tuple(rule for family in _FAMILIES for rule in family.RULES)
