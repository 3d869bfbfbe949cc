"""Whether a process has ended; a zombie has."""

import time

import psutil


def wait_until_ended(pid, seconds=60):
    end = time.monotonic() + seconds
    while not has_ended(pid):
        assert time.monotonic() < end, psutil.Process(pid)
        time.sleep(0.02)


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
