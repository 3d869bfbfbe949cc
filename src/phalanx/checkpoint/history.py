"""Which checkpoints a directory holds, in which order they were committed, and from which others.

A training that was restored from an older checkpoint, or that started again, saves smaller steps
after larger ones. So neither steps nor times show which checkpoint is the newest, nor which ones it
follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.checkpoint.fencing import acceptance_of
from phalanx.checkpoint.manifest import Manifest, is_manifest
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP
from phalanx.errors import CheckpointCorruptedError, CheckpointVersionError

_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A committed checkpoint of a directory.

    Attributes:
        step: from the name of its directory.
        manifest: what it holds; None where that cannot be read.
        error: why the manifest cannot be read.
    """

    step: int
    manifest: Manifest | None = None
    error: CheckpointCorruptedError | CheckpointVersionError | None = None


def step_of(name: str) -> int | None:
    """The step of a checkpoint's directory; None where the name is of something else."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match.group(1))


def entries(folder: StorageDir) -> list[Entry]:
    """All committed checkpoints, by step.

    Those that a writer published after another one had replaced it are left out.
    """
    found = (step_of(name) for name in folder.names())
    accepts = acceptance_of(folder)
    each = (_entry(folder, step, accepts) for step in sorted(s for s in found if s is not None))
    return [entry for entry in each if entry is not None]


def entry_of(folder: StorageDir, step: int) -> Entry | None:
    """The committed checkpoint of a step; None where there is none."""
    return _entry(folder, step, acceptance_of(folder))


def steps_in(folder: StorageDir) -> list[int]:
    """The steps of all committed checkpoints, the smallest first."""
    return [entry.step for entry in entries(folder)]


def _entry(folder: StorageDir, step: int, accepts: Callable[[Manifest], bool]) -> Entry | None:
    """Of the manifests of a step, the one that was committed last."""
    place = folder / STEP.format(step)
    accepted: list[Manifest] = []
    error: CheckpointCorruptedError | CheckpointVersionError | None = None
    for name in filter(is_manifest, place.names()):
        try:
            manifest = Manifest.from_json(place.read(name), str(place))
        except FileNotFoundError:  # removed since
            continue
        except (CheckpointCorruptedError, CheckpointVersionError) as its:
            error = its
        else:
            accepted += [manifest] if accepts(manifest) else []
    if accepted:
        return Entry(step=step, manifest=in_order_of_commit(accepted)[-1])
    return None if error is None else Entry(step=step, error=error)


def in_order_of_commit(manifests: Iterable[Manifest]) -> list[Manifest]:
    """The manifests of a directory, the last commit last.

    The number of a commit (`phalanx.lease`) gives the order. Times order only what no lease orders:
    checkpoints of a writer without one, and those of different leases, where a lease was removed.
    """
    manifests = list(manifests)
    last: dict[str, float] = {}
    for each in manifests:
        lease = each.commit.lease if each.commit else ""
        last[lease] = max(each.written, last.get(lease, each.written))

    def order(each: Manifest) -> tuple[float, int, float, int]:
        commit = each.commit
        if commit is None:
            return last[""], 0, each.written, each.step
        return last[commit.lease], commit.fence, 0.0, each.step

    return sorted(manifests, key=order)


def branch_of_last(manifests: Iterable[Manifest]) -> list[Manifest]:
    """The last commit and those that its training followed, the last commit last.

    What is left out belongs to a branch that was abandoned: its step is not below that of a later
    commit, or it lies beyond the step where a later training began.
    """
    branch: list[Manifest] = []
    for each in reversed(in_order_of_commit(manifests)):
        if not branch or _leads_to(each, branch[-1]):
            branch.append(each)
    return branch[::-1]


def abandoned_in(manifests: Sequence[Manifest]) -> list[int]:
    """The steps of abandoned branches, the smallest first."""
    staying = {manifest.step for manifest in branch_of_last(manifests)}
    return sorted(manifest.step for manifest in manifests if manifest.step not in staying)


def _leads_to(earlier: Manifest, later: Manifest) -> bool:
    if earlier.step >= later.step:
        return False
    lineage = _lineage_of(later)
    begin, training = lineage.get("began_at"), lineage.get("training")
    if type(begin) is not int or earlier.step <= begin:
        return True
    return training is not None and _lineage_of(earlier).get("training") == training


def _lineage_of(manifest: Manifest) -> Mapping[str, Any]:
    lineage = manifest.state.get("lineage")
    return lineage if isinstance(lineage, dict) else {}
