"""Workers compare what they bring to a collective: who differs, in words."""

import re
import threading

import pytest

from phalanx.errors import DisagreementError, PeerGoneError
from phalanx.launch.ports import pick_free_ports
from phalanx.launch.rootcause import is_consequence
from phalanx.worker.alike.brought import NO_GRADIENT, Brought, Tensor, difference
from phalanx.worker.alike.check import Check
from phalanx.worker.alike.meeting import Answer, Guest, Host
from phalanx.worker.ending import record_failure


def gradients(step, *tensors):
    named = [Tensor(name=name, shape=shape, dtype=dtype) for name, shape, dtype in tensors]
    return Brought(step=step, what="gradients", tensors=tuple(named))


KERNEL = ("dense/kernel", (4, 2), "float32")
WIDER = ("dense/kernel", (4, 3), "float32")
HALF = ("dense/kernel", (4, 2), "float16")
BIAS = ("dense/bias", (2,), "float32")
NO_BIAS = ("dense/bias", (), NO_GRADIENT)


@pytest.mark.parametrize(
    ("brought", "says"),
    [
        ([gradients(12, KERNEL), gradients(12, KERNEL)], None),
        (
            [gradients(12, KERNEL), gradients(12, WIDER), gradients(12, KERNEL)],
            "step 12, gradients: worker 1 brings dense/kernel (4, 3) float32, the others (4, 2) "
            "float32",
        ),
        (
            [gradients(12, WIDER), gradients(12, KERNEL), gradients(12, KERNEL)],
            "step 12, gradients: worker 0 brings dense/kernel (4, 3) float32, the others (4, 2) "
            "float32",
        ),
        (
            [gradients(3, KERNEL), gradients(3, HALF)],
            "step 3, gradients: worker 1 brings dense/kernel (4, 2) float16, worker 0 (4, 2) "
            "float32",
        ),
        (
            [gradients(3, KERNEL, BIAS), gradients(3, KERNEL)],
            "step 3, gradients: worker 1 brings no dense/bias, worker 0 (2,) float32",
        ),
        (
            [gradients(3, KERNEL), gradients(3, KERNEL, BIAS)],
            "step 3, gradients: worker 1 brings dense/bias (2,) float32, worker 0 none such",
        ),
        (
            [gradients(3, BIAS), gradients(3, NO_BIAS)],
            "step 3, gradients: worker 1 brings dense/bias no gradient, worker 0 (2,) float32",
        ),
        (
            [gradients(3, KERNEL), gradients(3, BIAS)],
            "step 3, gradients: worker 1 brings dense/bias (2,) float32 in place of dense/kernel "
            "(4, 2) float32",
        ),
        (
            [gradients(12), gradients(11), gradients(12)],
            "worker 1 is at step 11 (gradients), the others at step 12 (gradients)",
        ),
        (
            [gradients(12), Brought(step=12, what="metrics")],
            "worker 1 is at step 12 (metrics), worker 0 at step 12 (gradients)",
        ),
    ],
)
def test_the_difference_in_words(brought, says):
    assert difference(dict(enumerate(brought))) == says


def test_what_is_brought_comes_through():
    brought = gradients(12, KERNEL, NO_BIAS)
    assert Brought.from_bytes(brought.to_bytes()) == brought


@pytest.fixture
def meet():
    """`meet(brought, ...)`: what the workers hear who bring these; None comes and is gone."""

    def meet(*brought, patience=60.0, stays=False):
        (port,) = pick_free_ports(1)
        address = ("127.0.0.1", port)
        heard = {}
        done = threading.Event()

        def guest(rank):
            mine = Guest(address, rank, patience=patience)
            if brought[rank] is not None:
                heard[rank] = mine.meet(brought[rank])
            elif stays:
                done.wait(60)

        guests = [threading.Thread(target=guest, args=(rank,)) for rank in range(1, len(brought))]
        for thread in guests:
            thread.start()
        heard[0] = Host(address, len(brought), patience=patience).meet(brought[0])
        done.set()
        for thread in guests:
            thread.join(60)
        return [(heard[rank].said, heard[rank].is_gone) for rank in sorted(heard)]

    return meet


def test_workers_that_bring_the_same_go_on(meet):
    assert meet(gradients(1, KERNEL), gradients(1, KERNEL), gradients(1, KERNEL)) == (
        [("", False)] * 3
    )


def test_all_hear_who_differs(meet):
    heard = meet(gradients(1, KERNEL), gradients(1, KERNEL), gradients(1, WIDER))
    assert len(set(heard)) == 1
    assert heard[0][0].startswith("step 1, gradients: worker 2 brings dense/kernel (4, 3) float32")


def test_a_worker_that_has_ended_is_named(meet):
    assert meet(gradients(7), None) == [
        ("worker 1 has ended; the others are at step 7 (gradients)", True)
    ]


def test_a_worker_that_does_not_come_is_named(meet):
    ((said, is_gone),) = meet(gradients(7), None, patience=0.2, stays=True)
    assert re.match(r"worker 1 has not come for \d+ s; worker 0 is at step 7 \(gradients\)", said)
    assert not is_gone


class Heard:
    """A meeting at which this is heard."""

    def __init__(self, said="", *, is_gone=False):
        self.answer = Answer(said, is_gone=is_gone)

    def meet(self, brought):
        return self.answer


def test_who_differs_is_an_error():
    Check(Heard(), workers=2).compare("gradients", [], in_step=True)
    check = Check(Heard("worker 1 is at step 11"), workers=2)
    with pytest.raises(DisagreementError, match=r"to a collective: worker 1 is at step 11\. Every"):
        check.compare("gradients", [], in_step=True)


def test_that_a_worker_has_ended_is_no_first_cause():
    check = Check(Heard("worker 1 has ended", is_gone=True), workers=2)
    with pytest.raises(PeerGoneError, match="without a worker: worker 1 has ended") as caught:
        check.compare("gradients", [], in_step=True)
    assert is_consequence(record_failure(caught.value, rank=0, now=0.0))
