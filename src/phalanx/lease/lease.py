"""Own a directory: take it, renew it, confirm what was committed, release it."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from phalanx.errors import LeaseLostError, UnavailableError
from phalanx.lease.lease_dir import LeaseDir
from phalanx.lease.owner import Owner, ProcessTable
from phalanx.lease.records import (
    OWNERS_KEPT,
    RECORDS_KEPT,
    CommitId,
    LeaseRecord,
    beat_name,
    head_of,
    numbers_in,
    record_name,
)

_log = logging.getLogger(__name__)
_RELEASED = b"released"


@dataclass(frozen=True, kw_only=True)
class LeaseTimes:
    """How long a lease waits for what, in seconds.

    Attributes:
        renew: between two renewals.
        expire: an owner on another host is replaced when the reader saw no renewal for so long.
        poll: between two looks at an owner on another host.
        clock: seconds, increasing; never the wall clock.
        sleep: waits.
    """

    renew: float = 10.0
    expire: float = 60.0
    poll: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Lease:
    """The lease of a directory, owned by this process until another one takes it.

    Attributes:
        owner: this process.
        id: stays the same from owner to owner.
    """

    def __init__(
        self,
        directory: LeaseDir,
        what: str,
        record: LeaseRecord,
        owner: Owner,
        sleep: Callable[[float], None],
    ) -> None:
        """Own what `acquire` has taken."""
        self._sleep = sleep
        self.owner = owner
        self.id = record.id
        self._directory = directory
        self._what = what
        self._record = record
        self._process = os.getpid()
        self._renewals = 0
        self._replaced_by: str | None = None
        self._lock = threading.RLock()
        self._released = threading.Event()

    @property
    def fence(self) -> int:
        """The highest number that this owner has taken."""
        return self._record.fence

    @property
    def replaced_by(self) -> str | None:
        """Who owns the directory now, as far as this process knows; None while it does."""
        return self._replaced_by

    def check(self) -> CommitId:
        """Look whether this process still owns the directory.

        Returns:
            What to publish the next commit under.

        Raises:
            LeaseLostError: another process has replaced it.
            OSError: storage failed.
        """
        with self._lock:
            self._assert_owned()
            head = head_of(self._directory, sleep=self._sleep)
            if head is not None and head.fence > self.fence:
                self._found(head)
            return CommitId(lease=self.id, fence=self.fence + 1, token=self.owner.token)

    def confirm(self, commit: CommitId) -> None:
        """Confirm what was published under what `check` gave.

        Taking the number is what makes it a commit: storage gives it to one process only.

        Raises:
            LeaseLostError: another process has replaced this one; nothing was committed.
            OSError: storage failed; try again.
        """
        with self._lock:
            self._assert_owned()
            fence = commit.fence
            if fence <= self.fence:
                return  # done by a try whose answer was lost
            record = replace(self._record, fence=fence, owner=self.owner)
            if not self._directory.create(record_name(fence), record.to_json()):
                head = head_of(self._directory, sleep=self._sleep)
                if head is not None:
                    self._found(head)
            else:
                self._record = record
            numbers = numbers_in(self._directory)
            if numbers and numbers[0] > fence:
                # A zombie can take a number that is so old that its record was removed.
                head = head_of(self._directory, sleep=self._sleep)
                if head is not None and head.fence > fence:
                    self._found(head)
            with suppress(OSError):
                for number in numbers[RECORDS_KEPT:]:
                    self._directory.remove(record_name(number))

    def _found(self, head: LeaseRecord) -> None:
        """Continue with the highest record if it is this owner's: storage failed after the put."""
        if head.owner is not None and head.owner.token == self.owner.token:
            self._record = head
            return
        self._replaced_by = str(head.owner or "another process")
        self._assert_owned()

    def _assert_owned(self) -> None:
        if self._released.is_set() or self._process != os.getpid():
            raise LeaseLostError(f"This process has released {self._what}.")
        if self._replaced_by is not None:
            raise LeaseLostError(
                f"{self._replaced_by} has taken over {self._what}, since it saw no renewal from "
                f"this process ({self.owner}) or started after it; what this process writes there "
                "is not used. End this process, or give each training a directory of its own."
            )

    def renew(self) -> None:
        """Count one more renewal; notice where another process has replaced this one."""
        with self._lock:
            if self._released.is_set() or self._replaced_by is not None:
                return
            if not numbers_in(self._directory):
                return  # Somebody removed the directory: do not create it again.
            try:
                self.check()
            except LeaseLostError:
                _log.warning("%s has taken over %s", self._replaced_by, self._what)
                return
            self._renewals += 1
            self._directory.write(beat_name(self.owner), str(self._renewals).encode())

    def release(self) -> None:
        """Let the next process take the directory at once; no error where storage fails."""
        with self._lock:
            if self._released.is_set() or self._process != os.getpid():
                return
            self._released.set()
            with suppress(OSError):
                if self._replaced_by is None and numbers_in(self._directory):
                    self._directory.write(beat_name(self.owner), _RELEASED)

    def reopen(self) -> bool:
        """Own the directory again after `release`; False where another process came first."""
        with self._lock:
            if self._process != os.getpid() or self._replaced_by is not None:
                return False
            record = replace(self._record, fence=self.fence + 1)
            if not self._directory.create(record_name(record.fence), record.to_json()):
                return False
            self._record = record
            self._renewals += 1
            self._directory.write(beat_name(self.owner), str(self._renewals).encode())
            self._released = threading.Event()  # the thread of before has its own, and ends
            return True

    def keep_renewed(self, times: LeaseTimes) -> None:
        """Renew in a thread until the lease is released or lost."""

        released = self._released

        def loop() -> None:
            while not released.wait(times.renew) and self._replaced_by is None:
                try:
                    self.renew()
                except OSError as error:
                    _log.debug("could not renew %s: %s", self._what, error)

        threading.Thread(target=loop, name="phalanx-lease", daemon=True).start()


