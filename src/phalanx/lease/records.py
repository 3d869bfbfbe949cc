"""The numbered records of a lease: the highest number says who owns the directory.

A record is created exclusively and never changes. Whoever takes the next number owns the directory
from then on: an atomic step on local disks, NFS and object storage, which needs no clock.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from phalanx.lease.lease_dir import LeaseDir
from phalanx.lease.owner import Owner

LEASE_DIR = ".lease"
"""The name of the lease's directory, inside the directory that is owned."""
RECORDS_KEPT = 8
"""So many of the highest records stay, for a reader whose listing is old."""

OWNERS_KEPT = 1000
"""So many of the last owners are in a record."""

_NAME = re.compile(r"(\d{12})\.json")
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class CommitId:
    """What an owner publishes a commit under, before it confirms it.

    Attributes:
        lease: the lease's id.
        fence: the number that the owner takes to confirm the commit.
        token: the owner's.
    """

    lease: str
    fence: int
    token: str

    def __str__(self) -> str:
        return f"{self.lease}:{self.fence}:{self.token}"

    @classmethod
    def parse(cls, text: str) -> CommitId | None:
        """The id that `str` gave; None for any other text."""
        lease, _, rest = text.partition(":")
        fence, _, token = rest.partition(":")
        return cls(lease=lease, fence=int(fence), token=token) if fence.isdecimal() else None


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """One number of a lease, and who took it.

    Attributes:
        fence: the number, from 1.
        owner: the process that took it; None where the record cannot be read.
        id: stays the same from owner to owner.
        owners: the number with which each owner came, and its token, in order.
    """

    fence: int
    owner: Owner | None
    id: str
    owners: tuple[tuple[int, str], ...]

    def accepts(self, commit: CommitId) -> bool:
        """Whether the owner of that time has confirmed a commit.

        An owner publishes under the number that it takes next. Where another process has taken
        this number, the owner was replaced before it could confirm. A commit of another lease
        (the checkpoint was copied here) is accepted, and one that is older than `owners`.
        """
        if commit.lease != self.id or not self.owners or commit.fence < self.owners[0][0]:
            return True
        tokens = [token for fence, token in self.owners if fence < commit.fence]
        came = {fence for fence, _ in self.owners}
        return (
            commit.fence <= self.fence
            and commit.fence not in came
            and tokens[-1:] == [commit.token]
        )

    def to_json(self) -> bytes:
        """The record's bytes."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


def record_name(fence: int) -> str:
    """The file of a record."""
    return f"{fence:012d}.json"


def beat_name(owner: Owner) -> str:
    """The file that counts an owner's renewals."""
    return f"renewed-{owner.token}"


def numbers_in(directory: LeaseDir) -> list[int]:
    """The numbers of all records, the highest first."""
    found = map(_NAME.fullmatch, directory.names())
    return sorted((int(match.group(1)) for match in found if match), reverse=True)


def head_of(
    directory: LeaseDir, *, sleep: Callable[[float], None] = time.sleep
) -> LeaseRecord | None:
    """The record with the highest number; None where there is no lease.

    Raises:
        OSError: storage failed several times in a row.
    """
    for attempt in range(_TRIES):
        try:
            return _head_of(directory)
        except FileNotFoundError:  # removed since the listing, or the listing is old
            sleep(0.05 * 2**attempt)
        except OSError:  # such as ESTALE
            if attempt == _TRIES - 1:
                raise
            sleep(0.05 * 2**attempt)
    raise OSError(f"{directory}: the records that the listing has cannot be found")


def _head_of(directory: LeaseDir) -> LeaseRecord | None:
    numbers = numbers_in(directory)
    if not numbers:
        return None
    head = _read(directory, numbers[0])
    while True:  # a listing of NFS can be older than what a lookup finds
        try:
            head = _read(directory, head.fence + 1)
        except FileNotFoundError:
            break
    if head.owner is None:
        return _with_history(directory, head, numbers)
    return head


def _read(directory: LeaseDir, fence: int) -> LeaseRecord:
    content = directory.read(record_name(fence))
    try:
        document = json.loads(content)
        owner = Owner(**document["owner"])
        owners = tuple((int(number), str(token)) for number, token in document["owners"])
        return LeaseRecord(fence=fence, owner=owner, id=str(document["id"]), owners=owners)
    except (ValueError, TypeError, KeyError):  # damaged, or half of it on storage without links
        return LeaseRecord(fence=fence, owner=None, id="", owners=())


def _with_history(directory: LeaseDir, head: LeaseRecord, numbers: list[int]) -> LeaseRecord:
    """A damaged record, with what the record before it says about the past."""
    for number in numbers:
        if number >= head.fence:
            continue
        try:
            before = _read(directory, number)
        except FileNotFoundError:
            continue
        if before.owner is not None:
            return LeaseRecord(fence=head.fence, owner=None, id=before.id, owners=before.owners)
    return head
