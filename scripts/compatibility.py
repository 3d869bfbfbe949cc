"""Write a row of docs/compatibility.md from what a session of noxfile.py has measured.

    python scripts/compatibility.py DIRECTORY

DIRECTORY has fast.xml, canaries.xml (JUnit's) and equivalence.json (benchmarks/equivalence.py). The
versions are those of the environment of this Python.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from installed import version_of  # noqa: E402
from markers import replace_between  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
HEADER = (
    "| Python | Keras | TensorFlow | Fast tests | Canaries | Equivalence | `phalanx run` | Date |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


def main() -> int:
    place = Path(sys.argv[1])
    cells = (
        platform.python_version(),
        version_of("keras", "keras-nightly"),
        version_of("tensorflow-cpu", "tensorflow"),
        _tests(place / "fast.xml"),
        _tests(place / "canaries.xml"),
        _equivalence(place / "equivalence.json"),
        "ends well",  # nox has stopped otherwise
        datetime.date.today().isoformat(),
    )
    row = f"| {' | '.join(cells)} |"
    print(row)
    stored = re.search(r"<!-- versions -->\n(.*?)<!-- /versions -->", PAGE.read_text(), re.S)
    rows = [line for line in stored[1].splitlines() if line.startswith("| 3.")] if stored else []
    by_versions = {_key(each): each for each in [*rows, row]}
    table = "\n".join([*HEADER, *(by_versions[key] for key in sorted(by_versions))])
    replace_between(PAGE, "versions", table)
    return 0


def _key(row: str) -> tuple[str, ...]:
    """Python's minor version, Keras's (all nightly builds are one) and TensorFlow's version."""
    python, keras, tensorflow = (cell.strip() for cell in row.split("|")[1:4])
    minor = keras if ".dev" not in keras else "nightly"
    return (".".join(python.split(".")[:2]), minor, tensorflow)


def _tests(file: Path) -> str:
    """How many passed and failed; prints the names of those that failed."""
    suite = ElementTree.parse(file).getroot().find("testsuite")
    assert suite is not None, file
    total, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    for case in suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            print(f"failed: {case.attrib['classname']}.{case.attrib['name']}")
    return f"{total - skipped - failed} pass" + (f", {failed} fail" if failed else "")


def _equivalence(file: Path) -> str:
    """How many cases have the result of one device on two replicas, of all."""
    verdicts = json.loads(file.read_text())
    wrong = [
        case
        for case, cells in verdicts.items()
        if not all(cell["right"] for column, cell in cells.items() if column.startswith("phalanx"))
    ]
    for case in wrong:
        print(f"differs: {case}")
    return f"{len(verdicts) - len(wrong)} of {len(verdicts)}"


if __name__ == "__main__":
    sys.exit(main())
