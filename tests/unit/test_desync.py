"""Workers compare what they bring to a collective: who differs, in words."""

import re
import threading
from multiprocessing.connection import Listener

import pytest

from phalanx.distributed.desync.check import (
    NO_GRADIENT,
    Check,
    CollectiveSignature,
    ExchangeClient,
    ExchangeServer,
    Tensor,
    Verdict,
    difference,
)
from phalanx.errors import WorkerLostError, WorkerMismatchError
from phalanx.launcher.ports import pick_free_ports
from phalanx.launcher.root_cause import is_secondary
from phalanx.monitoring.phase_tracker import PhaseTracker
from phalanx.worker.process_exit import record_failure


def gradients(step, *tensors):
    named = [Tensor(name=name, shape=shape, dtype=dtype) for name, shape, dtype in tensors]
    return CollectiveSignature(step=step, what="gradients", tensors=tuple(named))


KEY = b"the key of the meeting"
KERNEL = ("dense/kernel", (4, 2), "float32")
WIDER = ("dense/kernel", (4, 3), "float32")
HALF = ("dense/kernel", (4, 2), "float16")
BIAS = ("dense/bias", (2,), "float32")
NO_BIAS = ("dense/bias", (), NO_GRADIENT)


@pytest.mark.parametrize(
    ("passed", "says"),
    [
        ([gradients(12, KERNEL), gradients(12, KERNEL)], None),
        (
            [gradients(12, KERNEL), gradients(12, WIDER), gradients(12, KERNEL)],
            "step 12, gradients: worker 1 has dense/kernel (4, 3) float32, the others (4, 2) "
            "float32",
        ),
        (
            [gradients(12, WIDER), gradients(12, KERNEL), gradients(12, KERNEL)],
            "step 12, gradients: worker 0 has dense/kernel (4, 3) float32, the others (4, 2) "
            "float32",
        ),
        (
            [gradients(3, KERNEL), gradients(3, HALF)],
            "step 3, gradients: worker 1 has dense/kernel (4, 2) float16, worker 0 (4, 2) float32",
        ),
        (
            [gradients(3, KERNEL, BIAS), gradients(3, KERNEL)],
            "step 3, gradients: worker 1 has no dense/bias, worker 0 (2,) float32",
        ),
        (
            [gradients(3, KERNEL), gradients(3, KERNEL, BIAS)],
            "step 3, gradients: worker 1 has dense/bias (2,) float32, worker 0 none such",
        ),
        (
            [gradients(3, BIAS), gradients(3, NO_BIAS)],
            "step 3, gradients: worker 1 has dense/bias no gradient, worker 0 (2,) float32",
        ),
        (
            [gradients(3, KERNEL), gradients(3, BIAS)],
            "step 3, gradients: worker 1 has dense/bias (2,) float32 in place of dense/kernel "
            "(4, 2) float32",
        ),
        (
            [gradients(12), gradients(11), gradients(12)],
            "worker 1 is at step 11 (gradients), the others at step 12 (gradients)",
        ),
        (
            [gradients(12), CollectiveSignature(step=12, what="metrics")],
            "worker 1 is at step 12 (metrics), worker 0 at step 12 (gradients)",
        ),
    ],
)
def test_the_difference_in_words(passed, says):
    assert difference(dict(enumerate(passed))) == says


def test_what_is_passed_comes_through():
    passed = gradients(12, KERNEL, NO_BIAS)
    assert CollectiveSignature.from_bytes(passed.to_bytes()) == passed


@pytest.fixture
def meet():
    """`meet(passed, ...)`: what the workers receive that pass these; None connects and ends.

    All have passed `before` until then.
    """

    def meet(*passed, before=(), timeout=60.0, stays=False):
        (port,) = pick_free_ports(1)
        address = ("127.0.0.1", port)
        received = {}
        done = threading.Event()

        def guest(rank):
            mine = ExchangeClient(address, rank, key=KEY, timeout=timeout)
            for each in before:
                mine.exchange_signatures(each)
            if passed[rank] is not None:
                received[rank] = mine.exchange_signatures(passed[rank])
            elif stays:
                done.wait(60)

        guests = [threading.Thread(target=guest, args=(rank,)) for rank in range(1, len(passed))]
        for thread in guests:
            thread.start()
        host = ExchangeServer(address, len(passed), key=KEY, timeout=timeout)
        for each in before:
            host.exchange_signatures(each)
        received[0] = host.exchange_signatures(passed[0])
        done.set()
        for thread in guests:
            thread.join(60)
        return [(received[rank].message, received[rank].is_lost) for rank in sorted(received)]

    return meet


def test_workers_that_pass_the_same_continue(meet):
    assert meet(gradients(1, KERNEL), gradients(1, KERNEL), gradients(1, KERNEL)) == (
        [("", False)] * 3
    )


def test_all_receive_who_differs(meet):
    received = meet(gradients(1, KERNEL), gradients(1, KERNEL), gradients(1, WIDER))
    assert len(set(received)) == 1
    assert received[0][0].startswith("step 1, gradients: worker 2 has dense/kernel (4, 3) float32")


def test_a_worker_that_has_ended_is_named(meet):
    assert meet(gradients(7), None) == [
        ("worker 1 has ended; the others are at step 7 (gradients)", True)
    ]