@dataclass(kw_only=True)
class _Watch:
    """What a reader has seen of an owner on another host, by the reader's own clock."""

    clock: Callable[[], float]
    seen: object = None
    since: float = 0.0
    looks: int = 0

    def has_changed(self, state: object) -> bool:
        """Whether the owner has renewed since the first look."""
        self.looks += 1
        if self.looks == 1:
            self.seen, self.since = state, self.clock()
        return state != self.seen

    @property
    def seconds(self) -> float:
        return self.clock() - self.since


def acquire(
    directory: LeaseDir,
    owner: Owner,
    *,
    what: str,
    advice: str,
    processes: ProcessTable | None = None,
    times: LeaseTimes | None = None,
    announce: Callable[[str], None] = _log.warning,
) -> Lease:
    """Take a directory.

    An owner that has released it, that has ended on this machine, or that is an earlier attempt
    of the same run is replaced at once. An owner that this machine does not see is replaced when
    it does not renew for `times.expire` seconds.

    Args:
        directory: the files of the lease.
        owner: this process; the same again where it tries again after an error of storage.
        what: what is owned, for messages: "the run /runs/x".
        advice: what the user can do where it is owned.
        processes: the processes of this machine.
        times: how long to wait for what.
        announce: says something to the user.

    Raises:
        UnavailableError: another process owns it.
        OSError: storage failed.
    """
    processes, times = processes or ProcessTable(), times or LeaseTimes()
    watch = _Watch(clock=times.clock)
    while True:
        head = head_of(directory, sleep=times.sleep)
        if head is not None and head.owner is not None and head.owner.token == owner.token:
            return Lease(directory, what, head, owner, times.sleep)  # storage failed after the put
        if head is not None and not _is_free(directory, head, owner, processes):
            is_renewed = watch.has_changed((head.fence, _beat(directory, head)))
            if is_renewed or (head.owner is not None and owner.sees(head.owner)):
                raise UnavailableError(
                    f"{head.owner or 'Another process'} is using {what}. {advice}"
                )
            if watch.seconds < times.expire:
                if watch.looks == 1:
                    announce(
                        f"{head.owner or 'another process'} was using {what}: waiting up to "
                        f"{times.expire:.0f} s to see whether it still does"
                    )
                times.sleep(times.poll)
                continue
        record = _next_record(head, owner)
        if not _take(directory, record):
            continue
        if head is not None and head.owner is not None:
            with suppress(OSError):
                directory.remove(beat_name(head.owner))
        return Lease(directory, what, record, owner, times.sleep)


def _is_free(directory: LeaseDir, head: LeaseRecord, owner: Owner, processes: ProcessTable) -> bool:
    if head.owner is None:
        return False
    if owner.is_next_attempt_after(head.owner):
        return True
    if owner.sees(head.owner) and not processes.is_alive(head.owner):
        return True
    return _beat(directory, head) == _RELEASED


def _beat(directory: LeaseDir, head: LeaseRecord) -> bytes:
    if head.owner is not None:
        with suppress(OSError):
            return directory.read(beat_name(head.owner))
    return b""


def _next_record(head: LeaseRecord | None, owner: Owner) -> LeaseRecord:
    fence = 1 if head is None else head.fence + 1
    owners = () if head is None else head.owners
    return LeaseRecord(
        fence=fence,
        owner=owner,
        id=(head.id if head is not None else "") or uuid.uuid4().hex,
        owners=(*owners, (fence, owner.token))[-OWNERS_KEPT:],
    )


def _take(directory: LeaseDir, record: LeaseRecord) -> bool:
    """Create a record exclusively; False where another process has taken the number."""
    name, content = record_name(record.fence), record.to_json()
    try:
        is_taken = directory.create(name, content)
    except OSError:
        # It can have been created all the same: a lost answer, or ESTALE.
        with suppress(FileNotFoundError):
            if directory.read(name) == content:
                return True
        raise
    if is_taken and _overwrites(directory, name, content):
        _log.warning(
            "%s overwrites files that exist where it is asked not to: two processes that take the "
            "lease at the same moment cannot be distinguished there",
            directory,
        )
    return is_taken


def _overwrites(directory: LeaseDir, name: str, content: bytes) -> bool:
    """Whether storage creates a file that exists; False where it fails, as on a full disk."""
    with suppress(OSError):
        return directory.create(name, content)
    return False
