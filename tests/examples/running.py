"""Runs an example as a user would, and reads what it says."""

import re
import subprocess
import sys


def ran(directory, *words, environment=None, timeout=600):
    """What Python says, run with these words, which must end well."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(output):
    return float(re.search(r"test accuracy: ([\d.]+)", output)[1])
