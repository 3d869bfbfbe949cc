"""The check that this process does before each collective, where it was asked for."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any, Protocol

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import WorkerLostError, WorkerMismatchError
from phalanx.monitoring.phase_tracker import phase_tracker

PATIENCE = 300.0


class Check:
    """Compares what this worker brings with what the others do."""

    def __init__(self, meeting: SignatureExchange, *, workers: int) -> None:
        """Meet the `workers` in `meeting`."""
        self.workers = workers
        self._meeting = meeting
        self._thread = threading.local()

    @property
    def is_under_way(self) -> bool:
        """Whether what this thread is about to do is part of what was compared."""
        return bool(getattr(self._thread, "covered", False))

    def compare(self, what: str, tensors: Sequence[Tensor], *, in_step: bool) -> None:
        """Return when all workers bring the same.

        Args:
            what: what is to be brought together.
            tensors: what this worker brings.
            in_step: whether a step is under way; else one has ended.

        Raises:
            WorkerMismatchError: a worker brings something else, or does not come.
            WorkerLostError: a worker has ended.
        """
        step = (phase_tracker.beat().step or 0) + in_step
        answer = self._meeting.exchange_signatures(
            CollectiveSignature(step=step, what=what, tensors=tuple(tensors))
        )
        if answer.is_gone:
            raise WorkerLostError(f"Cannot go on without a worker: {answer.said}.")
        if answer.said:
            raise WorkerMismatchError(
                f"Workers do not bring the same to a collective: {answer.said}. Every worker must "
                "take the same steps on the same model, with data of the same shapes and dtypes."
            )

    @contextmanager
    def covered(self) -> Iterator[None]:
        """What this thread does in the block has been compared."""
        before, self._thread.covered = self.is_under_way, True
        try:
            yield
        finally:
            self._thread.covered = before


_current: list[Check] = []


def begin(spec: WorkerSpec) -> None:
    """Have this process compare from now on, if its run was asked to.

    Raises:
        OSError: the workers cannot meet.
    """
    if not spec.meeting or spec.serves:
        return
    host, _, port = spec.meeting.rpartition(":")
    patience = None if spec.interactive else PATIENCE
    address = (host, int(port))
    meeting: SignatureExchange = (
        ExchangeServer(address, spec.world_size, patience=patience)
        if spec.is_chief
        else ExchangeClient(address, spec.rank, patience=patience)
    )
    _current[:] = [Check(meeting, workers=spec.world_size)]


def current_check() -> Check | None:
    """This process's check; None where it does none."""
    return _current[0] if _current else None


def before_collective(
    what: str, tensors: Callable[[], Sequence[Tensor]] = tuple, *, in_step: bool = False
) -> None:
    """Compare what this worker brings, if it was asked to; see `Check.compare`."""
    check = current_check()
    if check is not None and not check.is_under_way:
        check.compare(what, tensors(), in_step=in_step)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor that is brought.

    Attributes:
        name: a variable's path, or what it is.
        shape: its dimensions; -1 for one that workers may have of different sizes.
        dtype: its name; "no gradient" where there is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ", ".join("any" if size < 0 else str(size) for size in self.shape)
        comma = "," * (len(self.shape) == 1)
        return self.dtype if self.dtype == NO_GRADIENT else f"({sizes}{comma}) {self.dtype}"


NO_GRADIENT = "no gradient"


@dataclass(frozen=True, kw_only=True)
class CollectiveSignature:
    """What one worker brings to one collective.

    Attributes:
        step: the step it is at, counted from 1.
        what: what is to be brought together, such as "gradients".
        tensors: the tensors.
    """

    step: int
    what: str
    tensors: tuple[Tensor, ...] = ()

    @property
    def place(self) -> str:
        """Where the worker is, in words."""
        return f"at step {self.step} ({self.what})"

    def to_bytes(self) -> bytes:
        """For another process."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> CollectiveSignature:
        """What `to_bytes` wrote."""
        fields = json.loads(text)
        tensors = [Tensor(**{**each, "shape": tuple(each["shape"])}) for each in fields["tensors"]]
        return cls(step=fields["step"], what=fields["what"], tensors=tuple(tensors))


def difference(brought: Mapping[int, CollectiveSignature]) -> str | None:
    """Who brings something else than the others, and what; None where all bring the same.

    Args:
        brought: what each worker brings, by rank.
    """
    places = {rank: (each.step, each.what) for rank, each in brought.items()}
    if odd := _odd(places):
        there = brought[_others(odd, places)]
        here = [f"worker {rank} is {brought[rank].place}" for rank in odd]
        return f"{', '.join(here)}, {_the_others(odd, places)} {there.place}"
    tensors = {rank: each.tensors for rank, each in brought.items()}
    if not (odd := _odd(tensors)):
        return None
    there = brought[_others(odd, tensors)]
    others = _the_others(odd, tensors)
    found = [
        f"worker {rank} brings {_first_difference(brought[rank].tensors, there.tensors, others)}"
        for rank in odd
    ]
    return f"step {there.step}, {there.what}: {'; '.join(found)}"


def _odd(values: Mapping[int, object]) -> list[int]:
    """The ranks that are not with the most; with as many on both sides, not with the chief."""
    counts = Counter(values.values())
    most = max(counts.values())
    common = next(value for rank, value in sorted(values.items()) if counts[value] == most)
    return [rank for rank, value in sorted(values.items()) if value != common]


def _others(odd: Sequence[int], values: Mapping[int, object]) -> int:
    return next(rank for rank in sorted(values) if rank not in odd)


def _the_others(odd: Sequence[int], values: Mapping[int, object]) -> str:
    rest = [rank for rank in sorted(values) if rank not in odd]
    return f"worker {rest[0]}" if len(rest) == 1 else "the others"


def _first_difference(here: Sequence[Tensor], there: Sequence[Tensor], others: str) -> str:
    for mine, theirs in zip_longest(here, there):
        if mine == theirs:
            continue
        if mine is None:
            return f"no {theirs.name}, {others} {theirs}"
        if theirs is None:
            return f"{mine.name} {mine}, {others} none such"
        if mine.name == theirs.name:
            return f"{mine.name} {mine}, {others} {theirs}"
        return f"{mine.name} {mine} in place of {theirs.name} {theirs}"
    return "the same"


# One small message from each worker and one answer, over a connection that lasts as long as the
# worker. So a worker that ends is noticed at once.

_log = logging.getLogger(__name__)
_BETWEEN_TRIES = 0.1
_WARN_AFTER = 60.0

Address = tuple[str, int]


class Verdict:
    """What the chief found.

    Attributes:
        said: who differs, in words; empty where nobody does.
        is_gone: whether that is because a worker has ended.
    """

    def __init__(self, said: str = "", *, is_gone: bool = False) -> None:
        self.said = said
        self.is_gone = is_gone

    def to_bytes(self) -> bytes:
        """For another process."""
        return json.dumps([self.said, self.is_gone]).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Verdict:
        """What `to_bytes` wrote."""
        said, is_gone = json.loads(text)
        return cls(said, is_gone=is_gone)


class SignatureExchange(Protocol):
    """A worker's end of the meetings."""

    def exchange_signatures(self, brought: CollectiveSignature) -> Verdict:
        """Tell what this worker brings, and hear what all made of it."""


