from dataclasses import replace

import pytest

from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.root_cause import (
    WorkerExit,
    failure_report,
    is_port_conflict,
    is_secondary,
    root_cause,
)


def failure(rank=0, type="ValueError", message="bad", time=1.0, exit_code=1, boot="a"):
    trace = f"Traceback (most recent call last):\n{type}: {message}\n"
    return FailureRecord(
        rank=rank,
        type=type,
        message=message,
        traceback=trace,
        time=0.0,
        exit_code=exit_code,
        monotonic=time,
        boot=boot,
    )


def ended(rank, code=1, *, at=10.0, terminated_by_launcher=False, **failed):
    record = failure(rank, **failed) if failed else None
    return WorkerExit(
        rank=rank,
        exit_code=code,
        at=at,
        terminated_by_launcher=terminated_by_launcher,
        failure=record,
    )


@pytest.mark.parametrize(
    ("type", "message", "consequence"),
    [
        ("UnavailableError", "anything", True),
        ("AbortedError", "anything", True),
        ("CancelledError", "anything", True),
        ("DeadlineExceededError", "anything", True),
        ("InternalError", "Connection reset by peer", True),
        ("UnknownError", "failed to connect to all addresses", True),
        ("InternalError", "Blas GEMM launch failed", False),
        ("UnknownError", "Could not start gRPC server", False),
        ("ValueError", "Connection reset by peer", False),  # The script's own network.
        ("ConnectionResetError", "Connection reset by peer", False),
    ],
)
def test_what_a_dead_peer_causes(type, message, consequence):
    assert is_secondary(failure(type=type, message=message)) is consequence


@pytest.mark.parametrize(
    ("endings", "rank"),
    [
        ([ended(0, 0), ended(1, 0)], None),
        ([ended(0, -15, terminated_by_launcher=True), ended(1, 0)], None),
        # The earliest on one host, by its monotonic clock, not in the order in which they went.
        ([ended(0, at=5, time=4.0), ended(1, at=9, time=3.0)], 1),
        # Clocks of several hosts cannot be compared: what the launcher saw first of each host.
        ([ended(0, at=5, time=4000.0, boot="a"), ended(1, at=9, time=3.0, boot="b")], 0),
        ([ended(0, at=9, time=3.0, boot="a"), ended(1, at=5, time=4000.0, boot="b")], 1),
        # A worker that wrote nothing: when the launcher saw its end.
        ([ended(0, at=9, time=3.0), ended(1, -9, at=8)], 1),
        # A dead peer's victim may be quicker to say so.
        ([ended(0, type="UnavailableError", time=1.0), ended(1, time=2.0)], 1),
        ([ended(0, type="UnavailableError", time=1.0), ended(1, -9, at=2.0)], 1),
        # No one else is to blame.
        ([ended(0, type="UnavailableError", time=1.0), ended(1, 0)], 0),
        # It had said so before it was stopped.
        ([ended(0, -15, terminated_by_launcher=True, time=1.0), ended(1, time=2.0)], 0),
        ([ended(0, 3), ended(1, -15, terminated_by_launcher=True)], 0),
        ([ended(0, 0, type="SystemExit", message="3", exit_code=3), ended(1, 0)], 0),
    ],
)
def test_the_root_cause(endings, rank):
    cause = root_cause(endings)
    assert (cause.rank if cause else None) == rank


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (ended(0, 3), 3),
        (ended(0, -9), 137),
        (ended(0, 1, time=1.0), 1),
        (ended(0, -15, terminated_by_launcher=True, type="SystemExit", exit_code=3), 3),
    ],
)
def test_the_exit_code(ending, code):
    assert ending.shell_code == code


@pytest.mark.parametrize(
    ("message", "lost"), [("Could not start gRPC server", True), ("Connection refused", False)]
)
def test_a_taken_port(message, lost):
    assert is_port_conflict(ended(0, type="UnknownError", message=message)) is lost


def test_no_record_no_taken_port():
    assert not is_port_conflict(ended(0, 1))


def test_the_report(tmp_path):
    endings = [
        ended(0, type="UnavailableError", time=3.0),
        ended(1, message="bad data\nin row 3", time=1.0),
        ended(2, -15, terminated_by_launcher=True),
        ended(3, 0),
        ended(4, type="KeyError", message="'x'", time=2.0),
    ]
    assert failure_report(endings[1], endings, tmp_path / "worker-1.log").splitlines() == [
        "Worker 1 failed first: ValueError: bad data",
        "  Traceback (most recent call last):",
        "  ValueError: bad data",
        "  in row 3",
        f"Its log: {tmp_path / 'worker-1.log'}",
        "Worker 0 failed after it, as its peer had ended (UnavailableError).",
        "Worker 2 was stopped.",
        "Worker 3 had ended well.",
        "Worker 4 failed as well: KeyError: 'x'.",
    ]


def test_a_long_message_is_said_once(tmp_path):
    long = "shapes do not fit, " * 20 + "at all"
    place = "worker 1, replica 1, in step 3"
    trace = f"Traceback:\n  File x\nlib.Wrong: \x1b[1m{long}\x1b[0m\nMore of it.\n{place}\n"
    record = FailureRecord(
        rank=1, type="Wrong", message=f"{place}: {long}\n{long}", traceback=trace, time=1.0
    )
    other = replace(record, rank=0, message=record.message.replace("r 1", "r 0"), time=2.0)
    bare = replace(record, message=f"{long}\nMore of it.", traceback=trace.replace(place, ""))
    for failed in (record, bare):
        cause = WorkerExit(rank=1, exit_code=1, at=1.0, failure=failed)
        same = WorkerExit(rank=0, exit_code=1, at=2.0, failure=other if failed is record else bare)
        report = failure_report(cause, [same, cause], tmp_path / "log")
        assert report.count(long) == 1
        assert "\x1b" not in report
        assert "  More of it.\n" in report
        assert report.count(place) == (failed is record)
        assert report.endswith("\nWorker 0 failed as well, in the same way.")


def test_a_long_traceback_keeps_its_end(tmp_path):
    record = FailureRecord(
        rank=0, type="E", message="", traceback="\n".join(map(str, range(50))), time=0.0
    )
    cause = WorkerExit(rank=0, exit_code=1, at=1.0, failure=record)
    report = failure_report(cause, [cause], tmp_path / "log").splitlines()
    assert report[0] == "Worker 0 failed first: E"
    assert report[1] == "  ..."
    assert report[-2] == "  49"


def test_a_killed_worker_gets_its_last_output_reported(tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text(
        "I0000 00:00:1.5   1 port.cc:153] noise\nEpoch 1\n1/9\r\x1b[1m4/9\x1b[0m", "utf-8"
    )
    cause = ended(0, -9)
    report = failure_report(cause, [cause], log)
    assert "killed by SIGKILL (out of memory?)" in report
    assert "Its last output:\n  Epoch 1\n  4/9\n" in report


def test_a_peer_that_left_in_silence_is_pointed_at(tmp_path):
    endings = [ended(0, type="UnavailableError"), ended(1, 0)]
    assert "os._exit" in failure_report(endings[0], endings, tmp_path / "log")
