"""`phalanx init`: a script that runs, and three commands to try."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.console import info
from phalanx.errors import ConfigurationError

HELP = """Write a training script, and print three commands to try.

PATH is the script, or a directory for train.py; the default is train.py here. An existing file is \
not changed.

[bold]Examples[/bold]

  phalanx init

  phalanx init experiments

  phalanx init experiments/classifier.py
"""
NAME = "train.py"
TEMPLATE = Path(__file__).parent / "templates" / NAME


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The script, or a directory for train.py.")
    ] = Path(NAME),
) -> None:
    """Write the script, and print the commands to standard output."""
    script = path if path.suffix == ".py" and not path.is_dir() else path / NAME
    write_new(script, TEMPLATE.read_text().replace(NAME, script.name))
    info(f"wrote {script}. Try:")
    for command in commands(script):
        typer.echo(command)


def commands(script: Path) -> list[str]:
    """One worker, two workers with the same losses, and a page about the newest run."""
    quoted = shlex.quote(str(script))
    return [
        f"phalanx run --workers 1 --seed 1 {quoted}",
        f"phalanx run --workers 2 --seed 1 {quoted}",
        "phalanx report",
    ]


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet, with the directories above it.

    Raises:
        ConfigurationError: it exists, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigurationError(
            f"phalanx init writes a new file; found {path} already. Name another: "
            "phalanx init DIRECTORY or phalanx init FILE.py."
        ) from None
    except OSError as failure:
        raise ConfigurationError(
            f"phalanx init cannot write {path}: {failure.strerror}. Name a file in a directory "
            "where you can write."
        ) from failure
