"""Schedule steps on the workers, some ahead, and take their results in the order of the steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.keras_compat.model_access import stateful_layers
from phalanx.keras_compat.tf_distribute import num_ps_workers
from phalanx.training.parameter_server.ps_context import coordinator_of
from phalanx.training.parameter_server.worker_data import WorkerData
from phalanx.training.parameter_server.worker_step import StepResult, WorkerStep

_log = logging.getLogger(__name__)
AHEAD_PER_WORKER = 8
"""Steps that are given before the first is done, so that a slow worker holds up no other."""


@dataclass(frozen=True, kw_only=True)
class _Scheduled:
    """A step that was given to the workers: its ticket, and its future result."""

    ticket: int
    outcome: Future[Any]


class StepScheduler:
    """Schedules the steps of one kind on one cluster's workers.

    Attributes:
        room: how many more steps may be scheduled before all must be idle; None for any
            number. All results are handled by then.
        on_quiesce: called when nothing is under way, where `room` asked for that.
    """

    def __init__(self, strategy: Any, step: WorkerStep, data: WorkerData) -> None:
        """Get ready; the data is made on the workers with the first step.

        Raises:
            ConfigurationError: a layer carries state from batch to batch, which several workers
                cannot.
        """
        self._coordinator = coordinator_of(strategy)
        self.workers = num_ps_workers(strategy)
        if self.workers > 1 and (names := stateful_layers(step.model)):
            raise ConfigurationError(
                f"Asked to run a model on {self.workers} workers of parameter servers, each of "
                f"which gets some of the batches; found stateful=True in {', '.join(names)}, whose "
                "state goes from each batch to the next. Set stateful=False there, or train in "
                "step: phalanx run --strategy multiworker."
            )
        self._step = step
        self._data = data
        self._iterator: Any = None
        self._position = 0
        self._done = 0
        self._stopped = False
        self._waiting: deque[_Scheduled] = deque()
        self._ended: set[int] = set()
        self._fetchers = ThreadPoolExecutor(AHEAD_PER_WORKER * self.workers)
        self.room: Callable[[], int | None] = lambda: None
        self.on_quiesce: Callable[[], None] = lambda: None

    @property
    def steps_in_pass(self) -> int | None:
        """Steps in a pass of all workers together, None where unknown."""
        return self._data.steps

    @property
    def position(self) -> int:
        """Steps into training."""
        return self._position

    def start(self, position: int) -> None:
        """Begin `position` steps into training."""
        self._position = position

    def end_pass(self) -> None:
        """Begin the next pass, whatever is left of this one."""
        self._data.next_pass()

    def stop(self) -> None:
        """Give out no more steps of this epoch; those given are trained and reported."""
        self._stopped = True

    def epoch(self, steps: int | None, *, done: int = 0) -> Iterator[StepResult]:
        """Run one epoch: so many steps, or one pass where None, and give the result of each.

        Args:
            steps: of the whole epoch.
            done: of these, how many were trained before.
        """
        limit = self._data.steps if steps is None and not self._data.ends_by_worker else steps
        self._done, self._stopped, self._ended = done, False, set()
        self._waiting.clear()
        while True:
            while self._wants_more(limit):
                self._waiting.append(self._give(self._next_ticket()))
            if self._waiting:
                yield from self._results_of(self._waiting.popleft())
                continue
            self._coordinator.join()
            yield from self._unreported()
            if len(self._ended) == self.workers:
                self._data.next_pass()
                if self._done > done or steps is None:
                    return
                self._ended.clear()  # it ended with the epoch before
            elif self._stopped or (limit is not None and self._done >= limit):
                return
            else:
                self.on_quiesce()

    def _wants_more(self, limit: int | None) -> bool:
        under_way = len(self._waiting)
        if self._stopped or len(self._ended) == self.workers:
            return False
        if under_way >= AHEAD_PER_WORKER * self.workers:
            return False
        room = self.room()
        if room is not None and under_way >= room:
            return False
        return limit is None or self._done + under_way < limit

    def _next_ticket(self) -> int:
        return self._data.ticket(self._position + len(self._waiting))

    def _give(self, ticket: int) -> _Scheduled:
        if self._iterator is None:
            self._iterator = self._data.on_workers(self._coordinator)
        arguments = (self._iterator, tf.constant(ticket, tf.int64))
        remote = self._coordinator.schedule(self._step.function, args=arguments)
        # What a step returns stays on its worker until it is fetched, and is lost with it.
        return _Scheduled(ticket=ticket, outcome=self._fetchers.submit(remote.fetch))

    def _results_of(self, given: _Scheduled) -> Iterator[StepResult]:
        try:
            result = self._step.read(given.outcome.result())
        except tf.errors.OpError as error:
            self._coordinator.join()  # raises what a step, or a lost server, has raised
            _log.info("a worker was lost before it reported its result: %s", type(error).__name__)
            if not self._data.ends_by_worker:  # the same batch again, which counts once
                self._waiting.appendleft(self._give(given.ticket))
            yield from self._unreported()
            return
        if isinstance(result, int):
            self._ended.add(result)
        elif self._data.is_news(result.worker, result.batch):
            yield self._count(result)

    def _unreported(self) -> Iterator[StepResult]:
        """Results of lost workers that the chief has not received."""
        for outcome in self._data.unreported():
            result = self._step.read(outcome)
            assert isinstance(result, StepResult)
            yield self._count(result)

    def _count(self, result: StepResult) -> StepResult:
        self._done += 1
        self._position += 1
        return result
