"""Runs a script of the gallery, and holds the numbers of two runs against one another."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "examples" / "gallery"
MARK = "RESULT "


def plain(name, directory):
    """What the script says by itself."""
    return _result([sys.executable, str(SCRIPTS / f"{name}.py")], directory, os.environ, MARK)


def under_phalanx(name, directory, environment, *options):
    """What worker 0 says under `phalanx run` with those options."""
    words = ["-m", "phalanx", "run", *options, str(SCRIPTS / f"{name}.py")]
    environment = {**os.environ, **environment}
    return _result([sys.executable, *words], directory, environment, f"[worker 0] {MARK}")


def _result(words, directory, environment, mark):
    directory.mkdir()
    done = subprocess.run(
        words,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(mark))
    return json.loads(line.removeprefix(mark))


def differences(wanted, found, bound, where=""):
    """Lines that name each value further from what is wanted than a relative `bound`."""
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        pairs = [(f"{where}.{key}".lstrip("."), wanted[key], found[key]) for key in wanted]
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(wanted, found, strict=True))]
    elif wanted == found or (_are_numbers(wanted, found) and _are_near(wanted, found, bound)):
        return []
    else:
        return [f"{where}: {found} in place of {wanted}"]
    return [line for each, *pair in pairs for line in differences(*pair, bound, each)]


def _are_numbers(*values):
    return all(isinstance(value, int | float) for value in values)


def _are_near(wanted, found, bound):
    return abs(found - wanted) <= bound * abs(wanted)
