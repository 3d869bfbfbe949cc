"""Storage of a lease in memory, as several hosts see it: an NFS with all its delays."""

import errno
import random


class Shared:
    """What the server has. Time is counted in looks, so that tests need no clock."""

    def __init__(self):
        self.files = {}
        self.log = []  # the listing after each change

    def changed(self):
        self.log.append(sorted(self.files))


class Client:
    """One host's view: listings can be old, renames late, answers lost, handles stale.

    `create` is decided by the server, as `link` is on NFS.
    """

    def __init__(self, shared, seed=None, staleness=3, faults=0.0):
        self.shared = shared
        self.random = random.Random(seed)
        self.staleness = staleness if seed is not None else 0
        self.faults = faults
        self.late = []  # renames that the server has not seen yet

    def _meet_fault(self):
        if self.random.random() < self.faults:
            raise OSError(errno.ESTALE, "Stale file handle")

    def _land(self, all_of_them=False):
        while self.late and (all_of_them or self.random.random() < 0.5):
            name, content = self.late.pop(0)
            self.shared.files[name] = content
            self.shared.changed()

    def names(self):
        self._land()
        self._meet_fault()
        back = self.random.randint(0, self.staleness)
        log = self.shared.log[: len(self.shared.log) - back or None]
        return list(log[-1]) if log else []

    def read(self, name):
        self._land()
        self._meet_fault()
        if name not in self.shared.files:
            raise FileNotFoundError(name)
        return self.shared.files[name]

    def create(self, name, content):
        self._land(all_of_them=True)
        self._meet_fault()
        if name in self.shared.files:
            return False
        self.shared.files[name] = content
        self.shared.changed()
        self._meet_fault()  # done, but the answer is lost
        return True

    def write(self, name, content):
        self._meet_fault()
        self.late.append((name, content))
        if not self.staleness:
            self._land(all_of_them=True)

    def remove(self, name):
        self._meet_fault()
        self.shared.files.pop(name, None)
        self.shared.changed()
