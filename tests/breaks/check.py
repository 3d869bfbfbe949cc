"""Which test notices each break?

    python tests/breaks/check.py [NAMES...] --contexts DIR/contexts.db [--marker EXPRESSION]

Each break is applied to a copy of the repository. Of the tests that execute its lines, those run
first whose file touches the fewest source files. One that fails runs again without the break.
"""

import argparse
import ast
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from coverage.numbits import nums_to_numbits, register_sqlite_functions

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_TESTS = """
SELECT DISTINCT context.context FROM line_bits
JOIN file ON file.id = line_bits.file_id JOIN context ON context.id = line_bits.context_id
WHERE substr(file.path, -length(?1)) = ?1 AND context.context != ''
AND numbits_any_intersection(line_bits.numbits, ?2)
"""


class Contexts:
    """What coverage has recorded, for the source in one tree."""

    def __init__(self, data: Path, tree: Path) -> None:
        self._data, self._tree = data, tree
        sources_of: defaultdict[str, set[str]] = defaultdict(set)
        for path in (tree / "src").rglob("*.py"):
            source = path.relative_to(tree).as_posix()
            for test in self.executing(source, _in_functions(path)):
                sources_of[test.split("::")[0]].add(source)
        self.breadth = {file: len(sources) for file, sources in sources_of.items()}

    def executing(self, source: str, lines: Iterable[int]) -> set[str]:
        """The tests that execute one of these lines."""
        with closing(sqlite3.connect(f"file:{self._data}?mode=ro", uri=True)) as connection:
            register_sqlite_functions(connection)
            found = connection.execute(_TESTS, (f"/{source}", nums_to_numbits(lines)))
            return {test for (test,) in found}

    def tests_of(self, source: str, changed: set[int]) -> set[str]:
        """The tests that execute lines of a file, else the function around, else any function.

        Lines outside of functions do not count: the first import of the file executes them.
        """
        path = self._tree / source
        if path.suffix != ".py":  # A template, which the package around its folder renders.
            around = [each.relative_to(self._tree) for each in path.parent.parent.glob("*.py")]
            found = (self.executing(str(one), _in_functions(self._tree / one)) for one in around)
            return set().union(*found)
        inside = _in_functions(path)
        found = self.executing(source, inside & _statements(path, changed))
        found = found or self.executing(source, _in_functions(path, changed))
        return found or self.executing(source, inside)


def _in_functions(path: Path, around: set[int] | None = None) -> set[int]:
    """The lines of functions' bodies; of those functions alone that have a line of `around`."""
    return {
        line
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef)
        if around is None or around & set(range(node.lineno, node.end_lineno + 1))
        for line in range(node.body[0].lineno, node.end_lineno + 1)
    }


def _statements(path: Path, lines: set[int]) -> set[int]:
    """All lines of the statements to which `lines` belong; of a compound one its head."""
    nodes = [n for n in ast.walk(ast.parse(path.read_bytes())) if isinstance(n, ast.stmt)]
    ends = (n.body[0].lineno if hasattr(n, "body") else n.end_lineno + 1 for n in nodes)
    spans = [set(range(n.lineno, end)) for n, end in zip(nodes, ends, strict=True)]
    return lines.union(*(span for span in spans if span & lines))


