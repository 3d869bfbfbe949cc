"""Runs a script on its own and on two workers, and compares the numbers of two runs."""

import json
import os
from pathlib import Path

from running import ran

SCRIPTS = Path(__file__).parents[2] / "examples" / "gallery"
MARK = "RESULT "


def plain(script, directory, *arguments):
    """What the script says on its own."""
    return _result([str(script), *arguments], directory, None, MARK)


def under_phalanx(script, directory, environment, *arguments):
    """What worker 0 of two says under `phalanx run`."""
    words = ["-m", "phalanx", "run", "--workers", "2", str(script), *arguments]
    environment = {**os.environ, **environment}
    return _result(words, directory, environment, f"[worker 0] {MARK}")


def _result(words, directory, environment, mark):
    directory.mkdir(exist_ok=True)
    output = ran(directory, *words, environment=environment, timeout=300)
    (line,) = (line for line in output.splitlines() if line.startswith(mark))
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