def test_a_worker_that_does_not_come_is_named(meet):
    ((output, has_ended),) = meet(gradients(7), None, timeout=0.2, stays=True)
    assert re.match(r"worker 1 has not come for \d+ s; worker 0 is at step 7 \(gradients\)", output)
    assert not has_ended


def test_all_receive_who_does_not_come(meet):
    """The chief waits, and a worker that waits for the chief must have a longer timeout."""
    received = meet(gradients(7), gradients(7), None, timeout=0.2, stays=True)
    assert len(received) == 2
    assert len(set(received)) == 1
    assert received[0][0].startswith("worker 2 has not come for 0 s; worker 0 is")


def test_a_long_wait_is_said_once(meet, monkeypatch, caplog):
    monkeypatch.setattr("phalanx.distributed.desync.check._WARN_AFTER", 0.05)
    meet(gradients(7), None, timeout=0.3, stays=True)
    (warning,) = caplog.messages
    assert "worker 1 has not come for 0 s; worker 0 is at step 7 (gradients)" in warning


def test_where_a_worker_was_that_comes_no_more(meet):
    before = [gradients(5), gradients(6)]
    ((output, _),) = meet(gradients(7), None, before=before)
    assert output == (
        "worker 1 has ended after it was at step 6 (gradients); the others are at step 7 "
        "(gradients)"
    )
    ((output, _),) = meet(gradients(7), None, before=before, timeout=0.2, stays=True)
    assert "has not come for 0 s after it was at step 6 (gradients); worker 0" in output


def test_workers_differ_and_meet_again(meet):
    """An answer is that of its meeting alone."""
    received = meet(gradients(2), gradients(2), before=[gradients(1, KERNEL)])
    assert received == [("", False)] * 2


@pytest.fixture
def silent_chief():
    """Somebody at an address who takes one worker in, and does not answer."""
    (port,) = pick_free_ports(1)
    with Listener(("127.0.0.1", port), authkey=KEY) as listener:
        taken = []
        thread = threading.Thread(target=lambda: taken.append(listener.accept()))
        thread.start()

        def hang_up():
            thread.join(60)
            taken[0].close()

        yield ("127.0.0.1", port), hang_up
        hang_up()


def test_a_chief_that_has_ended_is_named(silent_chief):
    address, hang_up = silent_chief
    guest = ExchangeClient(address, 1, key=KEY, timeout=60.0)
    hang_up()
    answer = guest.exchange_signatures(gradients(7))
    assert answer.message == "worker 0 has ended; here it is at step 7 (gradients)"
    assert answer.is_lost


def test_a_chief_that_does_not_answer_is_named(silent_chief):
    address, _ = silent_chief
    answer = ExchangeClient(address, 1, key=KEY, timeout=0.1).exchange_signatures(gradients(7))
    assert answer.message == "worker 0 has not answered for 0 s; here it is at step 7 (gradients)"
    assert not answer.is_lost


def test_a_guest_tries_until_the_chief_listens():
    (port,) = pick_free_ports(1)
    address, hosts = ("127.0.0.1", port), []
    host = threading.Thread(
        target=lambda: hosts.append(ExchangeServer(address, 2, key=KEY, timeout=60.0))
    )

    def listens_now(_):
        if not host.ident:
            host.start()

    ExchangeClient(address, 1, key=KEY, timeout=60.0, sleep=listens_now)
    host.join(60)
    assert hosts
    with pytest.raises(OSError, match="refused"):
        ExchangeClient(address, 1, key=KEY, timeout=60.0, startup=0.0)


class ReceivedLines:
    """A meeting at which this is received."""

    def __init__(self, output="", *, has_ended=False):
        self.answer = Verdict(output, is_lost=has_ended)

    def exchange_signatures(self, passed):
        self.passed = passed
        return self.answer


@pytest.mark.parametrize(("trained", "in_step", "step"), [(4, True, 5), (4, False, 4)])
def test_a_worker_says_at_which_step_it_is(trained, in_step, step, monkeypatch):
    phase_tracker = PhaseTracker()
    phase_tracker.at(step=trained)
    monkeypatch.setattr("phalanx.distributed.desync.check.phase_tracker", phase_tracker)
    meeting = ReceivedLines()
    Check(meeting, workers=2).compare("gradients", [], in_step=in_step)
    assert meeting.passed == gradients(step)


def test_before_any_training_it_is_at_the_first_step(monkeypatch):
    monkeypatch.setattr("phalanx.distributed.desync.check.phase_tracker", PhaseTracker())
    meeting = ReceivedLines()
    Check(meeting, workers=2).compare("gradients", [], in_step=True)
    assert meeting.passed.step == 1


def test_who_differs_is_an_error():
    Check(ReceivedLines(), workers=2).compare("gradients", [], in_step=True)
    check = Check(ReceivedLines("worker 1 is at step 11"), workers=2)
    with pytest.raises(
        WorkerMismatchError, match=r"with different tensors: worker 1 is at step 11\. Every"
    ):
        check.compare("gradients", [], in_step=True)


def test_that_a_worker_has_ended_is_no_first_cause():
    check = Check(ReceivedLines("worker 1 has ended", has_ended=True), workers=2)
    with pytest.raises(WorkerLostError, match="without a worker: worker 1 has ended") as caught:
        check.compare("gradients", [], in_step=True)
    assert is_secondary(record_failure(caught.value, rank=0, now=0.0))
