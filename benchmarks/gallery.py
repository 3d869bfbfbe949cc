"""Run each script of examples/gallery alone and on two workers, and keep what it prints.

    python benchmarks/gallery.py            # prints the table
    python benchmarks/gallery.py --write    # and writes examples/gallery/outputs, docs/gallery.md

`make site` shows the outputs beside the scripts. The table has, for each script, the largest
relative difference between a number of its RESULT line on one device and on two workers.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markers import replace_between

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "examples" / "gallery"
OUTPUTS = GALLERY / "outputs"
PAGE = ROOT / "docs" / "gallery.md"
WAYS = {"one": ["python"], "two": ["phalanx", "run", "--workers", "2"]}
MARK = re.compile(r"^(?:\[worker 0\] )?RESULT (.+)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = []
    for script in sorted(GALLERY.glob("*.py")):
        printed = {way: run(script, words) for way, words in WAYS.items()}
        rows.append(row(script, printed))
        print(rows[-1], flush=True)
        if args.write:
            OUTPUTS.mkdir(exist_ok=True)
            for way, text in printed.items():
                (OUTPUTS / f"{script.stem}.{way}.txt").write_text(text)
    if args.write:
        header = ["| script | what it trains | difference |", "| --- | --- | --- |"]
        replace_between(PAGE, "gallery", "\n".join([*header, *rows]))


def run(script: Path, words: list[str]) -> str:
    """The command and what it prints to standard output, in a directory of its own."""
    command = [sys.executable, *(["-m", *words] if words[0] == "phalanx" else []), str(script)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "80"}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        printed = done.stdout.replace(os.path.realpath(directory), ".")
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    shown = " ".join([*words, str(script.relative_to(ROOT))])
    return f"$ {shown}\n{printed}"


def row(script: Path, printed: dict[str, str]) -> str:
    results = [json.loads(MARK.search(printed[way])[1]) for way in WAYS]  # type: ignore[index]
    pairs = zip(*(list(numbers(result)) for result in results), strict=True)
    largest = max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)
    what = (ast.get_docstring(ast.parse(script.read_text())) or "").splitlines()[0]
    link = f"[{script.stem.replace('_', ' ')}](../examples/gallery/{script.name})"
    return f"| {link} | {what.rstrip('.:')} | {f'{largest:.0e}' if largest else 0} |"


def numbers(value: Any) -> Iterator[float]:
    """All numbers in a structure of JSON, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield float(value)


if __name__ == "__main__":
    main()
