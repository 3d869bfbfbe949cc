"""A Python generator that several passes read, one after the other, without losing an element.

Elements are made ahead, and how many depends on the speed of each worker. A generator cannot go
back, so what a pass had made ahead when it was left is kept here: the next pass begins with the
first element that no step took, which is the same one on every worker.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any


@dataclass(frozen=True, kw_only=True, eq=False)
class _Element:
    """What the generator yielded, and how many elements it had yielded before."""

    number: int
    batch: Any


class _SharedGenerator:
    """What a generator has yielded and no step took; one for each generator.

    It does not refer to the generator, which is its key in a dictionary of weak keys.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held for moments: guards what is kept, here and in the readers."""
        self.readers: weakref.WeakSet[GeneratorPasses] = weakref.WeakSet()
        """Those that are open."""
        self._kept: deque[_Element] = deque()  # in the order of the generator
        self._to_skip = 0
        # Held while the generator runs, however long that takes: guards the rest.
        self._turn = threading.Lock()
        self._newest: _Element | None = None
        self._made = 0

    def next_for(self, reader: _Reader, generator: GeneratorType[Any, Any, Any]) -> _Element:
        """The first element that no reader has, which `reader` gets.

        Raises:
            StopIteration: the generator has ended, or the reader is closed.
        """
        with _HeldFor(reader, self._turn):
            while True:
                with _HeldFor(reader, self.lock):
                    if (element := self._pop()) is not None:
                        reader.add(element)
                        return element
                # A reader can be closed meanwhile: the element then is for the next one.
                self._newest = _Element(number=self._made, batch=next(generator))
                self._made += 1

    def _pop(self) -> _Element | None:
        while True:
            if self._kept:
                element = self._kept.popleft()
            elif self._newest is not None:
                element, self._newest = self._newest, None
            else:
                return None
            if not self._to_skip:
                return element
            self._to_skip -= 1

    def take_back(self, elements: Iterable[_Element], *, to_skip: int = 0) -> None:
        """Keep elements that no step took, and leave out so many; under the lock."""
        self._kept = deque(sorted([*self._kept, *elements], key=lambda one: one.number))
        self._to_skip += to_skip


class _HeldFor:
    """Hold a lock for a reader, whose thread must not wait for it once the reader is closed.

    Whoever holds the lock runs Python, and Python may collect a dataset's iterator there, which
    waits for that iterator's thread.
    """

    def __init__(self, reader: _Reader, lock: threading.Lock) -> None:
        self._reader = reader
        self._lock = lock

    def __enter__(self) -> None:
        while not self._lock.acquire(timeout=_SECONDS):
            if self._reader.is_closed:
                raise StopIteration
        if self._reader.is_closed:
            self._lock.release()
            raise StopIteration

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_SECONDS = 0.1  # between two looks at whether the reader is closed


class _Reader:
    """Who gets elements: those that Keras peeks at, or a pass."""

    def __init__(self) -> None:
        self.is_closed = False
        self.elements: deque[_Element] = deque()
        """Made for this reader and taken by no step; all of them of those peeked at."""

    def add(self, element: _Element) -> None:
        """Remember an element that this reader gets; under the lock."""
        self.elements.append(element)


class _Pass(_Reader):
    """One pass: first what Keras has peeked at, as in Keras, then what the generator yields next.

    Counts begin behind what was peeked at.
    """

    def __init__(self, skipped: int) -> None:
        super().__init__()
        self.is_read = False
        self.skipped = skipped
        self.made = 0
        self._taken = skipped

    def add(self, element: _Element) -> None:
        """Remember an element of this pass, unless a step of an earlier process took it."""
        self.made += 1
        super().add(element)
        self.take(self._taken)

    def take(self, count: int) -> None:
        """Forget the first `count` elements, which steps took; under the lock."""
        self._taken = max(self._taken, count)
        while self.elements and self.made - len(self.elements) < self._taken:
            self.elements.popleft()


class GeneratorPasses:
    """Passes over one generator for one call of `fit`, `evaluate` or `predict`.

    Calling it gives the iterator of the pass that `begin` began.
    """

    def __init__(self, generator: GeneratorType[Any, Any, Any]) -> None:
        """Nothing is read yet."""
        self._generator = generator
        self._shared = _shared.setdefault(generator, _SharedGenerator())
        self._peeked = _Reader()
        self._first_used = 0
        self._pass: _Pass | None = None
        with self._shared.lock:
            self.is_alone = not self._shared.readers
            """Whether no other call, or part of this one, was reading the generator."""
            self._shared.readers.add(self)

    def peek(self) -> Iterator[Any]:
        """A generator of the elements to come, of which Keras takes the first; once."""
        while True:
            try:
                element = self._shared.next_for(self._peeked, self._generator)
            except StopIteration:
                return
            yield element.batch

    @property
    def first(self) -> list[Any]:
        """What was peeked at; each pass begins with it, as in Keras."""
        return [element.batch for element in self._peeked.elements]

    def begin(self, *, skipped: int = 0) -> None:
        """Leave the pass before, and begin one.

        Args:
            skipped: elements of the pass that steps took in an earlier process.
        """
        with self._shared.lock:
            self._leave()
            if self._peeked.is_closed:
                return
            self._pass = _Pass(max(0, skipped - len(self._peeked.elements)))
            self._use_first(skipped)

    def __call__(self) -> Iterator[Any]:
        """The elements of the pass that `begin` began; of a new one where it is read already."""
        if self._pass is None or self._pass.is_read:
            self.begin()
        current = self._pass
        if current is None:  # closed
            return iter(())
        current.is_read = True
        return self._elements(current)

    def _elements(self, current: _Pass) -> Iterator[Any]:
        yield from self.first
        while True:
            try:
                element = self._shared.next_for(current, self._generator)
            except StopIteration:
                return
            yield element.batch

    def took(self, count: int) -> None:
        """Note that steps took the first `count` elements of the pass."""
        with self._shared.lock:
            self._use_first(count)
            if self._pass is not None:
                self._pass.take(count - len(self._peeked.elements))

    def close(self) -> None:
        """Leave the pass, and give back all that no step took; reading ends here."""
        with self._shared.lock:
            self._leave()
            if not self._peeked.is_closed:
                self._peeked.is_closed = True
                self._shared.take_back(list(self._peeked.elements)[self._first_used :])
            self._shared.readers.discard(self)

    def _use_first(self, count: int) -> None:
        self._first_used = max(self._first_used, count)

    def _leave(self) -> None:
        if self._pass is None:
            return
        self._pass.is_closed = True
        # What an earlier process took and this pass did not come to is taken all the same.
        to_skip = max(0, self._pass.skipped - self._pass.made)
        self._shared.take_back(self._pass.elements, to_skip=to_skip)
        self._pass = None


def next_batches(generator: GeneratorType[Any, Any, Any], most: int | None) -> Iterator[Any]:
    """A generator of the first `most` batches that no step took, or of all: for Keras's own loop.

    Keras does not report how many it uses, so all that it reads are taken.
    """
    passes = GeneratorPasses(generator)
    for count, batch in enumerate(itertools.islice(passes(), most), start=1):
        passes.took(count)
        yield batch


_shared: weakref.WeakKeyDictionary[GeneratorType[Any, Any, Any], _SharedGenerator] = (
    weakref.WeakKeyDictionary()
)
