"""Steps given to the workers of a parameter-server cluster, some of which are lost."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from phalanx.training.parameter_server import scheduler as module
from phalanx.training.parameter_server.scheduler import StepScheduler
from phalanx.training.parameter_server.worker_step import StepResult


class Coordinator:
    """Runs each step where it is scheduled; some are lost before they report."""

    def __init__(self, lost):
        self.given, self._lost = [], set(lost)

    def schedule(self, function, args):
        ticket = int(args[1])
        self.given.append(ticket)
        assert len(self.given) < 50, "it never ends"
        return SimpleNamespace(fetch=lambda: self._reported(ticket))

    def _reported(self, ticket):
        if ticket in self._lost:
            self._lost.remove(ticket)
            raise tf.errors.UnavailableError(None, None, "the worker is lost")
        return ticket

    def join(self):
        pass


class Data:
    """Batches by their number."""

    steps, ends_by_worker = 6, False

    def __init__(self):
        self._received = set()

    def on_workers(self, coordinator):
        return "iterator"

    def ticket(self, position):
        return position

    def unreported(self):
        return ()

    def is_news(self, worker, batch):
        is_new = batch not in self._received
        self._received.add(batch)
        return is_new


@pytest.mark.parametrize("lost", [(), (0,), (2, 5), range(6)])
def test_a_batch_of_a_lost_worker_is_given_again(monkeypatch, lost):
    coordinator = Coordinator(lost)
    monkeypatch.setattr(module, "coordinator_of", lambda _: coordinator)
    monkeypatch.setattr(module, "num_ps_workers", lambda _: 2)

    def read(reported):
        return StepResult(
            samples=1,
            worker=0,
            batch=reported,
            staleness=0,
            seconds=0.0,
            gradient_norm=0.0,
            returned={},
            states=(),
            outputs=(),
        )

    step = SimpleNamespace(function=None, read=read, model=keras.Sequential())
    steps = StepScheduler(None, step, Data())
    reported = [result.batch for result in steps.epoch(None)]
    assert sorted(reported) == list(range(6))
    assert sorted(coordinator.given) == sorted([*range(6), *lost])
    assert steps.position == 6