class ExchangeServer:
    """The chief's end."""

    def __init__(self, address: Address, workers: int, *, patience: float | None) -> None:
        """Listen at `address`, and return when all others have come.

        Args:
            address: host and port.
            workers: how many there are, the chief included.
            patience: seconds to wait for a worker that does not come; None for ever.

        Raises:
            OSError: the address is taken.
        """
        self._patience = patience
        self._guests: dict[int, Connection[Any, Any]] = {}
        self._last: dict[int, CollectiveSignature] = {}
        with Listener(address, backlog=workers) as listener:
            while len(self._guests) < workers - 1:
                connection = listener.accept()
                self._guests[int(connection.recv_bytes())] = connection

    def exchange_signatures(self, brought: CollectiveSignature) -> Verdict:
        """See `SignatureExchange`."""
        heard = {0: brought}
        answer = self._hear(heard)
        if answer is None:
            answer = Verdict(difference(heard) or "")
        self._last.update(heard)
        for connection in self._guests.values():
            try:
                connection.send_bytes(answer.to_bytes())
            except OSError:
                continue  # It has ended, and needs no answer.
        return answer

    def _hear(self, heard: dict[int, CollectiveSignature]) -> Verdict | None:
        """Take what the others bring into `heard`; an answer where one of them does not come."""
        ranks = {id(connection): rank for rank, connection in self._guests.items()}
        waiting = dict(self._guests)
        begin, warned = time.monotonic(), False
        pause = _WARN_AFTER if self._patience is None else min(_WARN_AFTER, self._patience)
        while waiting:
            for ready in wait(list(waiting.values()), pause):
                rank = ranks[id(ready)]
                connection = waiting.pop(rank)
                try:
                    heard[rank] = CollectiveSignature.from_bytes(connection.recv_bytes())
                except (EOFError, OSError):
                    return Verdict(self._gone(rank, heard[0]), is_gone=True)
            waited = time.monotonic() - begin
            if waiting and waited >= _WARN_AFTER and not warned:
                warned = True
                _log.warning("%s", self._late(min(waiting), heard[0], waited))
            if waiting and self._patience is not None and waited >= self._patience:
                return Verdict(self._late(min(waiting), heard[0], waited))
        return None

    def _gone(self, rank: int, brought: CollectiveSignature) -> str:
        return f"worker {rank} has ended{self._was(rank)}; the others are {brought.place}"

    def _late(self, rank: int, brought: CollectiveSignature, waited: float) -> str:
        return (
            f"worker {rank} has not come for {waited:.0f} s{self._was(rank)}; worker 0 is "
            f"{brought.place}"
        )

    def _was(self, rank: int) -> str:
        last = self._last.get(rank)
        return "" if last is None else f" after it was {last.place}"


class ExchangeClient:
    """The end of a worker that is not the chief."""

    def __init__(
        self,
        address: Address,
        rank: int,
        *,
        patience: float | None,
        startup: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Go to the chief, which may not listen yet.

        Args:
            address: host and port of the chief's.
            rank: this worker's.
            patience: seconds to wait for an answer; None for ever.
            startup: seconds until the chief must listen.
            sleep: waits so many seconds.

        Raises:
            OSError: nobody listens there.
        """
        # The chief has to wait for others too, who may come later than this worker.
        self._patience = None if patience is None else 2 * patience
        end = time.monotonic() + startup
        while True:
            try:
                self._chief = Client(address)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                sleep(_BETWEEN_TRIES)
        self._chief.send_bytes(str(rank).encode())

    def exchange_signatures(self, brought: CollectiveSignature) -> Verdict:
        """See `SignatureExchange`."""
        try:
            self._chief.send_bytes(brought.to_bytes())
            if not self._chief.poll(self._patience):
                return Verdict(
                    f"worker 0 has not come for {self._patience:.0f} s; here it is {brought.place}"
                )
            return Verdict.from_bytes(self._chief.recv_bytes())
        except (EOFError, OSError):
            return Verdict(f"worker 0 has ended; here it is {brought.place}", is_gone=True)