@contextmanager
def copy_of(revision: str) -> Iterator[Path]:
    """A working tree of a revision, which is removed again."""
    with tempfile.TemporaryDirectory(prefix="break-") as place:
        tree = Path(place, "tree")
        git("worktree", "add", "--detach", "--quiet", str(tree), revision)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str, at: Path = ROOT) -> str:
    """What git says."""
    command = ["git", "-C", str(at), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def changed_lines(tree: Path) -> dict[str, set[int]]:
    """By file, the numbers that changed lines had; where lines only came, of those beside them."""
    changed: dict[str, set[int]] = defaultdict(set)
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", at=tree).splitlines():
        if line.startswith("--- a/"):
            source = line.removeprefix("--- a/")
        elif hunk := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            changed[source].update(range(first, first + (count or 2)))
    return changed


def pytest_in(tree: Path, words: Sequence[str], seconds: float | None) -> tuple[int | None, str]:
    """pytest's exit code, None where its time was over, and what it said; leaves no process."""
    mark, path = uuid.uuid4().hex, f"{tree / 'src'}:{os.environ.get('PYTHONPATH', '')}".strip(":")
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
            env={**os.environ, "PYTHONPATH": path, "PHALANX_BREAK": mark},
            **{"cwd": tree, "stdout": output, "stderr": output, "start_new_session": True},
        )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
        finally:
            for each in Path("/proc").glob("[0-9]*"):  # workers have groups of their own
                with suppress(OSError):
                    if mark.encode() in (each / "environ").read_bytes():
                        os.kill(int(each.name), signal.SIGKILL)
        process.wait()
        output.seek(0)
        return code, output.read()


def look_at(patch: Path, requested: Any, contexts: Contexts, there: list[str]) -> str:
    """Apply one break, and run what executes it: a row of the table."""
    began = time.monotonic()
    with copy_of(requested.revision) as tree:
        git("apply", str(patch), at=tree)
        wanted = set().union(*(contexts.tests_of(*each) for each in changed_lines(tree).items()))
        files = {test: test.split("::")[0] for test in there if test in wanted}
        tests = sorted(files, key=lambda test: (contexts.breadth[files[test]], files[test]))
        outcome = noticed_by(tree, patch, tests, 60 * requested.minutes)
    print(row := f"| {patch.stem} | {outcome} | {time.monotonic() - began:.0f} |", flush=True)
    return row


def noticed_by(tree: Path, patch: Path, tests: list[str], seconds: float) -> str:
    """Run tests in a tree with a break; what became of it."""
    if not tests:
        return "not noticed (no test executes it)"
    listed = tree.parent / "tests"
    listed.write_text("\n".join(tests), encoding="utf-8")
    code, output = pytest_in(tree, ["-x", f"@{listed}"], seconds)
    if code is None:
        return f"time over ({len(tests)} tests)"
    if code == 0:
        return f"not noticed ({output.strip().splitlines()[-1]})"
    reported = re.findall(r"^(?:FAILED|ERROR) (.*)$", output, re.MULTILINE)
    if not (named := [t for t in tests for s in reported if s == t or s.startswith(f"{t} - ")]):
        return (
            f"pytest as a whole (exit code {code}): {' '.join(reported) or output[-200:].strip()}"
        )
    git("apply", "--reverse", str(patch), at=tree)
    listed.write_text(named[0], encoding="utf-8")
    alone = pytest_in(tree, [f"@{listed}"], seconds)[0]
    return f"`{named[0]}`" if alone == 0 else f"not noticed (`{named[0]}` fails without it too)"


def main() -> None:
    """Look at the breaks asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("names", nargs="*", help="beginnings of patches' names; all by default")
    add("--contexts", type=Path, required=True, help="data of contexts.py")
    add("-m", "--marker", default="", help="pytest's -m: which tests may run")
    add("--minutes", type=float, default=5, help="for each break's tests")
    add("--jobs", type=int, default=1, help="breaks at a time")
    add("--revision", default="HEAD", help="what the breaks are applied to")
    add("--write", type=Path, help="a file for the table, as Markdown")
    requested = parser.parse_args()
    patches = [
        p for p in sorted(HERE.glob("*.patch")) if p.stem.startswith((*requested.names,) or "")
    ]
    with copy_of(requested.revision) as tree, ThreadPoolExecutor(requested.jobs) as pool:
        contexts = Contexts(requested.contexts.resolve(), tree)
        words = ["--collect-only", "--continue-on-collection-errors", "-m", requested.marker]
        there = [line for line in pytest_in(tree, words, None)[1].splitlines() if "::" in line]
        rows = list(pool.map(lambda patch: look_at(patch, requested, contexts, there), patches))
    if requested.write is not None:
        table = ["| Break | Noticed by | Seconds |", "|---|---|---|", *rows]
        requested.write.write_text("\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
