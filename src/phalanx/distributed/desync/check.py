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
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from phalanx.cluster.authenticated_connection import AuthenticatedListener, connect
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import WorkerLostError, WorkerMismatchError
from phalanx.monitoring.phase_tracker import phase_tracker

_LONGEST_RANK = 16
TIMEOUT = 300.0


class Check:
    """Compares the tensors that workers give to each collective."""

    def __init__(self, exchange: SignatureExchange, *, workers: int) -> None:
        """Compare with the other `workers` through `exchange`."""
        self.workers = workers
        self._exchange = exchange
        self._thread = threading.local()

    @property
    def is_under_way(self) -> bool:
        """Whether what this thread is about to do is part of what was compared."""
        return bool(getattr(self._thread, "covered", False))

    def compare(self, what: str, tensors: Sequence[Tensor], *, in_step: bool) -> None:
        """Return when all workers give the same tensors.

        Args:
            what: what is aggregated.
            tensors: the tensors that this worker gives.
            in_step: whether a step is under way; else one has ended.

        Raises:
            WorkerMismatchError: a worker gives other tensors, or does not call the collective.
            WorkerLostError: a worker has ended.
        """
        step = (phase_tracker.beat().step or 0) + in_step
        answer = self._exchange.exchange_signatures(
            CollectiveSignature(step=step, what=what, tensors=tuple(tensors))
        )
        if answer.is_lost:
            raise WorkerLostError(f"Cannot continue without a worker: {answer.message}.")
        if answer.message:
            raise WorkerMismatchError(
                f"Workers call a collective with different tensors: {answer.message}. "
                "Every worker must "
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
        OSError: the workers cannot connect.
    """
    if not spec.desync_address or spec.serves:
        return
    host, _, port = spec.desync_address.rpartition(":")
    timeout = None if spec.interactive else TIMEOUT
    address = (host, int(port))
    key = bytes.fromhex(spec.desync_key)
    exchange: SignatureExchange = (
        ExchangeServer(address, spec.world_size, key=key, timeout=timeout)
        if spec.is_chief
        else ExchangeClient(address, spec.rank, key=key, timeout=timeout)
    )
    _current[:] = [Check(exchange, workers=spec.world_size)]


def current_check() -> Check | None:
    """This process's check; None where it does none."""
    return _current[0] if _current else None


def before_collective(
    what: str, tensors: Callable[[], Sequence[Tensor]] = tuple, *, in_step: bool = False
) -> None:
    """Compare the tensors of this worker with the others', under --debug; see `Check.compare`."""
    check = current_check()
    if check is not None and not check.is_under_way:
        check.compare(what, tensors(), in_step=in_step)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor that a worker passes.

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
    """The tensors that one worker gives to one collective.

    Attributes:
        step: the step it is at, counted from 1.
        what: what is aggregated, such as "gradients".
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


def difference(signatures: Mapping[int, CollectiveSignature]) -> str | None:
    """Which worker gives other tensors, and which; None if all give the same.

    Args:
        signatures: the tensors that each worker gives, by rank.
    """
    places = {rank: (each.step, each.what) for rank, each in signatures.items()}
    if odd := _odd(places):
        there = signatures[_others(odd, places)]
        here = [f"worker {rank} is {signatures[rank].place}" for rank in odd]
        return f"{', '.join(here)}, {_the_others(odd, places)} {there.place}"
    tensors = {rank: each.tensors for rank, each in signatures.items()}
    if not (odd := _odd(tensors)):
        return None
    there = signatures[_others(odd, tensors)]
    others = _the_others(odd, tensors)
    found = [
        f"worker {rank} has {_first_difference(signatures[rank].tensors, there.tensors, others)}"
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
        message: who differs, in words; empty where no worker does.
        is_lost: whether that is because a worker has ended.
    """

    def __init__(self, message: str = "", *, is_lost: bool = False) -> None:
        self.message = message
        self.is_lost = is_lost

    def to_bytes(self) -> bytes:
        """For another process."""
        return json.dumps([self.message, self.is_lost]).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Verdict:
        """What `to_bytes` wrote."""
        message, is_lost = json.loads(text)
        return cls(message, is_lost=is_lost)


class SignatureExchange(Protocol):
    """A worker's end of the comparisons."""

    def exchange_signatures(self, signatures: CollectiveSignature) -> Verdict:
        """Send the signature of this worker, and receive the verdict over all."""


class ExchangeServer:
    """The chief's end."""

    def __init__(
        self, address: Address, workers: int, *, key: bytes, timeout: float | None
    ) -> None:
        """Listen at `address`, and return when all others have come.

        Args:
            address: host and port.
            workers: how many there are, the chief included.
            key: what a worker must know.
            timeout: seconds to wait for a worker that does not come; None forever.

        Raises:
            OSError: the address is taken.
        """
        self._timeout = timeout
        self._guests: dict[int, Connection[Any, Any]] = {}
        self._last: dict[int, CollectiveSignature] = {}
        arrived = threading.Condition()

        def welcome(connection: Connection[Any, Any]) -> None:
            try:
                rank = int(connection.recv_bytes(_LONGEST_RANK))
            except (OSError, EOFError, ValueError):
                connection.close()
                return
            with arrived:
                self._guests[rank] = connection
                arrived.notify()

        listener = AuthenticatedListener(address, key=key, on_connection=welcome)
        with arrived:
            arrived.wait_for(lambda: len(self._guests) >= workers - 1)
        listener.close()

    def exchange_signatures(self, signatures: CollectiveSignature) -> Verdict:
        """See `SignatureExchange`."""
        received = {0: signatures}
        answer = self._receive(received)
        if answer is None:
            answer = Verdict(difference(received) or "")
        self._last.update(received)
        for connection in self._guests.values():
            try:
                connection.send_bytes(answer.to_bytes())
            except OSError:
                continue  # It has ended, and needs no answer.
        return answer

    def _receive(self, received: dict[int, CollectiveSignature]) -> Verdict | None:
        """Read the messages of the others into `received`; an answer where one is missing."""
        ranks = {id(connection): rank for rank, connection in self._guests.items()}
        waiting = dict(self._guests)
        begin, warned = time.monotonic(), False
        pause = _WARN_AFTER if self._timeout is None else min(_WARN_AFTER, self._timeout)
        while waiting:
            for ready in wait(list(waiting.values()), pause):
                rank = ranks[id(ready)]
                connection = waiting.pop(rank)
                try:
                    received[rank] = CollectiveSignature.from_bytes(connection.recv_bytes())
                except (EOFError, OSError):
                    return Verdict(self._lost(rank, received[0]), is_lost=True)
            waited = time.monotonic() - begin
            if waiting and waited >= _WARN_AFTER and not warned:
                warned = True
                _log.warning("%s", self._late(min(waiting), received[0], waited))
            if waiting and self._timeout is not None and waited >= self._timeout:
                return Verdict(self._late(min(waiting), received[0], waited))
        return None

    def _lost(self, rank: int, signatures: CollectiveSignature) -> str:
        return f"worker {rank} has ended{self._was(rank)}; the others are {signatures.place}"

    def _late(self, rank: int, signatures: CollectiveSignature, waited: float) -> str:
        return (
            f"worker {rank} has not come for {waited:.0f} s{self._was(rank)}; worker 0 is "
            f"{signatures.place}"
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
        key: bytes,
        timeout: float | None,
        startup: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Go to the chief, which may not listen yet.

        Args:
            address: host and port of the chief's.
            rank: this worker's.
            key: what the chief must know.
            timeout: seconds to wait for an answer; None forever.
            startup: seconds until the chief must listen.
            sleep: waits so many seconds.

        Raises:
            OSError: no process listens there.
            AuthenticationError: one that does not know the key.
        """
        # The chief has to wait for others too, who may come later than this worker.
        self._timeout = None if timeout is None else 2 * timeout
        end = time.monotonic() + startup
        while True:
            try:
                self._chief = connect(address, key=key)
                break
            except (OSError, AuthenticationError):
                if time.monotonic() > end:
                    raise
                sleep(_BETWEEN_TRIES)
        self._chief.send_bytes(str(rank).encode())

    def exchange_signatures(self, signatures: CollectiveSignature) -> Verdict:
        """See `SignatureExchange`."""
        try:
            self._chief.send_bytes(signatures.to_bytes())
            if not self._chief.poll(self._timeout):
                return Verdict(
                    f"worker 0 has not answered for {self._timeout:.0f} s; here it is "
                    f"{signatures.place}"
                )
            return Verdict.from_bytes(self._chief.recv_bytes())
        except (EOFError, OSError):
            return Verdict(f"worker 0 has ended; here it is {signatures.place}", is_lost=True)
