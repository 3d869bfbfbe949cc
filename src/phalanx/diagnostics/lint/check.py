"""All rules on a script, but for what its comments turn off."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from phalanx.diagnostics.lint.finding import Finding, Rule, Spot
from phalanx.diagnostics.lint.rules import RULES
from phalanx.diagnostics.lint.script import Script
from phalanx.errors import ConfigurationError
from phalanx.launcher.script_check import check_script

_IGNORE = re.compile(r"#\s*phalanx:\s*ignore(?:\[(?P<rules>[\w\s,-]+)\])?")
_NOT_OURS = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}


def check_file(path: Path) -> list[Finding]:
    """Read a script, and say what is wrong with it.

    Raises:
        ScriptError: there is no such file, or it is not valid Python.
    """
    check_script(path)
    with tokenize.open(path) as file:
        return check_text(file.read(), str(path))


def check_text(text: str, path: str) -> list[Finding]:
    """What is wrong with a script, in the order of its lines; `text` must be valid Python."""
    script = Script(path=path, text=text)
    off = dict(_ignored(text))
    found = {
        (spot.node.lineno, spot.node.col_offset, rule.name): _finding(script, rule, spot)
        for rule in RULES
        for spot in rule.find(script)
        if not _is_off(off, rule, spot.node)
    }
    return [found[key] for key in sorted(found)]


def scripts_in(path: Path) -> list[Path]:
    """The Python files of a directory and those below it; a file is itself.

    Raises:
        ConfigurationError: the directory holds none.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.rglob("*.py")) if _is_ours(file.relative_to(path))]
    if not found:
        raise ConfigurationError(
            f"Asked to check {path}; found no Python file in it. Name a script."
        )
    return found


def _is_ours(path: Path) -> bool:
    return not any(part in _NOT_OURS or part.startswith(".") for part in path.parts)


def _finding(script: Script, rule: Rule, spot: Spot) -> Finding:
    node = spot.node
    line = script.text.splitlines()[node.lineno - 1]
    # ast counts in bytes of UTF-8.
    before = len(line.encode()[: node.col_offset].decode())
    ends_here = node.end_lineno == node.lineno and node.end_col_offset is not None
    end = len(line.encode()[: node.end_col_offset].decode()) if ends_here else len(line)
    return Finding(
        path=script.path,
        line=node.lineno,
        column=before + 1,
        width=max(end - before, 1),
        rule=rule.name,
        severity=rule.severity,
        what=spot.what,
        why=rule.why,
        remedy=rule.remedy,
    )


def _ignored(text: str) -> Iterator[tuple[int, frozenset[str]]]:
    """The lines with a comment that turns rules off; an empty set turns all off."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match:
            rules = re.split(r"[\s,]+", (match["rules"] or "").strip())
            yield token.start[0], frozenset(filter(None, rules))


def _is_off(off: dict[int, frozenset[str]], rule: Rule, node: ast.expr | ast.stmt) -> bool:
    """Whether a comment on any line of what was found names the rule, or no rule at all."""
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return any(line in off and (not off[line] or rule.name in off[line]) for line in lines)
