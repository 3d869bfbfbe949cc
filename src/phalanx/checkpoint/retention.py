"""Which checkpoints stay."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.checkpoint.history import abandoned_in, branch_of_last, entries, step_of
from phalanx.checkpoint.manifest import Manifest, is_manifest
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP
from phalanx.errors import ConfigurationError

Mode = Literal["min", "max"]


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The last commits, and the best.

    Attributes:
        max_to_keep: how many of those committed last stay, at least 1.
        best: the metric whose best checkpoint stays too, and whether less or more of it is
            better: ("val_loss", "min").
    """

    max_to_keep: int = 3
    best: tuple[str, Mode] | None = None

    def __post_init__(self) -> None:
        if self.max_to_keep < 1:
            raise ConfigurationError(f"max_to_keep must be 1 or more; found {self.max_to_keep!r}.")
        if self.best is not None and (len(self.best) != 2 or self.best[1] not in ("min", "max")):
            raise ConfigurationError(
                'best must be a metric with "min" or "max", such as ("val_loss", "min"); '
                f"found {self.best!r}."
            )

    def to_delete(self, manifests: Sequence[Manifest], saved: int | None = None) -> list[int]:
        """The steps of those that may go, the smallest first.

        Checkpoints of an abandoned branch neither count nor go: a rollback must lose nothing.

        Args:
            manifests: all that can be read.
            saved: the step that was just saved, which stays in any case.
        """
        branch = branch_of_last(manifests)
        steps = [manifest.step for manifest in branch]
        staying = {*steps[-self.max_to_keep :], *self._best(branch), saved}
        return sorted(step for step in steps if step not in staying)

    def _best(self, manifests: Sequence[Manifest]) -> Collection[int]:
        if self.best is None:
            return ()
        name, mode = self.best
        sign = 1.0 if mode == "min" else -1.0
        ranked = [
            (sign * float(m.metrics[name]), m.step)
            for m in manifests
            if name in m.metrics and math.isfinite(float(m.metrics[name]))
        ]
        return (min(ranked)[1],) if ranked else ()


def prune(
    folder: StorageDir,
    retention: Retention,
    *,
    saved: int | None = None,
    uncommitted: bool = False,
    uncommitted_before: int | None = None,
    abandoned: bool = False,
) -> list[str]:
    """Remove checkpoints that `retention` lets go.

    Manifests go first, so that what is left is absent and not damaged. A checkpoint that cannot
    be read stays: a newer Phalanx may read it.

    Args:
        folder: of the checkpoints.
        retention: what stays.
        saved: the step that was just saved, which stays in any case.
        uncommitted: whether to remove directories that were never committed too; only when
            no process is writing.
        uncommitted_before: the same for steps before this one.
        abandoned: whether to remove the branches that a rollback has abandoned too.

    Returns:
        The names of what was removed.
    """
    found = entries(folder)
    manifests = [entry.manifest for entry in found if entry.manifest is not None]
    steps = retention.to_delete(manifests, saved) + (abandoned_in(manifests) if abandoned else [])
    going = [STEP.format(step) for step in steps]
    if uncommitted or uncommitted_before is not None:
        before = math.inf if uncommitted_before is None else uncommitted_before
        committed = {entry.step for entry in found}
        names = {name: step_of(name) for name in folder.names()}
        going += [
            name
            for name, step in names.items()
            if step is not None and step < before and step not in committed
        ]
    for name in going:
        for manifest in filter(is_manifest, (folder / name).names()):
            (folder / name).remove(manifest)
        folder.remove(name)
    return going
