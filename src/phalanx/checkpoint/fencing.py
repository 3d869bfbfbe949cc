"""The lease of a checkpoint directory: one writer, and no commit of a writer that was replaced."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from phalanx.checkpoint.manifest import MANIFEST, Manifest
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.cluster.spec import WorkerSpec
from phalanx.lease.lease import Lease, LeaseTimes, acquire
from phalanx.lease.owner import ProcessTable, this_process
from phalanx.lease.records import LEASE_DIR, CommitId, LeaseRecord, head_of

_log = logging.getLogger(__name__)

_held: dict[tuple[int, str], list[Lease]] = {}
"""The leases of this process, once for each time that it holds one."""
_released: dict[tuple[int, str], Lease] = {}
"""Those that it has released: it takes them up again, so that it stays one owner."""
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
        ConfigurationError: another process writes there.
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
        lease = _acquire(folder, processes, times)
    lease.keep_renewed(times)
    return lease


def _acquire(folder: StorageDir, processes: ProcessTable | None, times: LeaseTimes) -> Lease:
    spec = WorkerSpec.from_environment(os.environ)
    return acquire(
        folder / LEASE_DIR,
        this_process(
            run=spec.run_id if spec is not None else "",
            attempt=spec.attempt if spec is not None else 0,
        ),
        what=f"the checkpoint directory {folder}",
        advice="End that process, or give this training a directory of its own.",
        processes=processes,
        times=times,
    )


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
    """Tells of each manifest in a folder whether its writer owned the folder when it committed."""
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


def publish(
    place: StorageDir, manifest: Manifest, lease: Fence | None, retry_policy: RetryPolicy
) -> Manifest:
    """Publish a manifest; with a lease, as its owner only.

    With a lease the commit is the last of three steps, which storage grants to one process: look
    whether this process is the owner, publish the manifest under the number that the owner takes
    next, take this number. A process that was replaced in between cannot take it, and readers
    pass over its manifest.

    Returns:
        The manifest that was written.

    Raises:
        LeaseLostError: another process has taken over the directory; nothing was committed.
        OSError: storage refused, as often as it was tried.
    """
    ask = retry_policy.call_with_retry
    if lease is None:
        ask(f"commit {place}", lambda: place.write(MANIFEST, manifest.to_json()))
        return manifest
    # Looked for before the lease is checked: the manifest of whoever takes over is then not
    # overwritten.
    is_new = not ask(f"look for {place}", lambda: place.has(MANIFEST))
    commit = ask(f"check the lease of {place}", lease.check)
    manifest = replace(manifest, lease=str(commit))
    content = manifest.to_json()

    def write() -> None:
        if not is_new:
            place.write(MANIFEST, content)
        elif not place.create(MANIFEST, content) and place.read(MANIFEST) != content:
            lease.check()  # another process has taken over, and has been here
            place.write(MANIFEST, content)

    ask(f"commit {place}", write)
    ask(f"confirm {place}", lambda: lease.confirm(commit))
    return manifest
