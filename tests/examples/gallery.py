"""Runs a script of the gallery, and holds the numbers of two runs against one another."""

import json
import os
from pathlib import Path

from running import ran

SCRIPTS = Path(__file__).parents[2] / "examples" / "gallery"
MARK = "RESULT "


def plain(name, directory):
    """What the script says by itself."""
    return _result([str(SCRIPTS / f"{name}.py")], directory, None, MARK)


def under_phalanx(name, directory, environment, *options):
    """What worker 0 says under `phalanx run` with those options."""
    words = ["-m", "phalanx", "run", *options, str(SCRIPTS / f"{name}.py")]
    environment = {**os.environ, **environment}
    return _result(words, directory, environment, f"[worker 0] {MARK}")


def _result(words, directory, environment, mark):
    directory.mkdir()
    said = ran(directory, *words, environment=environment, timeout=300)
    (line,) = (line for line in said.splitlines() if line.startswith(mark))
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
