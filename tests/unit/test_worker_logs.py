"""What a worker's `logging` says, and which rank each record has."""

import logging

import absl.logging
import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.worker.logs import absl_held_back, level_of, set_up_logging

ADDRESSES = ("a:1", "b:2")


@pytest.fixture(autouse=True)
def as_it_was():
    """Puts back what `set_up_logging` changes of the whole process."""
    loggers = [logging.getLogger(name) for name in (None, "tensorflow", "phalanx")]
    before = [(log, log.level, log.handlers[:], log.propagate) for log in loggers]
    last, factory = logging.lastResort, logging.getLogRecordFactory()
    logging.getLogger("phalanx").handlers.clear()
    yield
    logging.lastResort = last
    logging.setLogRecordFactory(factory)
    for log, level, handlers, propagate in before:
        log.setLevel(level)
        log.handlers[:] = handlers
        log.propagate = propagate


def spec(rank, log_level="auto"):
    return WorkerSpec(rank=rank, world_size=2, addresses=ADDRESSES, log_level=log_level)


@pytest.mark.parametrize(
    ("rank", "requested", "level"),
    [
        (0, "auto", logging.INFO),
        (1, "auto", logging.WARNING),
        (0, "error", logging.ERROR),
        (1, "debug", logging.DEBUG),
    ],
)
def test_levels(rank, requested, level):
    assert level_of(spec(rank, requested)) == level
    set_up_logging(spec(rank, requested))
    assert logging.getLogger("train").isEnabledFor(level)
    assert not logging.getLogger("train").isEnabledFor(level - 1)


@pytest.mark.parametrize("requested", ["auto", "info", "debug"])
def test_phalanx_reports_itself_in_every_log(requested):
    set_up_logging(spec(1, requested))
    assert logging.getLogger("phalanx.worker").isEnabledFor(logging.INFO)


def test_phalanx_is_quiet_when_asked():
    set_up_logging(spec(0, "warning"))
    assert not logging.getLogger("phalanx").isEnabledFor(logging.INFO)


def test_every_record_has_the_rank():
    set_up_logging(spec(1))
    record = logging.getLogger("train").makeRecord("train", 20, "a.py", 1, "text", (), None)
    assert logging.Formatter("%(rank)d %(message)s").format(record) == "1 text"


def output(capsys, *records):
    """What is shown of records (level, name, text) that no handler of the script takes."""
    for level, name, text in records:
        record = logging.getLogger(name).makeRecord(name, level, "a.py", 1, text, (), None)
        logging.lastResort.handle(record)
    return capsys.readouterr().err.splitlines()


def test_warnings_are_said_once(capsys):
    set_up_logging(spec(0))
    warning, error = logging.WARNING, logging.ERROR
    shown = output(
        capsys,
        *[(warning, "train", "slow")] * 3,
        (warning, "data", "slow"),
        *[(error, "train", "bad")] * 2,
    )
    assert shown == ["WARNING train: slow", "WARNING data: slow", *["ERROR train: bad"] * 2]


def test_libraries_say_little(capsys):
    set_up_logging(spec(0))
    info, warning = logging.INFO, logging.WARNING
    shown = output(capsys, (info, "absl", "much"), (warning, "absl", "odd"), (info, "train", "on"))
    assert shown == ["WARNING absl: odd", "INFO train: on"]
    assert not logging.getLogger("tensorflow").isEnabledFor(info)


def test_absl_gives_the_root_logger_no_handler_while_it_is_held_back(capsys, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    set_up_logging(spec(0))
    with absl_held_back():
        absl.logging.info("much")
        assert root.handlers, "what it is held back from"
    assert root.handlers == []
    assert capsys.readouterr().err == ""
    absl.logging.info("on")
    assert "on" in capsys.readouterr().err
