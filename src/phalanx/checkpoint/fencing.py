"""The lease of a checkpoint directory: one writer, and no commit of a writer that was replaced."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from phalanx.checkpoint.manifest import MANIFEST, Manifest, is_manifest, name_beside
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import CheckpointError
from phalanx.lease.lease import Lease, LeaseTimes, acquire
from phalanx.lease.owner import Owner, ProcessTable, this_process
from phalanx.lease.records import LEASE_DIR, CommitId, LeaseRecord, head_of

_log = logging.getLogger(__name__)

_held: dict[tuple[int, str], list[Lease]] = {}
"""The leases of this process, once for each time that it holds one."""
_released: dict[tuple[int, str], Lease] = {}
"""Those that it has released: it takes them up again, so that it stays one owner."""
_failed: dict[tuple[int, str], Owner] = {}
"""Who this process was when storage failed: the record of its lease may be there all the same."""
_lock = threading.Lock()


@contextmanager
def held(
    folder: StorageDir,
    *,
    processes: ProcessTable | None = None,
    times: LeaseTimes | None = None,
) -> Iterator[Lease]:
    """Be the one writer of a checkpoint directory; those of one process share the lease.

    Raises:
        UnavailableError: another process writes there.
        OSError: storage failed.
    """
    key = (os.getpid(), f"{type(folder.filesystem).__name__}:{folder.path.rstrip('/')}")
    with _lock:
        leases = _held.setdefault(key, [])
        try:
            lease = leases[0] if leases else _open(key, folder, processes, times or LeaseTimes())
        except BaseException:
            del _held[key]
            raise
        leases.append(lease)
    try:
        yield lease
    finally:
        with _lock:
            leases.pop()
            if not leases:
                del _held[key]
                _released[key] = lease
                lease.release()


def _open(
    key: tuple[int, str], folder: StorageDir, processes: ProcessTable | None, times: LeaseTimes
) -> Lease:
    lease = _released.pop(key, None)
    if lease is None or (folder / LEASE_DIR).names() == [] or not lease.reopen():
        lease = _acquire(key, folder, processes, times)
    lease.keep_renewed(times)
    return lease


def _acquire(
    key: tuple[int, str], folder: StorageDir, processes: ProcessTable | None, times: LeaseTimes
) -> Lease:
    spec = WorkerSpec.from_environment(os.environ)
    owner = _failed.pop(key, None) or this_process(
        run=spec.run_id if spec is not None else "",
        attempt=spec.attempt if spec is not None else 0,
    )
    try:
        return acquire(
            folder / LEASE_DIR,
            owner,
            what=f"the checkpoint directory {folder}",
            advice="End that process, or give this training a directory of its own.",
            processes=processes,
            times=times,
        )
    except OSError:
        _failed[key] = owner
        raise


class Fence(Protocol):
    """What a commit needs of a lease."""

    def check(self) -> CommitId:
        """Look whether this process is the owner; gives what to publish the commit under."""

    def confirm(self, commit: CommitId) -> None:
        """Confirm what was published."""


class LateLease:
    """The lease of storage that failed when the training started: taken by the first commit."""

    def __init__(self, take: Callable[[], Lease]) -> None:
        """Take it when it is needed."""
        self._take = take
        self._lease: Lease | None = None

    def check(self) -> CommitId:
        """Take the lease, or look whether this process is still the owner."""
        if self._lease is None:
            self._lease = self._take()
        return self._lease.check()

    def confirm(self, commit: CommitId) -> None:
        """Confirm what was published."""
        if self._lease is not None:
            self._lease.confirm(commit)


def acceptance_of(folder: StorageDir) -> Callable[[Manifest], bool]:
    """Finds for each manifest in a folder whether its writer owned the folder at the commit."""
    head: LeaseRecord | None = None
    if LEASE_DIR in folder.names():
        try:
            head = head_of(folder / LEASE_DIR)
        except OSError as error:
            _log.warning("cannot read the lease of %s, all checkpoints count: %s", folder, error)

    def accepts(manifest: Manifest) -> bool:
        commit = CommitId.parse(manifest.lease)
        if commit is None or head is None or head.accepts(commit):
            return True
        # The listing of a network file system can be older than the manifest.
        now = head_of(folder / LEASE_DIR) if commit.fence > head.fence else head
        return now is None or now.accepts(commit)

    return accepts


def _remove_unconfirmed(place: StorageDir, names: Iterable[str], commit: CommitId) -> None:
    """Remove what this owner published under the number that it takes next, and never confirmed."""
    for name in names:
        with suppress(FileNotFoundError, CheckpointError):
            if Manifest.from_json(place.read(name), str(place)).lease == str(commit):
                place.remove(name)


def publish(
    place: StorageDir, manifest: Manifest, lease: Fence | None, retry_policy: RetryPolicy
) -> tuple[Manifest, str]:
    """Publish a manifest; with a lease, as its owner only.

    With a lease the commit is the last of three steps, which storage grants to one process: look
    whether this process is the owner, publish the manifest under the number that the owner takes
    next, take this number. A process that was replaced in between cannot take it, and readers
    pass over its manifest.

    Returns:
        The manifest that was written, and the name of its file.

    Raises:
        LeaseLostError: another process has taken over the directory; nothing was committed.
        OSError: storage refused, as often as it was tried.
    """
    ask = retry_policy.call_with_retry
    if lease is None:
        ask(f"commit {place}", lambda: place.write(MANIFEST, manifest.to_json()))
        return manifest, MANIFEST
    there = ask(f"list {place}", lambda: list(filter(is_manifest, place.names())))
    commit = ask(f"check the lease of {place}", lease.check)
    ask(f"clear {place}", lambda: _remove_unconfirmed(place, there, commit))
    manifest = replace(manifest, lease=str(commit))
    content = manifest.to_json()

    def write() -> str:
        for name in (MANIFEST, name_beside(commit.fence)):
            if place.create(name, content) or place.read(name) == content:
                return name
        lease.check()  # another process has taken over, and has been here
        raise OSError(f"{place / name_beside(commit.fence)} exists with another content")

    name = ask(f"commit {place}", write)
    ask(f"confirm {place}", lambda: lease.confirm(commit))
    return manifest, name
