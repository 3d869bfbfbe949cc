"""What reaches the launchers of a run counts once, whoever else it reached."""

import os
import signal

from phalanx.launcher.signals import SignalCatcher

TERM, USR1, INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT


def box(*came):
    made = SignalCatcher(())
    for number, launcher in came:
        made.add(number, launcher)
    return made


def test_none():
    assert (box().first, box().count()) == (None, 0)


def test_a_signal_to_every_launcher_is_one():
    assert box((USR1, 2), (USR1, 0), (USR1, 1)).count() == 1


def test_a_second_one_to_the_same_launcher_is_another():
    assert box((INT, 0), (INT, 1), (INT, 0)).count() == 2


def test_other_signals_are_others_and_the_first_stays_the_first():
    made = box((USR1, 1), (TERM, 0), (USR1, 0))
    assert (made.first, made.count()) == (USR1, 2)


def test_own_signals_are_kept_while_it_is_entered():
    with SignalCatcher((USR1,)) as made:
        made.add(USR1, 1)
        os.kill(os.getpid(), USR1)
        assert (made.first, made.count()) == (USR1, 1)
        os.kill(os.getpid(), USR1)
        assert made.count() == 2


def test_signals_are_kept_and_the_old_handlers_come_back():
    before = signal.getsignal(signal.SIGUSR2)
    with SignalCatcher((signal.SIGUSR2, signal.SIGTERM)) as signals:
        assert (signals.first, signals.count()) == (None, 0)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (signals.first, signals.count()) == (signal.SIGTERM, 2)
    assert signal.getsignal(signal.SIGUSR2) is before


def test_nohup_holds():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalCatcher((signal.SIGHUP,)) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.count() == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
