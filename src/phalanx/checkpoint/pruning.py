"""Remove what is superfluous: old checkpoints, and what broken runs left behind."""

from __future__ import annotations

from phalanx.checkpoint.folder import Folder
from phalanx.checkpoint.manifest import MANIFEST, Manifest
from phalanx.checkpoint.reading import manifest_of, steps_in
from phalanx.checkpoint.retention import Retention
from phalanx.checkpoint.writing import STEP
from phalanx.errors import CheckpointError


def prune(
    folder: Folder,
    retention: Retention,
    *,
    saved: int | None = None,
    leftovers: bool = False,
    leftovers_before: int | None = None,
) -> list[str]:
    """Remove checkpoints that `retention` lets go.

    A manifest goes first, so that what is left is absent and not damaged. A checkpoint that
    cannot be read stays: it is somebody else's to judge.

    Args:
        folder: of the checkpoints.
        retention: what stays.
        saved: the step that was just saved, which stays in any case; the one that was written
            last where None.
        leftovers: whether to remove directories that were never committed too; only when
            nobody is writing.
        leftovers_before: the same for steps before this one.

    Returns:
        The names of what was removed.
    """
    readable: list[Manifest] = []
    for step in steps_in(folder):
        try:
            readable.append(manifest_of(folder, step))
        except CheckpointError:
            continue
    going = [STEP.format(step) for step in retention.superfluous(readable, saved)]
    if leftovers or leftovers_before is not None:
        before = STEP.format(leftovers_before) if leftovers_before is not None else "~"
        going += [n for n in folder.names() if n < before and _is_leftover(folder, n)]
    for name in going:
        (folder / name).remove(MANIFEST)
        folder.remove(name)
    return going


def _is_leftover(folder: Folder, name: str) -> bool:
    return name.startswith("step-") and not (folder / name).has(MANIFEST)
