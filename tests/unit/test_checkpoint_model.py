"""A checkpoint directory against a small model of it, whatever happens between two operations.

After each move the last save that returned can be restored, and `latest` gives it.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phalanx.checkpoint.history import steps_in
from phalanx.checkpoint.reader import latest
from phalanx.checkpoint.retention import Retention, prune
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import ShardWriter, Snapshot
from phalanx.errors import CheckpointError, CheckpointNotFoundError, LeaseLostError
from phalanx.lease.lease import acquire
from phalanx.lease.owner import this_process
from phalanx.lease.records import LEASE_DIR

ONCE = RetryPolicy(max_retries=0)


class Killed(BaseException):
    """The process ends at once: no `except` of the code sees it."""


@dataclass
class Fuse:
    """fsspec's memory file system; something happens right before or after an operation."""

    real: object = field(default_factory=lambda: fsspec.filesystem("memory"))
    at: int = -1  # the number of the operation
    is_after: bool = False
    action: object = None
    dead: bool = False
    protocol = "memory"

    def __getattr__(self, name):
        return getattr(self.real, name)

    def pipe_file(self, path, content, **options):
        self._around(lambda: self.real.pipe_file(path, content, **options))

    def rm(self, path, recursive=False):
        for each in sorted(self.real.find(path)) or [path]:  # one by one, as on a disk
            self._around(lambda each=each: self.real.rm(each))
        with suppress(FileNotFoundError):
            self.real.rm(path, recursive=True)

    def set(self, at, is_after, action):
        self.at, self.is_after, self.action = at, is_after, action

    def _around(self, operation):
        if self.dead:
            raise Killed
        self.at -= 1
        if self.at == -1 and not self.is_after:
            self.action()
        operation()
        if self.at == -1 and self.is_after:
            self.action()


@dataclass
class Process:
    """A training that writes to the directory, and what it follows."""

    name: str
    folder: StorageDir
    lease: object
    step: int
    began_at: int
    follows: list  # the saves that it continues, as (step, number)

    @property
    def fuse(self):
        return self.folder.filesystem


class Directory(RuleBasedStateMachine):
    """Saves, crashes, damage, rollbacks and replaced writers."""

    @initialize(keep=st.integers(1, 3))
    def make(self, keep):
        self.path = f"memory://{uuid.uuid4().hex}"
        self.keep = keep
        self.saves_so_far = 0
        self.attempts = 0
        self.branch = []  # (step, number) of the saves that returned; the last commit last
        self.damaged = set()  # numbers
        self.let_go = set()  # numbers of those that retention may have removed
        self.process = self.zombie = None

    def start(self):
        """A new process takes the directory, and resumes as a training does."""
        self.attempts += 1
        folder = StorageDir(Fuse(), StorageDir.at(self.path).path)
        owner = replace(this_process(run="r", attempt=self.attempts), host=f"h{self.attempts}")
        lease = acquire(folder / LEASE_DIR, owner, what="it", advice="")
        found = self.found()
        step = 0 if found is None else found[0]
        follows = [each for each in self.branch if each[0] <= step]
        name = f"p{self.attempts}"
        return Process(name, folder, lease, step, began_at=step, follows=follows)

    def save(self, process, by):
        """A save that returns, or raises; the model counts it where it returns."""
        process.step += by
        self.saves_so_far += 1
        number, step = self.saves_so_far, process.step
        lineage = {"training": process.name, "began_at": process.began_at}
        one = Snapshot(
            step=step, epoch=0, arrays={"w": np.full(3, number)}, state={"lineage": lineage}
        )
        writer = ShardWriter(
            folder=process.folder,
            lease=process.lease,
            attempt=f"{process.name}-{number}",
            retry_policy=ONCE,
            clock=lambda: float(1000 - number),  # clocks of hosts differ
        )
        follows = [each for each in process.follows if each[0] < step] + [(step, number)]
        self.pending = follows
        writer.write(one)
        process.follows = self.branch = follows
        self.pending = None
        self.let_go |= {number for _, number in follows[: -self.keep]}
        prune(process.folder, Retention(max_to_keep=self.keep), saved=step, uncommitted_before=step)

    def found(self):
        try:
            found = latest(StorageDir.at(self.path))
        except CheckpointNotFoundError:
            return None
        return found.manifest.step, int(found.arrays["w"][0])

    @rule(by=st.integers(0, 3))
    def a_training_saves(self, by):
        self.process = self.process or self.start()
        self.save(self.process, by)

    @rule(by=st.integers(0, 3), at=st.integers(0, 14), is_after=st.booleans())
    def is_killed_in_a_save(self, by, at, is_after):
        self.process = self.process or self.start()
        fuse = self.process.fuse

        def kill():
            fuse.dead = True
            raise Killed

        fuse.set(at, is_after, kill)
        self.pending = None
        with suppress(Killed):
            self.save(self.process, by)
        fuse.set(-1, False, None)
        if fuse.dead:
            self.process = None
            # It had not returned: it counts, or it does not.
            if self.pending and self.found() == self.pending[-1]:
                self.branch = self.pending
                self.let_go |= {number for _, number in self.branch[: -self.keep]}

    @precondition(lambda self: self.process is not None)
    @rule(by=st.integers(0, 3))
    def a_replaced_one_saves(self, by):
        old, self.process = self.process, self.start()
        with pytest.raises(LeaseLostError):
            self.save(old, by)

    @precondition(lambda self: self.process is not None)
    @rule(
        by=st.integers(0, 3), then=st.integers(0, 3), at=st.integers(0, 14), is_after=st.booleans()
    )
    def is_replaced_in_a_save(self, by, then, at, is_after):
        old = self.process

        def replace_it():
            in_flight, self.pending = self.pending, None
            # The new one finds the save in flight, or it does not.
            if in_flight and self.found() == in_flight[-1]:
                self.branch = in_flight
                self.let_go |= {number for _, number in in_flight[: -self.keep]}
            self.process = self.start()
            self.save(self.process, then)
            self.by_new = self.branch

        self.by_new = None
        old.fuse.set(at, is_after, replace_it)
        with suppress(LeaseLostError, CheckpointError):
            self.save(old, by)
        old.fuse.set(-1, False, None)
        if self.by_new is not None:
            self.branch = self.by_new

    @precondition(lambda self: self.process is not None and len(self.branch) > 1)
    @rule(back=st.integers(1, 3))
    def rolls_back(self, back):
        there = steps_in(StorageDir.at(self.path))
        older = [each for each in self.branch[:-1] if each[0] in there]
        if older:
            step, _ = older[-min(back, len(older))]
            process = self.process
            process.name += "'"
            process.step = process.began_at = step
            process.follows = [each for each in self.branch if each[0] <= step]

    @precondition(lambda self: self.branch)
    @rule(which=st.integers(1, 3))
    def is_damaged(self, which):
        step, number = self.branch[-min(which, len(self.branch))]
        place = StorageDir.at(self.path) / f"step-{step:08d}"
        for name in place.names():
            if name.endswith(f"-{number}.safetensors"):
                place.write(name, b"other bytes")
                self.damaged.add(number)

    @invariant()
    def the_last_save_is_the_latest(self):
        there = steps_in(StorageDir.at(self.path))
        kept = {step for step, number in self.branch[-self.keep :] if number not in self.let_go}
        assert set(there) >= kept
        complete = [
            (step, number)
            for step, number in self.branch
            if step in there and number not in self.damaged
        ]
        assert self.found() == (complete[-1] if complete else None)


def test_the_last_save_that_returned_is_the_latest():
    run_state_machine_as_test(
        Directory,
        settings=settings(
            max_examples=150,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
