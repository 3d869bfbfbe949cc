"""`phalanx check`: known mistakes in a script, found without running it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from phalanx.diagnostics.lint.finding import Finding, Severity

HELP = """Find known mistakes in scripts without running them.

An [bold]error[/bold] fails with Phalanx; a [bold]warning[/bold] may fail, or fails with plain \
Keras; a [bold]hint[/bold] names something that is not needed. The exit code is 1 for an error, \
and with --strict for a warning. A comment [bold]# phalanx: ignore\\[rule][/bold] turns a rule off \
for its line.

[bold]Examples[/bold]

  phalanx check train.py

  phalanx check --strict package

  phalanx check --json train.py evaluate.py
"""
SCHEMA = 1
TAB = 4
_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "hint": "bold cyan"}


def check(
    paths: Annotated[
        list[Path], typer.Argument(metavar="SCRIPT|DIR", help="Scripts or directories to check.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
) -> None:
    """Check each script, show what was found, and leave with the exit code."""
    # The rules take their time, which --help has no use for.
    from phalanx.diagnostics.lint.check import check_file, scripts_in

    scripts = [script for path in paths for script in scripts_in(path)]
    findings = [finding for script in scripts for finding in check_file(script)]
    if as_json:
        rows = [asdict(finding) for finding in findings]
        written = {"schema": SCHEMA, "scripts": len(scripts), "findings": rows}
        sys.stdout.write(json.dumps(written, indent=2) + "\n")
    else:
        show(findings, len(scripts), Console(highlight=False))
    bad = ("error", "warning") if strict else ("error",)
    raise typer.Exit(1 if any(finding.severity in bad for finding in findings) else 0)


def show(findings: Sequence[Finding], scripts: int, console: Console) -> None:
    """Each finding with its line, as a compiler shows it, and the counts."""
    lines = {path: Path(path).read_bytes() for path in {finding.path for finding in findings}}
    for finding in findings:
        source = lines[finding.path].decode(errors="replace").splitlines()[finding.line - 1]
        console.print(shown(finding, source), soft_wrap=True)
    console.print(summary(findings, scripts), soft_wrap=True)


def shown(finding: Finding, source: str) -> Text:
    """One finding: where and what, the line with what is meant, why, and the remedy."""
    style = _STYLES[finding.severity]
    margin = " " * len(str(finding.line))
    lead = " " * len(source[: finding.column - 1].expandtabs(TAB))
    return Text.assemble(
        (f"{finding.path}:{finding.line}:{finding.column}: ", "bold"),
        (finding.severity, style),
        f": {finding.what} [{finding.rule}]\n",
        (f"{finding.line} | ", "dim"),
        f"{source.expandtabs(TAB)}\n",
        (f"{margin} | ", "dim"),
        lead,
        ("^" * finding.width, style),
        f"\n  why: {finding.why}\n  remedy: {finding.remedy}\n",
    )


def summary(findings: Sequence[Finding], scripts: int) -> str:
    """How much was found in how many scripts."""
    from phalanx.diagnostics.lint.finding import SEVERITIES

    checked = f"{scripts} script{'s' * (scripts != 1)}"
    counts = Counter(finding.severity for finding in findings)
    parts = [f"{counts[s]} {s}{'s' * (counts[s] != 1)}" for s in SEVERITIES if counts[s]]
    return f"{checked}: {', '.join(parts)}" if parts else f"{checked}: nothing found"
