"""Runs an example as a user would, and reads what it says."""

import re
import subprocess
import sys


def ran(directory, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(output):
    return float(re.search(r"test accuracy: ([\d.]+)", output)[1])
