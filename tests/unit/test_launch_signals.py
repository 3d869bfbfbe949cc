import os
import signal

from phalanx.launch.signals import SignalBox


def test_signals_are_kept_and_the_old_handlers_come_back():
    before = signal.getsignal(signal.SIGUSR2)
    with SignalBox((signal.SIGUSR2, signal.SIGTERM)) as signals:
        assert (signals.first, signals.count()) == (None, 0)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (signals.first, signals.count()) == (signal.SIGTERM, 2)
    assert signal.getsignal(signal.SIGUSR2) is before


def test_nohup_stands():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalBox((signal.SIGHUP,)) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.count() == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
