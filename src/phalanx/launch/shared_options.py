"""Options and arguments that `phalanx run` and `phalanx submit` share, as typer takes them."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[str, typer.Argument(metavar="SCRIPT", help="The script or module to run.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")
]
AsModule = Annotated[
    bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module, as in python -m.")
]
MaxRestarts = Annotated[int, typer.Option(help="Maximum number of restarts after failures.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume the run of that --name, if it exists.")
]
