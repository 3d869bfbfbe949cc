"""`%%phalanx --workers 2`: a cell as the script of a run."""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from phalanx.cli.run_options import RunCommand
from phalanx.cli.run_words import UsageError, read_words
from phalanx.errors import ConfigurationError
from phalanx.notebook.launch import run, send
from phalanx.worker.notebook_call import CELL, MODULE, NotebookCall


def load_ipython_extension(ipython: Any) -> None:
    """Add `%%phalanx`; IPython calls this for `%load_ext phalanx`."""
    ipython.register_magic_function(run_cell, magic_kind="cell", magic_name="phalanx")


def run_cell(line: str, cell: str) -> None:
    """Run the cell as a script on several workers.

    %%phalanx [OPTIONS of phalanx run] [-- ARGUMENTS of the script]

    The cell is a script of its own: it has no variables of the notebook, and leaves none there.

    Raises:
        SyntaxError: the cell is not Python.
        ConfigurationError: an option is wrong.
        RunFailedError: a worker failed; names the worker and the line of the cell.
    """
    command = read_line(line)
    if command is None:
        return
    source = f"\n{cell}"  # The first line of the cell is that of the magic.
    compile(source, CELL, "exec", dont_inherit=True)
    call = NotebookCall(
        cell=source,
        arguments=tuple(command.arguments or ()),
        path=tuple(sys.path),
        sources={CELL: source.splitlines(keepends=True)},
        classes={},
        registered={},
    )
    with tempfile.TemporaryDirectory(prefix="phalanx-", ignore_cleanup_errors=True) as place:
        words = send(call, Path(place), Path(place) / "result.pkl")
        command = replace(command, target=MODULE, arguments=words, as_module=True, cluster="none")
        run(command, "%%phalanx", Path(place))


def read_line(line: str) -> RunCommand | None:
    """The options in the line of the magic; None where it asks for help, which is now printed.

    Raises:
        ConfigurationError: a word is no option of `phalanx run` on one host.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(
            f"%%phalanx takes words as a shell does; found {line!r}: {error}."
        ) from error
    end = words.index("--") if "--" in words else len(words)
    try:
        command = read_words([*words[:end], CELL, *words[end + 1 :]])
    except UsageError as error:
        raise ConfigurationError(
            f"%%phalanx takes the options of phalanx run; found {line!r}: {error}."
        ) from None
    if command is None:
        return None
    if command.target != CELL or command.as_module:
        raise ConfigurationError(
            f"%%phalanx runs the cell below it; found another script in {line!r}. Arguments of the "
            "cell follow '--'."
        )
    if command.hosts is not None or command.node_rank is not None or command.cluster != "auto":
        raise ConfigurationError(
            f"%%phalanx runs on this host; found {line!r}. Leave out --hosts, --node-rank and "
            "--cluster."
        )
    return command
